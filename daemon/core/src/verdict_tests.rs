use super::*;
use crate::{
    inquest::{Effect, When},
    observation::{EngineProcess, ProcessRole, Sender},
    testing::at,
};

const CORE: Who = Who { pid: 101, role: ProcessRole::EngineCore };
const WORKER: Who = Who { pid: 102, role: ProcessRole::Worker };

fn sender(comm: &str, pid: u32) -> Sender {
    Sender { pid, comm: comm.into(), kernel: false }
}

fn kernel() -> Sender {
    Sender { pid: CORE.pid, comm: "VLLM::EngineCor".into(), kernel: true }
}

/// Arrives when it happens.
fn when(seconds: f64) -> When {
    When { at: at(seconds), arrived: at(seconds) }
}

fn verdict_of(inquest: &mut Inquest) -> (Cause, String) {
    let verdict = inquest.verdict(at(60.0), None, false).expect("a verdict is due");
    (verdict.cause, verdict.sentence)
}

/// A fact about a death: given when it arrives, it says itself when it happened.
type Fact = (&'static str, fn(&mut Inquest, Mono));

fn told(seconds: f64, arrived: Mono) -> When {
    When { at: at(seconds), arrived }
}

/// Every order of `count` things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![vec![]] };
    let insert = |order: Vec<usize>| {
        (0..=order.len()).map(move |place| {
            let mut longer = order.clone();
            longer.insert(place, last);
            longer
        })
    };
    orders(last).into_iter().flat_map(insert).collect()
}

#[test]
fn there_are_as_many_orders_as_there_should_be() {
    assert_eq!(orders(3), [[2, 1, 0], [1, 2, 0], [1, 0, 2], [2, 0, 1], [0, 2, 1], [0, 1, 2]]);
    assert_eq!(orders(6).len(), 720);
}

/// All facts of each end, and the verdict as it follows from their times.
fn ends() -> Vec<(Vec<Fact>, Cause, &'static str)> {
    let refused: Fact = ("refused", |i, now| _ = i.gone(now, "nothing listens at its address".into()));
    let missing: Fact = ("missing", |i, now| _ = i.missing(now, ProcessRole::Worker));
    let xid: Fact = ("xid 31", |i, _| i.xid(at(0.9), 31, "GPU-0".into(), 7));
    let failed: Fact = ("failed", |i, _| i.allocation_failed(at(0.9), CORE, Some(Bytes(96 << 20)), 9));
    let follows: Fact = ("fails later", |i, _| i.allocation_failed(at(1.5), WORKER, None, 11));
    let stop: Fact =
        ("stop", |i, now| _ = i.signal(told(0.5, now), CORE, (SIGTERM, 0), sender("systemd", 1), false));
    let own_stop: Fact =
        ("own stop", |i, now| _ = i.signal(told(1.002, now), CORE, (SIGTERM, 0), sender("vllm", 100), true));
    let own_kill: Fact =
        ("own kill", |i, now| _ = i.signal(told(1.2, now), WORKER, (SIGKILL, 0), sender("vllm", 100), true));
    let killed: Fact =
        ("killed", |i, now| _ = i.signal(told(1.0, now), CORE, (SIGKILL, 0), sender("bash", 7), false));
    let by_kernel: Fact =
        ("by kernel", |i, now| _ = i.signal(told(1.0, now), CORE, (SIGKILL, SI_KERNEL), kernel(), true));
    let fault: Fact = ("fault", |i, now| _ = i.signal(told(1.0, now), CORE, (SIGSEGV, 1), kernel(), true));
    let mark: Fact = ("mark", |i, now| _ = i.marked(told(1.0001, now), CORE, None, None));
    let scope: Fact = ("scope", |i, now| {
        _ = i.marked(told(1.0002, now), CORE, Some(OomScope::Cgroup("/vllm".into())), None);
    });
    let other_mark: Fact = ("other mark", |i, now| _ = i.marked(told(1.001, now), WORKER, None, None));
    let dies: Fact = ("dies", |i, now| _ = i.exited(told(1.01, now), CORE, None, Some(SIGKILL)));
    let faults: Fact = ("faults", |i, now| _ = i.exited(told(1.01, now), CORE, None, Some(SIGSEGV)));
    let exits: Fact = ("exits", |i, now| _ = i.exited(told(1.0, now), CORE, Some(1), None));
    let other: Fact = ("other", |i, now| _ = i.exited(told(1.3, now), WORKER, None, Some(SIGKILL)));
    let unknown: Fact = ("unknown", |i, now| _ = i.exited(told(1.3, now), WORKER, None, None));
    let oom =
        "the kernel's OOM killer killed its EngineCore (pid 101): memory cgroup /vllm reached its limit";
    let cuda = "its EngineCore (pid 101) exited with code 1 0.1 s after a CUDA allocation of 100663296 bytes \
                failed for want of memory";
    let exited = "its EngineCore (pid 101) exited with code 1";
    vec![
        (vec![by_kernel, mark, scope, dies, other_mark, refused], Cause::KernelOom, oom),
        (vec![scope, dies, missing, refused, unknown], Cause::KernelOom, oom),
        (vec![failed, exits, own_stop, own_kill, other, refused], Cause::CudaOom, cuda),
        (vec![failed, follows, exits, unknown, missing], Cause::CudaOom, cuda),
        (
            vec![xid, exits, own_stop, own_kill, other, missing],
            Cause::Xid,
            "its EngineCore (pid 101) exited with code 1 after Xid 31 (an error of the process on it) on device GPU-0",
        ),
        (vec![exits, own_stop, own_kill, other, missing, refused], Cause::Exit, exited),
        (
            vec![killed, dies, own_stop, own_kill, other, refused],
            Cause::Killed,
            "bash (pid 7) killed its EngineCore (pid 101)",
        ),
        (
            vec![fault, faults, own_stop, own_kill, other, refused],
            Cause::Crash,
            "its EngineCore (pid 101) crashed with SIGSEGV",
        ),
        (
            vec![stop, own_stop, killed, dies, other, refused],
            Cause::Stopped,
            "stopped as planned: systemd (pid 1) sent SIGTERM",
        ),
    ]
}

