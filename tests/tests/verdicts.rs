//! Who ended an engine: one event per loss that names process, engine and author, whatever order the facts come in.

use std::time::Duration;

use gpuadmit_core::{
    event::{Event, EventKind},
    host::{HostFact, ProcessState, Scheduled},
    node::{Node, Standing},
    observation::{
        DeviceEvent, DeviceMemory, DeviceProcess, DeviceProcesses, DeviceReading, EngineProcess, Observation,
        OomScope, ProcessChange, ProcessEvent, ProcessRole, RankReading, ScrapeFailure, Sender, SourceHealth,
        SourceReport,
    },
    request::Reason,
    snapshot::EngineState,
    units::{Bytes, Mono, Span},
    verdict::{Cause, SIGABRT, SIGBUS, SIGKILL, SIGSEGV, SIGTERM},
};
use gpuadmit_tests::node_kit::{admitted, at, denied, e, facts, rank, reading, ready_node, request, strict};

const API: u32 = 100;
const CORE: u32 = 101;
const WORKER: u32 = 102;
const HELPER: u32 = 103;

/// Engine `e` with a process of each role, ready.
fn node() -> Node {
    let mut node = ready_node(strict(), 100);
    let mut whole = facts("e", 1600, at(0.1));
    for (pid, role) in
        [(CORE, ProcessRole::EngineCore), (WORKER, ProcessRole::Worker), (HELPER, ProcessRole::Helper)]
    {
        whole.processes.push(EngineProcess { pid, start_ticks: 1, role });
    }
    node.observe(at(0.1), Observation::Engine(Box::new(whole)));
    node
}

fn happens(node: &mut Node, now: Mono, pid: u32, what: ProcessChange) {
    happened(node, now, now, pid, what);
}

/// The same, told only `now`.
fn happened(node: &mut Node, now: Mono, then: Mono, pid: u32, what: ProcessChange) {
    let span = Span::at(then);
    let event = ProcessEvent { span, pid, start_ticks: Some(1), comm: "VLLM".into(), watched: true, what };
    node.observe(now, Observation::Process(Box::new(event)));
}

fn signal(number: i32, comm: &str) -> ProcessChange {
    let (kernel, code) = (comm == "kernel", if comm == "kernel" { 0x80 } else { 0 });
    ProcessChange::Signal { number, code, sender: Sender { pid: 7, comm: comm.into(), kernel } }
}

fn exit(code: Option<i32>, signal: Option<i32>) -> ProcessChange {
    ProcessChange::Exit { code, signal }
}

/// What was told between the start of the deaths and `now`, the readiness of the engine left out.
fn told(node: &mut Node, now: Mono) -> Vec<Event> {
    node.handle_timeout(now);
    let events = node.history().after(0, usize::MAX).0;
    let start = [EventKind::EngineFound, EventKind::EngineReady];
    events.into_iter().filter(|event| event.at > at(0.5) && !start.contains(&event.kind)).collect()
}

/// The one event of a loss.
#[track_caller]
fn loss(node: &mut Node, now: Mono) -> (EventKind, Cause, String) {
    let events = told(node, now);
    let [event] = &events[..] else { panic!("one event, not {events:#?}") };
    assert_eq!(event.engine, Some(e()));
    (event.kind, event.cause.expect("a cause"), event.message.clone())
}

fn state(node: &mut Node, now: Mono) -> (EngineState, String) {
    let engine = node.snapshot(now).engines.remove(0);
    (engine.state, engine.state_reason)
}

#[track_caller]
fn closed(node: &mut Node, now: Mono) {
    let decision = node.admit(now, &request(10, Some(10))).unwrap();
    assert_eq!(denied(&decision).reason, Reason::EngineDown);
}

