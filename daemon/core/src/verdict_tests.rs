use super::*;
use crate::testing::at;

const CORE: Who = Who { pid: 101, role: ProcessRole::EngineCore };
const WORKER: Who = Who { pid: 102, role: ProcessRole::Worker };

fn sender(comm: &str, pid: u32) -> Sender {
    Sender { pid, comm: comm.into(), kernel: false }
}

fn kernel() -> Sender {
    Sender { pid: CORE.pid, comm: "VLLM::EngineCor".into(), kernel: true }
}

/// A fact about a death.
type Fact = (&'static str, fn(&mut Inquest) -> Effect);

fn verdict_of(inquest: &mut Inquest) -> (Cause, String) {
    let verdict = inquest.verdict(at(60.0), false).expect("a verdict is due");
    (verdict.cause, verdict.sentence)
}

/// Every order of the facts.
fn orders(facts: &[Fact]) -> Vec<Vec<Fact>> {
    if facts.len() < 2 {
        return vec![facts.to_vec()];
    }
    let mut all = Vec::new();
    for first in 0..facts.len() {
        let mut rest = facts.to_vec();
        let chosen = rest.remove(first);
        for mut tail in orders(&rest) {
            tail.insert(0, chosen);
            all.push(tail);
        }
    }
    all
}

#[test]
fn a_memory_cgroup_kill_is_told_alike_in_whatever_order_its_facts_arrive() {
    let facts: [Fact; 4] = [
        ("signal", |i| i.signal(at(1.0), CORE, (SIGKILL, SI_KERNEL), kernel(), true)),
        ("mark", |i| i.marked(at(1.0001), CORE, None, None)),
        ("scope", |i| i.marked(at(1.0002), CORE, Some(OomScope::Cgroup("/vllm".into())), None)),
        ("exit", |i| i.exited(at(1.01), CORE, None, Some(SIGKILL))),
    ];
    for order in orders(&facts) {
        let mut inquest = Inquest::default();
        for (_, fact) in &order {
            assert!(matches!(fact(&mut inquest), Effect::Close(_)));
        }
        let (cause, sentence) = verdict_of(&mut inquest);
        let names: Vec<_> = order.iter().map(|(name, _)| *name).collect();
        assert_eq!(cause, Cause::KernelOom, "{names:?}");
        let told =
            "the kernel's OOM killer killed its EngineCore (pid 101): memory cgroup /vllm reached its limit";
        assert_eq!(sentence, told, "{names:?}");
    }
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
        inquest.signal(at(1.0), WORKER, (SIGKILL, 0), sender(comm, 77), false);
        inquest.exited(at(1.1), WORKER, None, Some(SIGKILL));
        assert_eq!(verdict_of(&mut inquest).0, cause, "{comm}");
    }
}

#[test]
fn a_request_to_stop_makes_all_that_follows_planned_but_not_an_oom_kill() {
    let mut inquest = Inquest::default();
    let drained = inquest.signal(at(1.0), CORE, (SIGTERM, 0), sender("systemd", 1), false);
    assert_eq!(drained, Effect::Drain("its EngineCore (pid 101) was sent SIGTERM by systemd (pid 1)".into()));
    inquest.signal(at(91.0), CORE, (SIGKILL, 0), sender("systemd", 1), false);
    inquest.exited(at(91.1), CORE, None, Some(SIGKILL));
    let mut other = inquest.clone();
    assert_eq!(inquest.verdict(at(92.0), false).map(|verdict| verdict.cause), Some(Cause::Stopped));
    other.marked(at(91.05), CORE, Some(OomScope::Machine), None);
    assert_eq!(other.verdict(at(92.0), false).map(|verdict| verdict.cause), Some(Cause::KernelOom));
}

#[test]
fn what_an_engine_does_to_its_own_processes_after_a_crash_is_not_the_author() {
    let mut inquest = Inquest::default();
    inquest.exited(at(1.0), WORKER, Some(1), None);
    inquest.signal(at(1.05), CORE, (SIGTERM, 0), sender("vllm", 100), true);
    inquest.signal(at(1.06), CORE, (SIGKILL, 0), sender("vllm", 100), true);
    inquest.exited(at(1.07), CORE, None, Some(SIGKILL));
    assert_eq!(verdict_of(&mut inquest), (Cause::Exit, "its worker (pid 102) exited with code 1".into()));
}