#[test]
fn the_verdict_is_the_same_in_whatever_order_the_facts_arrive() {
    for (facts, cause, sentence) in ends() {
        for order in orders(facts.len()) {
            let mut inquest = Inquest::default();
            let arrived: Vec<&Fact> = order.iter().filter_map(|place| facts.get(*place)).collect();
            for (place, (_, fact)) in (0_u8..).zip(&arrived) {
                let now = at(2.0 + 0.04 * f64::from(place));
                fact(&mut inquest, now);
                assert_eq!(inquest.verdict(now, None, false), None, "before all facts have arrived");
            }
            let names: Vec<_> = arrived.iter().map(|(name, _)| *name).collect();
            assert_eq!(verdict_of(&mut inquest), (cause, sentence.to_owned()), "{names:?}");
        }
    }
}

#[test]
fn an_allocation_that_succeeded_after_all_explains_no_end_in_whatever_order_that_is_told() {
    let facts: [Fact; 3] = [
        ("failed", |i, _| i.allocation_failed(at(0.8), CORE, None, 9)),
        ("succeeded", |i, _| _ = i.allocation_succeeded(at(0.9), CORE)),
        ("exits", |i, now| _ = i.exited(told(1.0, now), CORE, Some(1), None)),
    ];
    for order in orders(facts.len()) {
        let mut inquest = Inquest::default();
        for place in &order {
            facts[*place].1(&mut inquest, at(2.0));
        }
        assert_eq!(verdict_of(&mut inquest).0, Cause::Exit, "{order:?}");
    }
}

#[test]
fn an_author_who_is_named_late_is_waited_for_once_more_and_no_longer() {
    let mut inquest = Inquest::default();
    inquest.gone(at(1.0), "connection refused".into());
    inquest.signal(told(0.9, at(2.9)), CORE, (SIGKILL, SI_KERNEL), kernel(), true);
    assert_eq!(inquest.verdict(at(2.95), None, false), None, "whose memory ran out may follow");
    inquest.marked(told(0.9, at(3.0)), CORE, Some(OomScope::Machine), None);
    let verdict = inquest.verdict(at(3.15), None, false).expect("due 250 ms after it was named");
    assert!(verdict.sentence.ends_with(": the machine ran out of memory"), "{}", verdict.sentence);
}

#[test]
fn an_exit_that_arrives_late_has_its_window_all_the_same() {
    let mut inquest = Inquest::default();
    inquest.exited(told(1.0, at(1.6)), CORE, Some(1), None);
    assert_eq!(inquest.verdict(at(1.6), None, false), None);
    inquest.xid(at(0.9), 31, "GPU-0".into(), 7);
    assert_eq!(inquest.verdict(at(1.9), None, false).map(|verdict| verdict.cause), Some(Cause::Xid));
}

#[test]
fn a_kernel_source_that_lags_is_waited_for_up_to_its_bound() {
    let gone = || {
        let mut inquest = Inquest::default();
        inquest.gone(at(1.0), "connection refused".into());
        inquest
    };
    let mut late = gone();
    assert_eq!(late.verdict(at(9.0), Some(at(0.9)), false), None, "it has not told what came before 1.0");
    late.marked(told(0.95, at(9.0)), CORE, Some(OomScope::Machine), None);
    assert_eq!(
        late.verdict(at(9.3), Some(at(0.9)), false).map(|verdict| verdict.cause),
        Some(Cause::KernelOom)
    );
    let mut seen_nothing = gone();
    assert_eq!(seen_nothing.verdict(at(2.9), Some(at(2.5)), false), None);
    assert!(seen_nothing.verdict(at(3.1), Some(at(2.5)), false).is_some(), "it has nothing more to tell");
    let mut hangs = gone();
    assert_eq!(hangs.verdict(at(15.9), Some(at(0.9)), false), None);
    let cause = hangs.verdict(at(16.1), Some(at(0.9)), false).map(|verdict| verdict.cause);
    assert_eq!(cause, Some(Cause::Unseen));
}

