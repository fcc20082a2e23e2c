//! "First, do no harm": the rules that keep the daemon from becoming the outage, each with its own test.

use std::time::Duration;

use gpuadmit_core::{
    node::{Completed, Node, Standing},
    observation::{
        DeviceMemory, DeviceProcess, DeviceProcesses, DeviceReading, EngineProcess, Observation, ProcessRole,
        RankReading, ScrapeFailure,
    },
    request::{Reason, Reference, SessionId},
    settings::{Mode, Settings},
    snapshot::EngineState,
    units::{Blocks, Bytes, Mono, Span, Tokens},
};
use gpuadmit_tests::node_kit::{
    admitted, at, complete, denied, e, facts, rank, reading, ready_node, request, strict,
};

fn state(node: &mut Node, now: Mono) -> EngineState {
    node.snapshot(now).engines[0].state
}

// Rule 1: a fresh reading with nothing running and nothing waiting empties the ledger of all it could have shown.

#[test]
fn an_idle_reading_empties_the_ledger_whatever_was_lost_before() {
    let mut node = ready_node(strict(), 100);
    for _ in 0..3 {
        let mut lost = request(400, Some(100)); // 32 blocks each, never completed
        lost.session = Some(SessionId(1));
        let _ = admitted(&node.admit(at(1.0), &lost).unwrap());
    }
    node.session_broken(at(1.1), SessionId(1));
    assert_eq!(denied(&node.admit(at(1.2), &request(400, Some(100))).unwrap()).reason, Reason::KvFull);
    node.observe(at(2.5), reading("e", at(2.5), vec![rank(0, 100, 0, 0, 0, 3)]));
    assert_eq!(node.reservations(), 0);
    let _ = admitted(&node.admit(at(2.6), &request(400, Some(100))).unwrap());
}

#[test]
fn an_idle_reading_keeps_what_may_still_be_on_its_way() {
    let mut node = ready_node(strict(), 100);
    let id = admitted(&node.admit(at(1.0), &request(400, Some(100))).unwrap()).reservation;
    node.observe(at(1.05), reading("e", at(1.05), vec![rank(0, 100, 0, 0, 0, 0)]));
    assert_eq!(node.standing(id), Standing::Live);
}

#[test]
fn an_idle_engine_admits_what_fits_it_even_when_its_gauge_is_stuck() {
    let mut node = ready_node(strict(), 100);
    // vllm #29928: the gauge sticks at 99 % after a mass cancel.
    node.observe(at(1.0), reading("e", at(1.0), vec![rank(0, 100, 99, 0, 0, 40)]));
    let _ = admitted(&node.admit(at(1.1), &request(1000, Some(600))).unwrap());
    // The next must wait for that one to show: the gauge may be right.
    assert_eq!(denied(&node.admit(at(1.2), &request(1000, Some(600))).unwrap()).reason, Reason::KvFull);
}

#[test]
fn an_idle_engine_admits_what_fits_it_above_the_operators_ceiling() {
    let settings = Settings { ceiling: 0.5, ..strict() };
    let mut node = ready_node(settings, 100);
    let _ = admitted(&node.admit(at(0.1), &request(1000, Some(300))).unwrap());
    assert_eq!(denied(&node.admit(at(0.2), &request(10, Some(10))).unwrap()).reason, Reason::KvFull);
}

// Rule 2: only the death of an engine's own processes closes it.

#[test]
fn helpers_that_come_and_go_change_nothing() {
    let mut node = ready_node(strict(), 100);
    let id = admitted(&node.admit(at(0.1), &request(10, Some(10))).unwrap()).reservation;
    for start in 1..20 {
        let mut with_helper = facts("e", 1600, at(0.2));
        let helper = EngineProcess { pid: 500, start_ticks: start, role: ProcessRole::Helper };
        with_helper.processes.push(helper);
        node.observe(at(0.2), Observation::Engine(Box::new(with_helper)));
        node.observe(at(0.3), Observation::Engine(Box::new(facts("e", 1600, at(0.3)))));
    }
    assert_eq!(state(&mut node, at(0.4)), EngineState::Ready);
    assert_eq!(node.standing(id), Standing::Live);
}