#[test]
fn a_fatal_signal_closes_at_once_and_its_exit_confirms() {
    let mut node = node();
    let id = admitted(&node.admit(at(0.9), &request(10, Some(10))).unwrap()).reservation;
    happens(&mut node, at(1.0), CORE, signal(SIGKILL, "bash"));
    closed(&mut node, at(1.0));
    assert_eq!(node.standing(id), Standing::Ended);
    assert_eq!(node.snapshot(at(1.0)).engines[0].headroom.map(|room| room.blocks.0), Some(0));
    assert_eq!(state(&mut node, at(1.0)).1, "its EngineCore (pid 101) was sent SIGKILL by bash (pid 7)");
    assert_eq!(told(&mut node, at(1.1)), [], "not before it is certain");
    happens(&mut node, at(1.2), CORE, exit(None, Some(SIGKILL)));
    let message = "engine e: bash (pid 7) killed its EngineCore (pid 101)".to_owned();
    assert_eq!(loss(&mut node, at(1.5)), (EventKind::EngineDown, Cause::Killed, message));
    assert_eq!(state(&mut node, at(1.6)).1, "bash (pid 7) killed its EngineCore (pid 101)");
    let denial = node.admit(at(1.7), &request(10, Some(10))).unwrap();
    assert!(denied(&denial).message.ends_with("bash (pid 7) killed its EngineCore (pid 101)"));
}

#[test]
fn what_follows_from_a_loss_is_told_no_second_time() {
    let mut node = node();
    happens(&mut node, at(1.0), CORE, signal(SIGKILL, "bash"));
    happens(&mut node, at(1.01), CORE, exit(None, Some(SIGKILL)));
    assert_eq!(loss(&mut node, at(1.5)).1, Cause::Killed);
    // As measured on vLLM 0.32: the port refuses after 4 s, the API server is gone after 8 s.
    let refused = ScrapeFailure::Refused;
    node.observe(
        at(5.0),
        Observation::ScrapeFailed { engine: e(), span: Span::at(at(5.0)), failure: refused },
    );
    let failed = SourceReport {
        source: "metrics/e".into(),
        span: Span::at(at(5.1)),
        health: SourceHealth::Failed,
        detail: "refused".into(),
        busy: None,
    };
    node.observe(at(5.1), Observation::Source(failed));
    happens(&mut node, at(8.0), WORKER, signal(SIGTERM, "vllm"));
    happens(&mut node, at(8.1), WORKER, exit(Some(0), None));
    happens(&mut node, at(8.2), API, exit(Some(1), None));
    let gone = Observation::EngineGone { engine: e(), span: Span::at(at(8.3)), evidence: "gone".into() };
    node.observe(at(8.3), gone);
    assert_eq!(loss(&mut node, at(9.0)).1, Cause::Killed);
    // Its restart names the loss as its cause.
    let down = told(&mut node, at(9.0))[0].cursor;
    let mut anew = facts("e", 1600, at(20.0));
    anew.processes[0].start_ticks = 9;
    node.observe(at(20.0), Observation::Engine(Box::new(anew)));
    let events = told(&mut node, at(20.1));
    assert_eq!((events[1].kind, events[1].caused_by), (EventKind::EngineRestarted, Some(down)));
    node.observe(at(21.0), reading("e", at(21.0), vec![rank(0, 100, 0, 0, 0, 0)]));
    let _ = admitted(&node.admit(at(21.1), &request(10, Some(10))).unwrap());
}