#[test]
fn an_end_by_sigkill_waits_for_who_sent_it_while_the_kernel_source_lags() {
    let mut inquest = Inquest::default();
    inquest.exited(when(1.0), CORE, None, Some(SIGKILL));
    assert_eq!(inquest.verdict(at(1.9), Some(at(0.5)), false), None);
    let mut caught_up = inquest.clone();
    let told =
        caught_up.verdict(at(1.9), Some(at(1.5)), false).map(|verdict| (verdict.cause, verdict.sentence));
    assert_eq!(told, Some((Cause::Killed, "its EngineCore (pid 101) was ended by SIGKILL".into())));
    inquest.marked(when(1.9), CORE, None, None);
    assert_eq!(
        inquest.verdict(at(2.2), Some(at(0.5)), false).map(|verdict| verdict.cause),
        Some(Cause::KernelOom)
    );
}

#[test]
fn facts_about_processes_that_are_no_longer_listed_find_their_engine() {
    let process = |pid| EngineProcess { pid, start_ticks: 1, role: ProcessRole::Worker };
    let mut inquest = Inquest::default();
    inquest.follow_processes(&[process(1), process(2), process(3)], &[process(1)]);
    inquest.follow_processes(&[process(1)], &[]);
    assert_eq!(inquest.former(), [process(2), process(3), process(1)]);
    inquest.follow_processes(&[], &[process(3)]);
    assert_eq!(inquest.former(), [process(2), process(1)]);
    for pid in 10..200 {
        inquest.follow_processes(&[process(pid)], &[]);
    }
    assert_eq!(inquest.former().len(), 64);
}

#[test]
fn an_oom_daemon_is_told_from_anybody_else_who_kills() {
    for (comm, cause) in [
        ("systemd-oomd", Cause::OomDaemon),
        ("earlyoom", Cause::OomDaemon),
        ("bash", Cause::Killed),
        ("", Cause::Killed),
    ] {
        let mut inquest = Inquest::default();
        inquest.signal(when(1.0), WORKER, (SIGKILL, 0), sender(comm, 77), false);
        inquest.exited(when(1.1), WORKER, None, Some(SIGKILL));
        assert_eq!(verdict_of(&mut inquest).0, cause, "{comm}");
    }
}

#[test]
fn a_request_to_stop_makes_all_that_follows_planned_but_not_an_oom_kill() {
    let mut inquest = Inquest::default();
    let drained = inquest.signal(when(1.0), CORE, (SIGTERM, 0), sender("systemd", 1), false);
    assert_eq!(drained, Effect::Drain("its EngineCore (pid 101) was sent SIGTERM by systemd (pid 1)".into()));
    inquest.signal(when(91.0), CORE, (SIGKILL, 0), sender("systemd", 1), false);
    inquest.exited(when(91.1), CORE, None, Some(SIGKILL));
    let mut other = inquest.clone();
    assert_eq!(inquest.verdict(at(92.0), None, false).map(|verdict| verdict.cause), Some(Cause::Stopped));
    other.marked(when(91.05), CORE, Some(OomScope::Machine), None);
    assert_eq!(other.verdict(at(92.0), None, false).map(|verdict| verdict.cause), Some(Cause::KernelOom));
}

#[test]
fn what_an_engine_does_to_its_own_processes_after_a_crash_is_not_the_author() {
    let mut inquest = Inquest::default();
    inquest.exited(when(1.0), WORKER, Some(1), None);
    inquest.signal(when(1.05), CORE, (SIGTERM, 0), sender("vllm", 100), true);
    inquest.signal(when(1.06), CORE, (SIGKILL, 0), sender("vllm", 100), true);
    inquest.exited(when(1.07), CORE, None, Some(SIGKILL));
    assert_eq!(verdict_of(&mut inquest), (Cause::Exit, "its worker (pid 102) exited with code 1".into()));
}