#[test]
fn the_death_of_its_processes_closes_it_and_drops_what_it_held() {
    let mut node = ready_node(strict(), 100);
    let id = admitted(&node.admit(at(0.1), &request(10, Some(10))).unwrap()).reservation;
    let gone = Observation::EngineGone { engine: e(), span: Span::at(at(0.2)), evidence: "killed".into() };
    node.observe(at(0.2), gone);
    assert_eq!(denied(&node.admit(at(0.3), &request(10, Some(10))).unwrap()).reason, Reason::EngineDown);
    assert_eq!(node.standing(id), Standing::Ended);
    assert_eq!(complete(&mut node, at(0.4), id), Completed::Ended);
    // It answers again: open, with nothing left of its former life.
    let mut anew = facts("e", 1600, at(5.0));
    anew.processes[0].start_ticks = 99;
    node.observe(at(5.0), Observation::Engine(Box::new(anew)));
    node.observe(at(6.0), reading("e", at(6.0), vec![rank(0, 100, 0, 0, 0, 0)]));
    let _ = admitted(&node.admit(at(6.1), &request(1000, Some(600))).unwrap());
}

#[test]
fn a_dead_engine_core_closes_it_although_its_api_server_goes_on_answering() {
    let mut node = ready_node(strict(), 100);
    let with_core = |start| {
        let mut facts = facts("e", 1600, at(0.1));
        facts.processes.push(EngineProcess { pid: 101, start_ticks: start, role: ProcessRole::EngineCore });
        Observation::Engine(Box::new(facts))
    };
    node.observe(at(0.1), with_core(5));
    let stale = |steps| RankReading { steps: Some(steps), ..rank(0, 100, 40, 2, 0, 3) };
    node.observe(at(0.2), reading("e", at(0.2), vec![stale(50)]));
    node.observe(at(0.3), Observation::Engine(Box::new(facts("e", 1600, at(0.3)))));
    // The API server serves the last figures for seconds; the last outputs on their way still move them.
    node.observe(at(0.4), reading("e", at(0.4), vec![stale(50)]));
    node.observe(at(0.45), reading("e", at(0.45), vec![stale(50 + 1)]));
    assert_eq!(denied(&node.admit(at(0.5), &request(10, Some(10))).unwrap()).reason, Reason::EngineDown);
    // A step shows that it lives after all.
    let stepped = RankReading { steps: Some(52), ..rank(0, 100, 0, 0, 0, 5) };
    node.observe(at(6.0), reading("e", at(6.0), vec![stepped]));
    let _ = admitted(&node.admit(at(6.1), &request(10, Some(10))).unwrap());
}

// Rule 3: a low level of free device memory is healthy where the engine pre-allocates.

fn device(now: Mono, free: u64, co_tenant: u64) -> [Observation; 2] {
    let total = 80_u64 << 30;
    let reading = DeviceReading {
        span: Span::at(now),
        uuid: "GPU-0".into(),
        index: 0,
        name: "test".into(),
        pci: "00000000:01:00.0".into(),
        parent: None,
        instance: None,
        memory: Some(DeviceMemory {
            total: Bytes(total),
            reserved: None,
            used: Bytes(total - free),
            free: Bytes(free),
        }),
        utilisation_percent: None,
        problem: String::new(),
    };
    let processes = vec![
        DeviceProcess { pid: 100, used: Some(Bytes(total - free - co_tenant)) },
        DeviceProcess { pid: 4000, used: Some(Bytes(co_tenant)) },
    ];
    let listed = DeviceProcesses { span: Span::at(now), uuid: "GPU-0".into(), processes };
    [Observation::DeviceProcesses(listed), Observation::Device(Box::new(reading))]
}

fn observe_device(node: &mut Node, now: Mono, free: u64, co_tenant: u64) {
    for observation in device(now, free, co_tenant) {
        node.observe(now, observation);
    }
}

#[test]
fn a_sole_tenant_with_almost_no_free_memory_is_healthy() {
    let mut node = ready_node(strict(), 100);
    observe_device(&mut node, at(0.1), 50 << 20, 0);
    let _ = admitted(&node.admit(at(0.2), &request(10, Some(10))).unwrap());
}