#[test]
fn each_end_has_its_author() {
    let oom = |scope| ProcessChange::OomVictim { rss: None, scope };
    /// What happened, what became of which process when, and what is told of it.
    type Case = (&'static str, Vec<(f64, u32, ProcessChange)>, EventKind, Cause);
    let cases: [Case; 9] = [
        (
            "memory cgroup",
            vec![
                (1.0, WORKER, signal(SIGKILL, "kernel")),
                (1.0001, WORKER, oom(Some(OomScope::Cgroup("/engines".into())))),
                (1.1, WORKER, exit(None, Some(SIGKILL))),
            ],
            EventKind::EngineDown,
            Cause::KernelOom,
        ),
        (
            "the whole machine, the mark first",
            vec![
                (1.0, API, oom(Some(OomScope::Machine))),
                (1.0001, API, signal(SIGKILL, "kernel")),
                (1.1, API, exit(None, Some(SIGKILL))),
            ],
            EventKind::EngineDown,
            Cause::KernelOom,
        ),
        (
            "systemd-oomd",
            vec![(1.0, CORE, signal(SIGKILL, "systemd-oomd")), (1.1, CORE, exit(None, Some(SIGKILL)))],
            EventKind::EngineDown,
            Cause::OomDaemon,
        ),
        (
            "segmentation fault",
            vec![(1.0, WORKER, signal(SIGSEGV, "kernel")), (1.1, WORKER, exit(None, Some(SIGSEGV)))],
            EventKind::EngineDown,
            Cause::Crash,
        ),
        (
            "abort, the exit alone seen",
            vec![(1.1, WORKER, exit(None, Some(SIGABRT)))],
            EventKind::EngineDown,
            Cause::Crash,
        ),
        ("bus error", vec![(1.1, CORE, exit(None, Some(SIGBUS)))], EventKind::EngineDown, Cause::Crash),
        ("exit code", vec![(1.1, CORE, exit(Some(1), None))], EventKind::EngineDown, Cause::Exit),
        (
            "failed allocation",
            vec![
                (
                    0.4,
                    WORKER,
                    ProcessChange::AllocationFailed { requested: Some(Bytes(96 << 20)), call: "cuMemCreate" },
                ),
                (1.1, CORE, exit(Some(1), None)),
            ],
            EventKind::EngineDown,
            Cause::CudaOom,
        ),
        ("clean exit", vec![(1.1, API, exit(Some(0), None))], EventKind::EngineStopped, Cause::Stopped),
    ];
    for (name, facts, kind, cause) in cases {
        let mut node = node();
        for (when, pid, what) in facts {
            happens(&mut node, at(when), pid, what);
        }
        closed(&mut node, at(1.1));
        let (told_kind, told_cause, message) = loss(&mut node, at(1.6));
        assert_eq!((told_kind, told_cause), (kind, cause), "{name}: {message}");
        assert!(message.starts_with("engine e: ") && message.contains("(pid 10"), "{name}: {message}");
    }
}

#[test]
fn an_xid_that_ends_an_engine_is_the_cause_that_its_loss_names() {
    let mut node = node();
    let processes = vec![DeviceProcess { pid: WORKER, used: Some(Bytes(1 << 30)) }];
    let listed = DeviceProcesses { span: Span::at(at(0.2)), uuid: "GPU-0".into(), processes };
    node.observe(at(0.2), Observation::DeviceProcesses(listed));
    let xid = |node: &mut Node, when| {
        let event = DeviceEvent::Xid { code: 31 };
        let span = Span::at(at(when));
        node.observe(at(when), Observation::DeviceEvent { uuid: "GPU-0".into(), span, event });
    };
    xid(&mut node, 1.0);
    happens(&mut node, at(1.4), WORKER, exit(Some(1), None));
    let events = told(&mut node, at(2.0));
    let [xid_event, down] = &events[..] else { panic!("two events, not {events:#?}") };
    assert_eq!((down.cause, down.caused_by), (Some(Cause::Xid), Some(xid_event.cursor)));
    assert!(down.message.contains("Xid 31"), "{}", down.message);
}

#[test]
fn an_allocation_that_succeeds_when_tried_again_ends_nothing() {
    let mut node = node();
    let call = "cuMemCreate";
    let bytes = Bytes(96 << 20);
    happens(&mut node, at(1.0), WORKER, ProcessChange::AllocationFailed { requested: Some(bytes), call });
    happens(&mut node, at(1.1), WORKER, ProcessChange::AllocationRetried { requested: bytes, call });
    // A second time within the minute is not told again.
    happens(&mut node, at(2.0), WORKER, ProcessChange::AllocationFailed { requested: Some(bytes), call });
    happens(&mut node, at(2.1), WORKER, ProcessChange::AllocationRetried { requested: bytes, call });
    happens(&mut node, at(3.0), WORKER, exit(Some(1), None));
    let events = told(&mut node, at(4.0));
    let [failed, over, down] = &events[..] else { panic!("three events, not {events:#?}") };
    assert_eq!((failed.kind, over.kind), (EventKind::AllocationFailed, EventKind::AlertOver));
    assert_eq!(over.caused_by, Some(failed.cursor));
    assert_eq!(
        over.message,
        "engine e: its worker (pid 102) made room, tried again and got 100663296 bytes by cuMemCreate"
    );
    assert_eq!((down.cause, down.caused_by), (Some(Cause::Exit), None));
}

#[test]
fn what_a_process_took_since_the_reading_is_told_as_not_free() {
    let mut node = node();
    let processes = vec![DeviceProcess { pid: WORKER, used: Some(Bytes(1 << 30)) }];
    let listed = DeviceProcesses { span: Span::at(at(0.9)), uuid: "GPU-0".into(), processes };
    node.observe(at(0.9), Observation::DeviceProcesses(listed));
    let (total, used, free) = (Bytes(80 << 30), Bytes(78 << 30), Bytes(2 << 30));
    let reading = DeviceReading {
        span: Span::at(at(1.0)),
        uuid: "GPU-0".into(),
        index: 0,
        name: "test".into(),
        pci: "00000000:01:00.0".into(),
        parent: None,
        instance: None,
        memory: Some(DeviceMemory { total, reserved: None, used, free }),
        utilisation_percent: None,
        problem: String::new(),
    };
    node.observe(at(1.0), Observation::Device(Box::new(reading)));
    let taken = ProcessChange::Allocated { allocated: Bytes(2 << 30), freed: Bytes(1 << 20), failed: 0 };
    happens(&mut node, at(1.02), WORKER, taken);
    let requested = Some(Bytes(96 << 20));
    happens(&mut node, at(1.03), WORKER, ProcessChange::AllocationFailed { requested, call: "cuMemCreate" });
    let events = told(&mut node, at(1.1));
    // 1 MiB of the 2 GiB is left: it failed for want of memory.
    assert_eq!(events[0].kind, EventKind::AllocationFailed);
    assert!(events[0].message.ends_with("; 1048576 bytes free"), "{}", events[0].message);
}

#[test]
fn a_planned_stop_drains_first_and_is_no_loss() {
    let mut node = node();
    happens(&mut node, at(1.0), API, signal(SIGTERM, "systemd"));
    let (draining, why) = state(&mut node, at(1.0));
    assert_eq!(draining, EngineState::Draining);
    assert_eq!(why, "its API server (pid 100) was sent SIGTERM by systemd (pid 7)");
    let denial = node.admit(at(1.1), &request(10, Some(10))).unwrap();
    assert_eq!(denied(&denial).reason, Reason::EngineDraining);
    happens(&mut node, at(5.0), CORE, exit(Some(0), None));
    happens(&mut node, at(5.1), API, exit(Some(0), None));
    let events = told(&mut node, at(6.0));
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::EngineDraining, EventKind::EngineStopped]);
    assert_eq!(events[1].message, "engine e: stopped as planned: systemd (pid 7) sent SIGTERM");
}