#[test]
fn an_xid_or_a_failed_allocation_shortly_before_explains_an_exit_and_later_ones_do_not() {
    let xid = |seconds| {
        let mut inquest = Inquest::default();
        inquest.exited(when(10.0), WORKER, Some(1), None);
        inquest.xid(at(seconds), 31, "GPU-0".into(), 7);
        inquest.verdict(at(60.0), None, false).map(|verdict| (verdict.cause, verdict.caused_by))
    };
    assert_eq!(xid(8.0), Some((Cause::Xid, Some(7))));
    assert_eq!(xid(10.1), Some((Cause::Exit, None)), "Xid 45 follows a kill");
    let mut inquest = Inquest::default();
    inquest.allocation_failed(at(8.0), WORKER, Some(Bytes(96 << 20)), 9);
    inquest.exited(when(10.0), CORE, Some(1), None);
    let told = "its EngineCore (pid 101) exited with code 1 2.0 s after a CUDA allocation of 100663296 bytes \
                failed for want of memory";
    assert_eq!(verdict_of(&mut inquest), (Cause::CudaOom, told.into()));
    let mut inquest = Inquest::default();
    inquest.allocation_failed(at(8.0), WORKER, None, 9);
    inquest.exited(when(28.0), CORE, Some(1), None);
    assert_eq!(verdict_of(&mut inquest).0, Cause::Exit);
}

#[test]
fn a_failed_allocation_that_was_tried_again_with_success_explains_no_end() {
    let mut inquest = Inquest::default();
    inquest.allocation_failed(at(8.0), WORKER, Some(Bytes(96 << 20)), 9);
    assert_eq!(inquest.allocation_succeeded(at(8.1), CORE), None, "that is another process");
    assert_eq!(inquest.allocation_succeeded(at(8.1), WORKER), Some(9));
    inquest.exited(when(10.0), WORKER, Some(1), None);
    assert_eq!(verdict_of(&mut inquest).0, Cause::Exit);
}

#[test]
fn an_xid_that_ends_no_process_explains_nothing() {
    let mut inquest = Inquest::default();
    inquest.xid(at(9.0), 63, "GPU-0".into(), 7);
    inquest.exited(when(10.0), WORKER, Some(1), None);
    assert_eq!(verdict_of(&mut inquest).0, Cause::Exit);
}

#[test]
fn a_crash_names_its_signal() {
    let mut inquest = Inquest::default();
    inquest.signal(when(1.0), WORKER, (SIGSEGV, 1), kernel(), true);
    inquest.exited(when(1.2), WORKER, None, Some(SIGSEGV));
    assert_eq!(verdict_of(&mut inquest), (Cause::Crash, "its worker (pid 102) crashed with SIGSEGV".into()));
}

#[test]
fn a_verdict_comes_once_and_only_when_the_death_is_certain_and_the_window_over() {
    let mut inquest = Inquest::default();
    inquest.signal(when(1.0), CORE, (SIGKILL, 0), sender("bash", 7), false);
    assert_eq!(inquest.verdict(at(9.0), None, false), None, "no exit yet");
    inquest.exited(when(9.0), CORE, None, Some(SIGKILL));
    assert_eq!(inquest.verdict(at(9.1), None, false), None, "the window is open");
    assert!(inquest.verdict(at(9.3), None, false).is_some());
    inquest.gone(at(16.0), "none of its own processes is left".into());
    assert_eq!(inquest.verdict(at(20.0), None, false), None);
}

#[test]
fn a_process_survives_what_it_can_handle_after_two_seconds_and_sigkill_after_ten() {
    let signalled = |number| {
        let mut inquest = Inquest::default();
        inquest.signal(when(1.0), CORE, (number, 0), sender("bash", 7), false);
        inquest
    };
    let handled = signalled(SIGSEGV);
    assert!(!handled.survives(at(2.9), CORE.pid));
    assert!(handled.survives(at(3.1), CORE.pid));
    assert!(!handled.survives(at(3.1), WORKER.pid), "another process lives: that says nothing");
    let killed = signalled(SIGKILL);
    assert!(!killed.survives(at(10.9), CORE.pid));
    assert!(killed.survives(at(11.1), CORE.pid));
    assert!(!killed.undecided(at(15.9)) && killed.undecided(at(16.1)));
}

#[test]
fn without_the_kernels_word_the_finders_evidence_is_told() {
    let mut inquest = Inquest::default();
    inquest.gone(at(1.0), "nothing listens at its address".into());
    assert_eq!(verdict_of(&mut inquest), (Cause::Unseen, "nothing listens at its address".into()));
}

#[test]
fn an_end_that_was_only_noticed_waits_longer_for_the_kernels_word_than_one_that_was_seen() {
    let mut late = Inquest::default();
    late.gone(at(1.0), "connection refused".into());
    assert_eq!(late.verdict(at(2.9), None, false), None);
    late.exited(when(0.9), CORE, Some(1), None);
    assert_eq!(late.verdict(at(3.0), None, false).map(|verdict| verdict.cause), Some(Cause::Exit));
    let mut never = Inquest::default();
    never.gone(at(1.0), "connection refused".into());
    assert_eq!(never.verdict(at(3.1), None, false).map(|verdict| verdict.cause), Some(Cause::Unseen));
}