#[test]
fn a_co_tenant_that_was_there_before_the_engine_is_no_danger() {
    let mut node = ready_node(strict(), 100);
    observe_device(&mut node, at(0.1), 50 << 20, 20 << 30);
    let _ = admitted(&node.admit(at(0.2), &request(10, Some(10))).unwrap());
}

#[test]
fn a_co_tenant_that_grows_while_little_is_free_denies_until_it_recedes_or_the_figures_age() {
    let mut node = ready_node(strict(), 100);
    observe_device(&mut node, at(0.1), 8 << 30, 1 << 30);
    observe_device(&mut node, at(1.0), 6 << 30, 3 << 30);
    let _ = admitted(&node.admit(at(1.1), &request(10, Some(10))).unwrap()); // growth, but much is free
    observe_device(&mut node, at(2.0), 512 << 20, 8 << 30);
    let denial = node.admit(at(2.1), &request(10, Some(10))).unwrap();
    assert_eq!(denied(&denial).reason, Reason::DeviceMemory);
    let kinds: Vec<_> = node.snapshot(at(2.2)).events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "CO_TENANT_GROWTH").count(), 1);
    // NVML hangs: after the figures have aged the guard is off.
    let _ = admitted(&node.admit(at(4.5), &request(10, Some(10))).unwrap());
    observe_device(&mut node, at(5.0), 512 << 20, 8 << 30);
    assert_eq!(denied(&node.admit(at(5.1), &request(10, Some(10))).unwrap()).reason, Reason::DeviceMemory);
    observe_device(&mut node, at(6.0), 8 << 30, 1 << 30);
    let _ = admitted(&node.admit(at(6.1), &request(10, Some(10))).unwrap());
}

// Rule 4: no state closes for ever.

#[test]
fn a_frozen_engine_reopens_by_its_probe() {
    let mut node = ready_node(strict(), 100);
    let running = |steps| RankReading { steps: Some(steps), ..rank(0, 100, 90, 3, 0, 5) };
    node.observe(at(0.2), reading("e", at(0.2), vec![running(10)]));
    node.observe(at(0.4), reading("e", at(0.4), vec![running(11)]));
    for tick in 3..15 {
        let now = at(f64::from(tick) * 0.2);
        node.observe(now, reading("e", now, vec![running(11)]));
    }
    assert_eq!(state(&mut node, at(2.9)), EngineState::Suspect);
    // One goes through although the gauge says full; the next does not.
    let _ = admitted(&node.admit(at(2.9), &request(100, Some(400))).unwrap());
    assert_eq!(denied(&node.admit(at(3.0), &request(10, Some(10))).unwrap()).reason, Reason::EngineSuspect);
    // No step: stalled, and probed on.
    node.observe(at(6.0), reading("e", at(6.0), vec![running(11)]));
    assert_eq!(state(&mut node, at(6.0)), EngineState::Stalled);
    assert_eq!(denied(&node.admit(at(6.1), &request(10, Some(10))).unwrap()).reason, Reason::EngineStalled);
    let _ = admitted(&node.admit(at(30.0), &request(10, Some(10))).unwrap());
    node.observe(at(31.0), reading("e", at(31.0), vec![running(12)]));
    assert_eq!(state(&mut node, at(31.0)), EngineState::Ready);
}

#[test]
fn a_refused_engine_opens_with_its_next_reading() {
    let mut node = ready_node(strict(), 100);
    let failure = ScrapeFailure::Refused;
    node.observe(at(1.0), Observation::ScrapeFailed { engine: e(), span: Span::at(at(1.0)), failure });
    let denial = node.admit(at(1.1), &request(10, Some(10))).unwrap();
    assert_eq!((denied(&denial).reason, denied(&denial).reason.http_status()), (Reason::EngineDown, 503));
    node.observe(at(2.0), reading("e", at(2.0), vec![rank(0, 100, 0, 0, 0, 0)]));
    let _ = admitted(&node.admit(at(2.1), &request(10, Some(10))).unwrap());
}