#[test]
fn helpers_that_are_killed_and_processes_of_others_close_nothing() {
    let mut node = node();
    happens(&mut node, at(1.0), HELPER, signal(SIGKILL, "bash"));
    happens(&mut node, at(1.1), HELPER, exit(None, Some(SIGKILL)));
    happens(&mut node, at(1.2), 9999, exit(Some(1), None));
    assert_eq!(told(&mut node, at(2.0)), []);
    let _ = admitted(&node.admit(at(2.0), &request(10, Some(10))).unwrap());
}

#[test]
fn a_process_that_took_the_pid_of_a_dead_one_is_another() {
    let mut node = node();
    let what = exit(Some(1), None);
    let span = Span::at(at(1.0));
    let event =
        ProcessEvent { span, pid: CORE, start_ticks: Some(77), comm: "x".into(), watched: true, what };
    node.observe(at(1.0), Observation::Process(Box::new(event)));
    let _ = admitted(&node.admit(at(1.1), &request(10, Some(10))).unwrap());
}

#[test]
fn one_that_makes_steps_long_after_its_signal_has_survived_and_is_open_again() {
    let mut node = node();
    let running = |steps| RankReading { steps: Some(steps), ..rank(0, 100, 20, 2, 0, 3) };
    node.observe(at(0.9), reading("e", at(0.9), vec![running(10)]));
    happens(&mut node, at(1.0), CORE, signal(SIGSEGV, "bash"));
    // What was on its way when it died looks like steps, too.
    node.observe(at(1.2), reading("e", at(1.2), vec![running(11)]));
    closed(&mut node, at(1.3));
    node.observe(at(7.0), reading("e", at(7.0), vec![running(90)]));
    assert_eq!(state(&mut node, at(7.1)).0, EngineState::Ready);
    let kinds: Vec<_> = told(&mut node, at(8.0)).iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [], "it was never lost");
}

