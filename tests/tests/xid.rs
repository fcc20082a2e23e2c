//! Errors that the driver reports of a device: which of them keep requests from its engines, and for how long.

use gpuadmit_core::{
    event::EventKind,
    node::Node,
    observation::{DeviceEvent, DeviceProcess, DeviceProcesses, Observation, RankReading},
    request::Reason,
    snapshot::EngineState,
    units::{Bytes, Mono, Span},
};
use gpuadmit_tests::node_kit::{admitted, at, denied, rank, reading, ready_node, request, strict};

/// The API server of `ready_node`'s engine.
const PID: u32 = 100;

/// A node with an engine that uses these devices.
fn node(devices: &[&str]) -> Node {
    let mut node = ready_node(strict(), 100);
    for uuid in devices {
        let processes = vec![DeviceProcess { pid: PID, used: Some(Bytes(1 << 30)) }];
        let listed = DeviceProcesses { span: Span::at(at(0.2)), uuid: (*uuid).into(), processes };
        node.observe(at(0.2), Observation::DeviceProcesses(listed));
    }
    node
}

fn xid(node: &mut Node, now: Mono, uuid: &str, code: u64) {
    let event =
        Observation::DeviceEvent { uuid: uuid.into(), span: Span::at(now), event: DeviceEvent::Xid { code } };
    node.observe(now, event);
}

fn step(node: &mut Node, now: Mono, steps: u64) {
    let running = RankReading { steps: Some(steps), ..rank(0, 100, 0, 0, 0, 3) };
    node.observe(now, reading("e", now, vec![running]));
}

fn is_closed(node: &mut Node, now: Mono) -> bool {
    let decision = node.admit(now, &request(10, Some(10))).unwrap();
    matches!(decision.verdict, gpuadmit_core::request::Verdict::Deny(_))
}

#[test]
fn the_errors_that_refuse_are_those_of_the_list() {
    // As operators' guides have them: dead and drain, refuse, or all dead; but not what one process dies of.
    let closing = [48, 171, 172, 64, 79, 95, 109, 119, 120, 140, 143, 158];
    let harmless = [13, 31, 43, 45, 63, 92, 94, 154, 168, 74, 8, 32];
    for code in closing {
        let mut node = node(&["GPU-0"]);
        xid(&mut node, at(1.0), "GPU-0", code);
        assert!(is_closed(&mut node, at(1.0)), "Xid {code}");
    }
    for code in harmless {
        let mut node = node(&["GPU-0"]);
        xid(&mut node, at(1.0), "GPU-0", code);
        assert!(!is_closed(&mut node, at(1.0)), "Xid {code}");
    }
}

#[test]
fn a_broken_link_holds_only_engines_that_use_several_gpus() {
    let mut node = node(&["GPU-0", "GPU-1"]);
    xid(&mut node, at(1.0), "GPU-1", 74);
    assert!(is_closed(&mut node, at(1.0)));
}

#[test]
fn an_error_of_another_gpu_closes_nothing() {
    let mut node = node(&["GPU-0"]);
    xid(&mut node, at(1.0), "GPU-1", 79);
    assert!(!is_closed(&mut node, at(1.0)));
}

#[test]
fn a_held_engine_says_why_and_for_how_long_and_is_one_alert_with_its_error() {
    let mut node = node(&["GPU-0"]);
    xid(&mut node, at(1.0), "GPU-0", 79);
    let denial = node.admit(at(11.0), &request(10, Some(10))).unwrap();
    let denial = denied(&denial);
    assert_eq!(denial.reason, Reason::EngineSuspect);
    assert_eq!(denial.retry_after, Some(std::time::Duration::from_secs(50)));
    let why = "Xid 79 on its device GPU-0: the GPU has fallen off the bus";
    assert!(denial.message.ends_with(why), "{}", denial.message);
    let engine = node.snapshot(at(11.0)).engines.remove(0);
    assert_eq!((engine.state, &*engine.state_reason), (EngineState::Suspect, why));
    let events = node.history().after(0, usize::MAX).0;
    let of = |kind| events.iter().find(|event| event.kind == kind).unwrap();
    assert_eq!(of(EventKind::EngineSuspect).caused_by, Some(of(EventKind::Xid).cursor));
}

#[test]
fn one_that_works_when_its_time_is_over_is_open_again() {
    let mut node = node(&["GPU-0"]);
    step(&mut node, at(0.5), 10);
    xid(&mut node, at(1.0), "GPU-0", 95);
    // Steps of what was under way say nothing yet.
    step(&mut node, at(2.0), 20);
    assert!(is_closed(&mut node, at(2.0)));
    step(&mut node, at(12.0), 30);
    assert!(!is_closed(&mut node, at(12.0)));
    assert_eq!(node.snapshot(at(12.0)).engines[0].state, EngineState::Ready);
}

#[test]
fn an_idle_one_is_given_one_request_when_its_time_is_over() {
    let mut node = node(&["GPU-0"]);
    xid(&mut node, at(1.0), "GPU-0", 64);
    assert!(is_closed(&mut node, at(60.0)));
    let _ = admitted(&node.admit(at(61.0), &request(10, Some(10))).unwrap());
    assert!(is_closed(&mut node, at(61.1)), "one at a time");
    step(&mut node, at(61.5), 1);
    assert!(!is_closed(&mut node, at(61.6)));
}