#[test]
fn an_unreadable_engine_that_lives_is_served_by_the_ledger_alone() {
    let mut node = ready_node(strict(), 100);
    let failure = ScrapeFailure::Status(401);
    node.observe(at(10.0), Observation::ScrapeFailed { engine: e(), span: Span::at(at(10.0)), failure });
    assert_eq!(state(&mut node, at(10.0)), EngineState::Unknown);
    let _ = admitted(&node.admit(at(10.1), &request(800, Some(400))).unwrap()); // 75 of 100 blocks
    assert_eq!(denied(&node.admit(at(10.2), &request(800, Some(400))).unwrap()).reason, Reason::KvFull);
}

#[test]
fn a_sleeping_engine_opens_when_it_wakes() {
    let mut node = ready_node(strict(), 100);
    let asleep = |now, asleep| match reading("e", now, vec![rank(0, 100, 0, 0, 0, 0)]) {
        Observation::Reading { engine, mut reading } => {
            reading.asleep = Some(asleep);
            Observation::Reading { engine, reading }
        }
        other => other,
    };
    node.observe(at(1.0), asleep(at(1.0), true));
    assert_eq!(denied(&node.admit(at(1.1), &request(10, None)).unwrap()).reason, Reason::EngineAsleep);
    node.observe(at(2.0), asleep(at(2.0), false));
    let _ = admitted(&node.admit(at(2.1), &request(10, None)).unwrap());
}

#[test]
fn an_orphan_is_forgotten_at_its_cap_whatever_the_engine_shows() {
    let mut node = ready_node(strict(), 100);
    let id = admitted(&node.admit(at(0.1), &request(100, Some(100))).unwrap()).reservation;
    let mut now = 0.2;
    while now < 700.0 {
        // Somebody else's request keeps the engine busy all the time.
        let busy = RankReading { steps: Some(10), ..rank(0, 100, 20, 2, 0, 0) };
        node.observe(at(now), reading("e", at(now), vec![busy]));
        node.handle_timeout(at(now));
        if now > 62.0 && now < 650.0 {
            assert_eq!(node.standing(id), Standing::Orphan, "at {now}");
        }
        now += 1.0;
    }
    assert_eq!(node.standing(id), Standing::Ended);
}

// Rule 7: an unknown version, or a pool whose size cannot be learned, is only observed.

#[test]
fn an_unknown_version_is_observed() {
    let mut node = ready_node(strict(), 10);
    let mut unknown = facts("e", 160, at(0.1));
    unknown.version_known = false;
    node.observe(at(0.1), Observation::Engine(Box::new(unknown)));
    for _ in 0..5 {
        let _ = admitted(&node.admit(at(0.2), &request(100, Some(50))).unwrap());
    }
    let snapshot = node.snapshot(at(0.3));
    assert_eq!(snapshot.engines[0].mode, Mode::Observe);
    assert_eq!(snapshot.decisions.would_have_denied, 4);
}

#[test]
fn a_pool_of_unknown_size_does_not_deny_but_static_limits_and_process_state_do() {
    let mut node = Node::new(strict(), 7);
    node.observe(at(0.0), Observation::Engine(Box::new(facts("e", 4096, at(0.0)))));
    let unsized_pool = RankReading { num_gpu_blocks: None, ..rank(0, 100, 99, 5, 0, 0) };
    node.observe(at(0.1), reading("e", at(0.1), vec![unsized_pool]));
    for _ in 0..50 {
        let _ = admitted(&node.admit(at(0.2), &request(2000, Some(1000))).unwrap());
    }
    assert_eq!(denied(&node.admit(at(0.3), &request(5000, None)).unwrap()).reason, Reason::ContextTooLong);
    let gone = Observation::EngineGone { engine: e(), span: Span::at(at(0.4)), evidence: "exit".into() };
    node.observe(at(0.4), gone);
    assert_eq!(denied(&node.admit(at(0.5), &request(10, None)).unwrap()).reason, Reason::EngineDown);
    assert_eq!(node.snapshot(at(0.6)).engines[0].headroom, None);
}

// Promises around the ledger.