#[test]
fn with_neither_an_exit_nor_a_sign_of_life_it_is_tried_with_one_request_at_a_time() {
    let mut node = node();
    happens(&mut node, at(1.0), CORE, signal(SIGABRT, "bash"));
    closed(&mut node, at(15.0));
    node.handle_timeout(at(16.5));
    assert_eq!(state(&mut node, at(16.5)).0, EngineState::Suspect);
    let _ = admitted(&node.admit(at(16.6), &request(10, Some(10))).unwrap());
    let denial = node.admit(at(16.7), &request(10, Some(10))).unwrap();
    assert_eq!(denied(&denial).reason, Reason::EngineSuspect);
}

#[test]
fn discovery_that_is_faster_than_the_kernels_event_does_not_hide_the_author() {
    let mut node = node();
    node.observe(at(1.0), Observation::Engine(Box::new(facts("e", 1600, at(1.0))))); // EngineCore and worker gone
    happens(&mut node, at(1.05), WORKER, exit(None, Some(SIGSEGV)));
    let (kind, cause, _) = loss(&mut node, at(1.5));
    assert_eq!((kind, cause), (EventKind::EngineDown, Cause::Crash));
}

#[test]
fn an_oom_kill_of_somebody_else_is_told_as_such() {
    let mut node = node();
    let what = ProcessChange::OomVictim { rss: None, scope: Some(OomScope::Machine) };
    let span = Span::at(at(1.0));
    let event =
        ProcessEvent { span, pid: 4000, start_ticks: None, comm: "trainer".into(), watched: false, what };
    node.observe(at(1.0), Observation::Process(Box::new(event)));
    let events = told(&mut node, at(1.5));
    assert_eq!(events[0].kind, EventKind::OomKill);
    let message = "the kernel's OOM killer killed trainer (pid 4000): the machine ran out of memory";
    assert_eq!(events[0].message, message);
    let _ = admitted(&node.admit(at(1.6), &request(10, Some(10))).unwrap());
}

#[test]
fn a_driver_that_hangs_after_an_xid_is_one_trouble() {
    let mut node = node();
    for (when, event) in
        [(1.0, DeviceEvent::Xid { code: 119 }), (3.0, DeviceEvent::Hung), (5.0, DeviceEvent::Lost)]
    {
        let span = Span::at(at(when));
        node.observe(at(when), Observation::DeviceEvent { uuid: "GPU-0".into(), span, event });
    }
    let events = told(&mut node, at(6.0));
    let alerts: Vec<_> = events.iter().filter(|event| event.caused_by.is_none()).collect();
    assert_eq!((alerts.len(), events.len()), (1, 3));
}

fn seen(node: &mut Node, now: Mono, state: Scheduled) {
    let states = vec![ProcessState { pid: CORE, start_ticks: 1, state }];
    node.observe(now, Observation::Host(HostFact::Processes { span: Span::at(now), states }));
}