#[test]
fn an_xid_or_a_failed_allocation_shortly_before_explains_an_exit_and_later_ones_do_not() {
    let xid = |seconds| {
        let mut inquest = Inquest::default();
        inquest.exited(at(10.0), WORKER, Some(1), None);
        inquest.xid(at(seconds), 31, "GPU-0".into(), 7);
        inquest.verdict(at(60.0), false).map(|verdict| (verdict.cause, verdict.caused_by))
    };
    assert_eq!(xid(8.0), Some((Cause::Xid, Some(7))));
    assert_eq!(xid(10.1), Some((Cause::Exit, None)), "Xid 45 follows a kill");
    let mut inquest = Inquest::default();
    inquest.allocation_failed(at(8.0), WORKER, Some(Bytes(96 << 20)), 9);
    inquest.exited(at(10.0), CORE, Some(1), None);
    let told = "its EngineCore (pid 101) exited with code 1 2.0 s after a CUDA allocation of 100663296 bytes \
                failed for want of memory";
    assert_eq!(verdict_of(&mut inquest), (Cause::CudaOom, told.into()));
    let mut inquest = Inquest::default();
    inquest.allocation_failed(at(8.0), WORKER, None, 9);
    inquest.exited(at(28.0), CORE, Some(1), None);
    assert_eq!(verdict_of(&mut inquest).0, Cause::Exit);
}

#[test]
fn a_failed_allocation_that_was_tried_again_with_success_explains_no_end() {
    let mut inquest = Inquest::default();
    inquest.allocation_failed(at(8.0), WORKER, Some(Bytes(96 << 20)), 9);
    assert_eq!(inquest.allocation_succeeded(CORE), None, "that is another process");
    assert_eq!(inquest.allocation_succeeded(WORKER), Some(9));
    inquest.exited(at(10.0), WORKER, Some(1), None);
    assert_eq!(verdict_of(&mut inquest).0, Cause::Exit);
}

#[test]
fn an_xid_that_ends_no_process_explains_nothing() {
    let mut inquest = Inquest::default();
    inquest.xid(at(9.0), 63, "GPU-0".into(), 7);
    inquest.exited(at(10.0), WORKER, Some(1), None);
    assert_eq!(verdict_of(&mut inquest).0, Cause::Exit);
}

#[test]
fn a_crash_names_its_signal() {
    let mut inquest = Inquest::default();
    inquest.signal(at(1.0), WORKER, (SIGSEGV, 1), kernel(), true);
    inquest.exited(at(1.2), WORKER, None, Some(SIGSEGV));
    assert_eq!(verdict_of(&mut inquest), (Cause::Crash, "its worker (pid 102) crashed with SIGSEGV".into()));
}

#[test]
fn a_verdict_comes_once_and_only_when_the_death_is_certain_and_the_window_over() {
    let mut inquest = Inquest::default();
    inquest.signal(at(1.0), CORE, (SIGKILL, 0), sender("bash", 7), false);
    assert_eq!(inquest.verdict(at(9.0), false), None, "no exit yet");
    inquest.exited(at(9.0), CORE, None, Some(SIGKILL));
    assert_eq!(inquest.verdict(at(9.1), false), None, "the window is open");
    assert!(inquest.verdict(at(9.3), false).is_some());
    inquest.gone(at(16.0), "none of its own processes is left".into());
    assert_eq!(inquest.verdict(at(20.0), false), None);
}

#[test]
fn a_process_survives_what_it_can_handle_after_two_seconds_and_sigkill_after_ten() {
    let signalled = |number| {
        let mut inquest = Inquest::default();
        inquest.signal(at(1.0), CORE, (number, 0), sender("bash", 7), false);
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
    assert_eq!(late.verdict(at(2.9), false), None);
    late.exited(at(0.9), CORE, Some(1), None);
    assert_eq!(late.verdict(at(3.0), false).map(|verdict| verdict.cause), Some(Cause::Exit));
    let mut never = Inquest::default();
    never.gone(at(1.0), "connection refused".into());
    assert_eq!(never.verdict(at(3.1), false).map(|verdict| verdict.cause), Some(Cause::Unseen));
}