#[test]
fn a_repeated_completion_succeeds_and_gives_back_once() {
    let mut node = ready_node(strict(), 100);
    let id = admitted(&node.admit(at(0.1), &request(800, Some(400))).unwrap()).reservation;
    assert_eq!(complete(&mut node, at(0.2), id), Completed::Held);
    assert_eq!(complete(&mut node, at(0.2), id), Completed::Ended);
    assert_eq!(node.snapshot(at(0.3)).engines[0].headroom.unwrap().blocks, Blocks(100));
    let never = gpuadmit_core::request::ReservationId::new(7, 999);
    assert_eq!(complete(&mut node, at(0.3), never), Completed::NeverGiven);
}

#[test]
fn an_id_was_given_out_by_this_run_or_by_one_that_it_took_over_from() {
    let id = gpuadmit_core::request::ReservationId::new;
    let mut node = ready_node(strict(), 100);
    let given = admitted(&node.admit(at(0.1), &request(800, Some(400))).unwrap()).reservation;
    assert_eq!(given, id(7, 1));
    // 0xabc is sequence 2748 of epoch 0.
    for (epoch, sequence) in [(0, 0xabc), (7, 0), (7, 2), (6, 1), (8, 1)] {
        let never = id(epoch, sequence);
        assert_eq!(complete(&mut node, at(0.2), never), Completed::NeverGiven, "{epoch}, {sequence}");
    }
    node.take_over(at(0.3), Vec::new(), Some(5));
    for (epoch, sequence) in [(5, 999), (6, 1)] {
        assert_eq!(complete(&mut node, at(0.4), id(epoch, sequence)), Completed::Ended, "{epoch}");
    }
    for (epoch, sequence) in [(4, 1), (6, 0), (8, 1)] {
        assert_eq!(complete(&mut node, at(0.4), id(epoch, sequence)), Completed::NeverGiven, "{epoch}");
    }
    assert_eq!(complete(&mut node, at(0.5), given), Completed::Held);
    assert_eq!(complete(&mut node, at(0.6), given), Completed::Ended);
}

#[test]
fn a_request_id_names_one_reservation() {
    let mut node = ready_node(strict(), 100);
    let mut asked = request(100, Some(100));
    asked.request_id = Some("r1");
    let first = admitted(&node.admit(at(0.1), &asked).unwrap()).reservation;
    assert_eq!(admitted(&node.admit(at(0.2), &asked).unwrap()).reservation, first);
    assert_eq!(node.reservations(), 1);
    let mut other = asked;
    other.max_tokens = Some(Tokens(50));
    assert!(node.admit(at(0.3), &other).unwrap_err().to_string().contains("used before with other content"));
    let by_name = Reference::Request { peer_uid: 0, tenant: "", request_id: "r1" };
    assert_eq!(node.complete(at(0.4), by_name, gpuadmit_tests::node_kit::OK), Completed::Held);
    assert_eq!(node.complete(at(0.5), by_name, gpuadmit_tests::node_kit::OK), Completed::Ended);
}

#[test]
fn a_silent_gateway_loses_its_lease_but_not_the_blocks_and_may_adopt_them() {
    let mut node = ready_node(strict(), 100);
    let id = admitted(&node.admit(at(0.1), &request(800, Some(400))).unwrap()).reservation;
    node.observe(at(0.3), reading("e", at(0.3), vec![rank(0, 100, 51, 1, 0, 0)]));
    for tick in 0..400_u32 {
        let now = at(0.4 + 0.2 * f64::from(tick));
        let running = RankReading { steps: Some(tick.into()), ..rank(0, 100, 60, 1, 0, 0) };
        node.observe(now, reading("e", now, vec![running]));
        node.handle_timeout(now);
    }
    assert_eq!(node.standing(id), Standing::Orphan);
    assert_eq!(denied(&node.admit(at(81.0), &request(800, Some(400))).unwrap()).reason, Reason::KvFull);
    assert_eq!(node.adopt(at(81.1), SessionId(2), &[id]), vec![id]);
    assert_eq!(node.standing(id), Standing::Live);
    // The engine shows nothing of it any more: an orphan goes at once.
    node.session_broken(at(81.2), SessionId(2));
    let other = RankReading { steps: Some(900), ..rank(0, 100, 0, 0, 0, 1) };
    node.observe(at(81.3), reading("e", at(81.3), vec![other]));
    assert_eq!(node.standing(id), Standing::Ended);
}