#[test]
fn one_that_is_seen_alive_after_the_bound_has_survived() {
    let mut node = node();
    happens(&mut node, at(1.0), CORE, signal(SIGSEGV, "bash"));
    seen(&mut node, at(2.0), Scheduled::Normal);
    closed(&mut node, at(2.0));
    seen(&mut node, at(3.5), Scheduled::Ending); // it writes its core dump
    closed(&mut node, at(3.5));
    seen(&mut node, at(4.0), Scheduled::Normal);
    let _ = admitted(&node.admit(at(4.1), &request(10, Some(10))).unwrap());
    let why = "lives on: its EngineCore (pid 101) was sent SIGSEGV by bash (pid 7), and it did not end";
    assert_eq!(state(&mut node, at(4.1)), (EngineState::Ready, why.into()));
}

#[test]
fn a_frozen_engine_tells_what_the_scheduler_says_of_it() {
    let mut node = node();
    let running = RankReading { steps: Some(10), ..rank(0, 100, 20, 2, 0, 3) };
    node.observe(at(0.6), reading("e", at(0.6), vec![running.clone()]));
    seen(&mut node, at(1.0), Scheduled::Stopped);
    node.observe(at(3.0), reading("e", at(3.0), vec![running]));
    let why = "requests are due, but no step for 2.4 s: its EngineCore (pid 101) is stopped (T)";
    assert_eq!(state(&mut node, at(3.0)), (EngineState::Suspect, why.into()));
}

/// Lets the engine start again and answer a second later.
fn starts(node: &mut Node, start: f64) {
    let mut anew = facts("e", 16_000, at(start));
    anew.processes[0].start_ticks = at(start).0;
    anew.processes.push(EngineProcess { pid: CORE, start_ticks: 1, role: ProcessRole::EngineCore });
    node.observe(at(start), Observation::Engine(Box::new(anew)));
    node.observe(at(start + 1.0), reading("e", at(start + 1.0), vec![rank(0, 1000, 0, 0, 0, 0)]));
}

/// Lets the engine run out of device memory with a prompt of `tokens` in flight, and start again.
fn runs_out(node: &mut Node, start: f64, tokens: u64, failed_allocation: bool) {
    starts(node, start);
    let _ = admitted(&node.admit(at(start + 2.0), &request(tokens, Some(10))).unwrap());
    if failed_allocation {
        let what = ProcessChange::AllocationFailed { requested: Some(Bytes(96 << 20)), call: "cuMemCreate" };
        happens(node, at(start + 3.0), CORE, what);
    }
    happens(node, at(start + 3.5), CORE, exit(Some(1), None));
    node.handle_timeout(at(start + 4.0));
}

#[test]
fn prompts_of_a_size_that_ended_an_engine_twice_are_held_back_until_they_are_cleared() {
    let mut node = node();
    runs_out(&mut node, 10.0, 6000, true);
    runs_out(&mut node, 100.0, 6000, true);
    assert_eq!(node.guards(at(110.0)).len(), 1);
    // Alive again: the deadly size is held back, others are served.
    starts(&mut node, 119.0);
    let denial = node.admit(at(121.0), &request(6100, Some(10))).unwrap();
    assert_eq!(denied(&denial).reason, Reason::LearnedGuard);
    assert!(denied(&denial).message.contains("prompts of 5793 to 8191 tokens have ended engine e"));
    let _ = admitted(&node.admit(at(121.0), &request(4000, Some(10))).unwrap());
    assert_eq!(node.snapshot(at(121.0)).engines[0].guards.len(), 1);
    assert_eq!(node.clear_guards(at(122.0), Some("other")), 0);
    assert_eq!(node.clear_guards(at(122.0), None), 1);
    let _ = admitted(&node.admit(at(123.0), &request(6100, Some(10))).unwrap());
    let events = node.history().after(0, usize::MAX).0;
    let guard = |event: &&Event| matches!(event.kind, EventKind::GuardSet | EventKind::GuardLifted);
    assert_eq!(events.iter().filter(guard).count(), 2);
}

#[test]
fn a_death_of_another_cause_between_two_is_an_alibi() {
    let mut node = node();
    runs_out(&mut node, 10.0, 6000, true);
    runs_out(&mut node, 100.0, 6000, false);
    runs_out(&mut node, 200.0, 6000, true);
    assert_eq!(node.guards(at(210.0)), vec![]);
}

#[test]
fn guards_outlive_the_daemon() {
    let mut before = node();
    runs_out(&mut before, 10.0, 6000, true);
    runs_out(&mut before, 100.0, 6000, true);
    let mut after = node();
    after.take_up_guards(at(0.5), before.keep_guards(at(200.0)));
    let denial = after.admit(at(1.0), &request(1000, Some(10))).unwrap();
    assert!(matches!(denial.verdict, gpuadmit_core::request::Verdict::Admit(_)));
    assert_eq!(after.guards(at(1.0)).len(), 1);
}

#[test]
fn a_failed_allocation_that_is_told_late_explains_the_end_all_the_same() {
    for late in [0.0, 0.004, 0.006, 0.3, 5.0] {
        let mut node = node();
        let failed =
            ProcessChange::AllocationFailed { requested: Some(Bytes(96 << 20)), call: "cuMemCreate" };
        happened(&mut node, at(1.0 + late), at(1.0), CORE, failed);
        happened(&mut node, at(1.0 + late), at(1.0), CORE, exit(Some(1), None));
        closed(&mut node, at(1.0 + late));
        let events = told(&mut node, at(1.6 + late));
        let down = events.iter().find(|event| event.kind == EventKind::EngineDown).unwrap();
        assert_eq!(down.cause, Some(Cause::CudaOom), "{late}: {}", down.message);
    }
}

/// Every order of `facts`.
fn orders(facts: &[Observation]) -> Vec<Vec<Observation>> {
    let Some((last, rest)) = facts.split_last() else { return vec![vec![]] };
    let insert = |order: Vec<Observation>| {
        (0..=order.len()).map(move |place| {
            let mut longer = order.clone();
            longer.insert(place, last.clone());
            longer
        })
    };
    orders(rest).into_iter().flat_map(insert).collect()
}

/// What happened to `pid` at `seconds`.
fn fact(seconds: f64, pid: u32, what: ProcessChange) -> Observation {
    let (span, comm) = (Span::at(at(seconds)), "VLLM".into());
    Observation::Process(Box::new(ProcessEvent {
        span,
        pid,
        start_ticks: Some(1),
        comm,
        watched: true,
        what,
    }))
}

fn refused(seconds: f64) -> Observation {
    let span = Span::at(at(seconds));
    Observation::ScrapeFailed { engine: e(), span, failure: ScrapeFailure::Refused }
}

/// Facts that come of an end at 1.0, as the kernel dates them, and its author.
fn ends() -> Vec<(Vec<Observation>, Cause)> {
    let exits = |code, signal| fact(1.01, CORE, exit(code, signal));
    let scope = Some(OomScope::Cgroup("/engines".into()));
    let failed = ProcessChange::AllocationFailed { requested: Some(Bytes(96 << 20)), call: "cuMemCreate" };
    let xid = DeviceEvent::Xid { code: 31 };
    let xid = Observation::DeviceEvent { uuid: "GPU-0".into(), span: Span::at(at(0.99)), event: xid };
    let signalled = |number, sender| vec![fact(1.0, CORE, signal(number, sender)), exits(None, Some(number))];
    vec![
        (signalled(SIGKILL, "bash"), Cause::Killed),
        (signalled(SIGKILL, "systemd-oomd"), Cause::OomDaemon),
        (signalled(SIGSEGV, "kernel"), Cause::Crash),
        (
            vec![
                fact(1.0, CORE, ProcessChange::OomVictim { rss: None, scope: None }),
                fact(1.02, CORE, ProcessChange::OomVictim { rss: None, scope }),
                exits(None, Some(SIGKILL)),
            ],
            Cause::KernelOom,
        ),
        (vec![fact(0.99, CORE, failed), exits(Some(1), None)], Cause::CudaOom),
        (vec![xid, exits(Some(1), None)], Cause::Xid),
        (vec![exits(Some(1), None), fact(1.03, WORKER, signal(SIGKILL, "vllm"))], Cause::Exit),
    ]
}