#[test]
fn several_ranks_need_room_on_each_unless_the_caller_forwards_the_rank() {
    // Four running on rank 0 and one on rank 1 are not ours; each may grow by one block.
    let settings = Settings { default_max_tokens: Tokens(16), ..strict() };
    let mut node = Node::new(settings, 7);
    node.observe(at(0.0), Observation::Engine(Box::new(facts("e", 1600, at(0.0)))));
    let ranks = vec![rank(0, 100, 90, 4, 0, 0), rank(1, 100, 10, 1, 0, 0)];
    node.observe(at(0.1), reading("e", at(0.1), ranks));
    let mut asked = request(300, Some(20)); // 20 blocks
    assert_eq!(denied(&node.admit(at(0.2), &asked).unwrap()).reason, Reason::KvFull);
    asked.forwards_rank = true;
    assert_eq!(admitted(&node.admit(at(0.3), &asked).unwrap()).rank, Some(1));
}

#[test]
fn a_denial_tells_when_room_is_predicted() {
    let mut node = ready_node(strict(), 100);
    // Requests of 10 blocks end at 2 a second: 20 blocks a second flow back.
    let mut now = 0.0;
    for _ in 0..100 {
        let id = admitted(&node.admit(at(now), &request(100, Some(60))).unwrap()).reservation;
        now += 0.5;
        assert_eq!(complete(&mut node, at(now), id), Completed::Held);
    }
    for _ in 0..10 {
        let _ = admitted(&node.admit(at(now), &request(100, Some(60))).unwrap());
    }
    let denial = node.admit(at(now), &request(300, Some(20))).unwrap(); // 20 blocks over
    let wait = denied(&denial).retry_after.unwrap();
    assert!(wait > Duration::from_millis(900) && wait < Duration::from_millis(1100), "{wait:?}");
}

#[test]
fn an_abort_that_no_counter_counts_does_not_hide_the_request_that_took_its_place() {
    let mut node = ready_node(strict(), 100);
    let first = admitted(&node.admit(at(0.1), &request(160, Some(160))).unwrap()).reservation;
    node.observe(at(0.2), reading("e", at(0.2), vec![rank(0, 100, 10, 1, 0, 0)]));
    let cancelled = gpuadmit_core::request::Completion {
        outcome: gpuadmit_core::request::Outcome::Cancelled,
        ..gpuadmit_tests::node_kit::OK
    };
    node.complete(at(0.25), Reference::Id(first), cancelled);
    let _ = admitted(&node.admit(at(0.26), &request(160, Some(160))).unwrap());
    // One left without being counted, another came: the counts are as before, and nothing is bypass traffic.
    let after = RankReading { steps: Some(9), ..rank(0, 100, 10, 1, 0, 0) };
    node.observe(at(0.3), reading("e", at(0.3), vec![after]));
    assert_eq!(node.snapshot(at(0.3)).engines[0].bypass_requests, Some(0));
}

#[test]
fn a_restart_is_told_once() {
    let mut node = ready_node(strict(), 100);
    let life = |now, start: f64, steps| match reading("e", now, vec![rank(0, 100, 0, 0, 0, steps)]) {
        Observation::Reading { engine, mut reading } => {
            reading.process_start = Some(start);
            Observation::Reading { engine, reading }
        }
        other => other,
    };
    node.observe(at(1.0), life(at(1.0), 500.0, 70));
    let mut anew = facts("e", 1600, at(2.0));
    anew.processes[0].start_ticks = 99;
    node.observe(at(2.0), Observation::Engine(Box::new(anew)));
    node.observe(at(3.0), life(at(3.0), 900.0, 0));
    let events = node.snapshot(at(3.1)).events;
    let told = events.iter().filter(|event| event.kind.as_str() == "ENGINE_RESTARTED").count();
    assert_eq!(told, 1);
    assert_eq!(state(&mut node, at(3.1)), EngineState::Ready);
}