fn losses(node: &mut Node, now: Mono) -> Vec<Option<Cause>> {
    let down = |event: &Event| matches!(event.kind, EventKind::EngineDown | EventKind::EngineStopped);
    told(node, now).into_iter().filter(down).map(|event| event.cause).collect()
}

/// A node whose engine holds a GPU.
fn node_with_gpu() -> Node {
    let mut node = node();
    let processes = vec![DeviceProcess { pid: WORKER, used: Some(Bytes(1 << 30)) }];
    let listed = DeviceProcesses { span: Span::at(at(0.2)), uuid: "GPU-0".into(), processes };
    node.observe(at(0.2), Observation::DeviceProcesses(listed));
    node
}

#[test]
fn an_end_is_told_once_with_its_author_in_whatever_order_the_facts_arrive() {
    let gone = Observation::EngineGone { engine: e(), span: Span::at(at(1.1)), evidence: "gone".into() };
    // Discovery sees the API server alone, then finds it gone as well; a scrape that was answered before comes late.
    let others = [
        refused(1.1),
        gone,
        Observation::Engine(Box::new(facts("e", 1600, at(1.1)))),
        reading("e", at(0.9), vec![rank(0, 100, 0, 0, 0, 0)]),
    ];
    for (end, cause) in ends() {
        for order in orders(&[end, others.to_vec()].concat()) {
            let mut node = node_with_gpu();
            let mut now = at(1.2);
            for fact in &order {
                node.observe(now, fact.clone());
                node.handle_timeout(now);
                now = now + Duration::from_millis(30);
            }
            assert_eq!(losses(&mut node, at(5.0)), [Some(cause)], "{order:#?}");
            assert_eq!(state(&mut node, at(5.0)).0, EngineState::Down, "{order:#?}");
        }
    }
}

/// The kernel source says that it has told all that happened before `seconds`.
fn kernel_has_told(node: &mut Node, now: f64, seconds: f64) {
    let span = Span { not_before: at(seconds), not_after: at(now) };
    let report = SourceReport {
        source: "kernel".into(),
        span,
        health: SourceHealth::Ok,
        detail: "works".into(),
        busy: None,
    };
    node.observe(at(now), Observation::Source(report));
}

#[test]
fn a_kernel_source_that_lags_is_waited_for_until_it_has_told_what_came_before() {
    for (end, cause) in ends() {
        let mut node = node_with_gpu();
        kernel_has_told(&mut node, 0.95, 0.9);
        node.observe(at(1.1), refused(1.1));
        closed(&mut node, at(1.1));
        assert_eq!(losses(&mut node, at(8.0)), [], "it has not told what happened at 1.0");
        for fact in end {
            node.observe(at(8.1), fact);
        }
        assert_eq!(losses(&mut node, at(9.0)), [Some(cause)]);
    }
    let mut node = node_with_gpu();
    kernel_has_told(&mut node, 0.95, 0.9);
    node.observe(at(1.1), refused(1.1));
    assert_eq!(losses(&mut node, at(4.0)), []);
    kernel_has_told(&mut node, 4.1, 4.0);
    assert_eq!(losses(&mut node, at(4.5)), [Some(Cause::Unseen)], "it has nothing to tell of it");
}

#[test]
fn a_reading_that_was_asked_for_before_an_end_does_not_open_the_engine_again() {
    let mut node = node();
    let gone = Observation::EngineGone { engine: e(), span: Span::at(at(1.1)), evidence: "gone".into() };
    node.observe(at(1.1), gone);
    node.observe(at(1.2), reading("e", at(1.0), vec![rank(0, 100, 0, 0, 0, 0)]));
    closed(&mut node, at(1.2));
    node.observe(at(1.4), reading("e", at(1.3), vec![rank(0, 100, 0, 0, 0, 0)]));
    let _ = admitted(&node.admit(at(1.5), &request(10, Some(10))).unwrap());
}
