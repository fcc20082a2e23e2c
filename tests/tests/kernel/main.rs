//! Real deaths on the running kernel: what the daemon is told of them, by programs in the kernel and without.
//!
//! Needs root. `make test-kernels` runs the same in virtual machines with other kernels.

mod bytes;
mod cgroup;
mod cuda;
mod daemon;
mod latency;
mod rig;
mod rights;
mod victim;

use gpuadmit_core::observation::{Observation, OomScope, ProcessChange};
use gpuadmitd::{clock, source::kernel::Options};
use rig::{Ears, Heard};
use victim::{Fate, Victim};

const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGTERM: i32 = 15;
/// `SI_KERNEL` of siginfo.
const SI_KERNEL: i32 = 0x80;

fn exit(code: Option<i32>, signal: Option<i32>) -> ProcessChange {
    ProcessChange::Exit { code, signal }
}

/// What is told of a process that comes to this end, up to its exit. A twin that nobody watches comes to the same end.
fn end_of(ears: &Ears, fate: Fate) -> Vec<ProcessChange> {
    let (watched, mut twin) = (Victim::start(fate), Victim::start(fate));
    ears.kernel.watch(&[watched.process()]);
    twin.end();
    twin.reap();
    watched.end();
    let heard = ears.until_exit(watched.pid());
    assert!(heard.iter().all(|event| event.pid != twin.pid()), "told of the twin: {heard:?}");
    let of_it: Vec<_> = heard.into_iter().filter(|event| event.pid == watched.pid()).collect();
    for event in &of_it {
        assert_eq!(event.start_ticks, Some(watched.process().start_ticks), "{event:?}");
        assert!(event.watched, "{event:?}");
    }
    of_it.into_iter().map(|event| event.what).collect()
}

fn signals(changes: &[ProcessChange]) -> Vec<(i32, i32, u32, bool)> {
    let signal = |change: &ProcessChange| match change {
        ProcessChange::Signal { number, code, sender } => Some((*number, *code, sender.pid, sender.kernel)),
        _ => None,
    };
    changes.iter().filter_map(signal).collect()
}

#[test]
fn programs_tell_how_a_process_ended_and_who_sent_the_signal() {
    let Some(ears) = Ears::with_programs() else { return };
    let own = std::process::id();

    let killed = end_of(&ears, Fate::Signal(SIGKILL));
    assert_eq!(signals(&killed), [(SIGKILL, 0, own, false)]);
    assert_eq!(killed.last(), Some(&exit(None, Some(SIGKILL))));

    let terminated = end_of(&ears, Fate::Signal(SIGTERM));
    assert_eq!(signals(&terminated), [(SIGTERM, 0, own, false)]);
    assert_eq!(terminated.last(), Some(&exit(None, Some(SIGTERM))));

    assert_eq!(end_of(&ears, Fate::Exit(3)), [exit(Some(3), None)]);

    let faulted = end_of(&ears, Fate::SegfaultInThread);
    // Rust's own handler takes the first one, finds no overflow of a stack, and lets it happen again. The code is
    // SEGV_MAPERR: nothing is mapped there.
    let sent = signals(&faulted);
    assert!(!sent.is_empty() && sent.iter().all(|sent| *sent == (SIGSEGV, 1, sent.2, true)), "{faulted:?}");
    assert_eq!(faulted.last(), Some(&exit(None, Some(SIGSEGV))));
}

#[test]
fn without_programs_the_same_ends_are_told_by_files() {
    let ears = Ears::without_programs();
    assert_eq!(end_of(&ears, Fate::Signal(SIGKILL)), [exit(None, Some(SIGKILL))]);
    assert_eq!(end_of(&ears, Fate::Signal(SIGTERM)), [exit(None, Some(SIGTERM))]);
    assert_eq!(end_of(&ears, Fate::Exit(3)), [exit(Some(3), None)]);
    assert_eq!(end_of(&ears, Fate::SegfaultInThread), [exit(None, Some(SIGSEGV))]);
}

#[test]
fn a_cgroup_that_runs_out_of_memory_names_its_victim_before_it_ends() {
    let Some(ears) = Ears::with_programs() else { return };
    let Some(group) = cgroup::limited() else { return };
    let victim = Victim::start(Fate::EatMemory);
    group.add(victim.pid());
    ears.kernel.watch(&[victim.process()]);
    victim.end();
    let heard = ears.until_exit(victim.pid());
    let changes: Vec<_> =
        heard.iter().filter(|event| event.pid == victim.pid()).map(|event| &event.what).collect();
    let place = |fits: &dyn Fn(&ProcessChange) -> bool| changes.iter().position(|change| fits(change));
    let signal = place(
        &|change| matches!(change, ProcessChange::Signal { number: SIGKILL, code: SI_KERNEL, sender } if sender.kernel),
    );
    let chosen = place(&|change| matches!(change, ProcessChange::OomVictim { rss: Some(_), .. }));
    let ended = place(&|change| *change == exit(None, Some(SIGKILL)));
    assert!(signal.is_some() && signal < chosen && chosen < ended, "{changes:?}");
    for change in &changes {
        if let ProcessChange::OomVictim { rss: Some(rss), .. } = change {
            let most = cgroup::LIMIT_BYTES;
            assert!(rss.anonymous.0 > most / 4 && rss.anonymous.0 <= 2 * most, "{rss:?} of {most}");
        }
    }
    ears.scope_of(&heard, victim.pid(), &OomScope::Cgroup(group.name().into()));
}

#[test]
fn without_programs_the_cgroups_counter_tells_of_the_oom_killer() {
    let ears = Ears::without_programs();
    let Some(group) = cgroup::limited() else { return };
    let victim = Victim::start(Fate::EatMemory);
    group.add(victim.pid());
    ears.kernel.watch(&[victim.process()]);
    victim.end();
    let heard = ears.until_exit(victim.pid());
    let chosen = ProcessChange::OomVictim { rss: None, scope: None };
    assert!(heard.iter().any(|event| event.pid == victim.pid() && event.what == chosen), "{heard:?}");
    assert_eq!(heard.last().map(|event| &event.what), Some(&exit(None, Some(SIGKILL))));
}

#[test]
fn children_are_watched_as_they_are_born() {
    let Some(ears) = Ears::with_programs() else { return };
    let parent = Victim::start(Fate::Children(3));
    ears.kernel.watch(&[parent.process()]);
    parent.end();
    let heard = ears.until_exit(parent.pid());
    let children: Vec<u32> = heard
        .iter()
        .filter_map(|event| match event.what {
            ProcessChange::Forked { child, .. } if event.pid == parent.pid() => Some(child),
            _ => None,
        })
        .collect();
    assert_eq!(children.len(), 3, "{heard:?}");
    for child in children {
        let of_child = || heard.iter().filter(|event| event.pid == child);
        assert!(
            of_child().any(|event| event.what == ProcessChange::Exec && &*event.comm == "sh"),
            "{heard:?}"
        );
        assert!(of_child().any(|event| event.what == exit(Some(5), None)), "{heard:?}");
    }
}

#[test]
fn a_raised_oom_score_is_told_with_the_one_before() {
    for ears in [Ears::with_programs(), Some(Ears::without_programs())].into_iter().flatten() {
        let victim = Victim::start(Fate::Exit(0));
        std::fs::write(format!("/proc/{}/oom_score_adj", victim.pid()), "100").unwrap();
        ears.kernel.watch(&[victim.process()]);
        std::fs::write(format!("/proc/{}/oom_score_adj", victim.pid()), "700").unwrap();
        let adjusted = ProcessChange::OomScoreAdjusted { from: Some(100), to: 700 };
        ears.until(|event| event.pid == victim.pid() && event.what == adjusted);
        victim.end();
        ears.until_exit(victim.pid());
    }
}

#[test]
fn a_process_that_is_gone_before_it_is_watched_is_told_as_ended() {
    for ears in [Ears::with_programs(), Some(Ears::without_programs())].into_iter().flatten() {
        let mut victim = Victim::start(Fate::Exit(0));
        let process = victim.process();
        victim.end();
        victim.reap();
        ears.kernel.watch(&[process]);
        assert_eq!(
            ears.until_exit(process.pid).last().map(|event| event.what.clone()),
            Some(exit(None, None))
        );
    }
}

#[test]
fn a_report_comes_after_all_that_happened_before_its_time() {
    for ears in [Ears::with_programs(), Some(Ears::without_programs())].into_iter().flatten() {
        let mut victim = Victim::start(Fate::Exit(3));
        ears.kernel.watch(&[victim.process()]);
        victim.end();
        victim.reap();
        let ended = clock::now();
        let mut exits = vec![];
        loop {
            match ears.next().1 {
                Observation::Process(event) => exits.push((event.pid, event.what)),
                Observation::Source(report) if report.span.not_before >= ended => break,
                _ => {}
            }
        }
        // Without programs, what is reaped before it is looked at has ended in an unknown way.
        assert!(exits.iter().any(|(pid, _)| *pid == victim.pid()), "{exits:?}");
    }
}

/// The ring buffer holds some 2,000 records: while the observer is held up, more than that come.
#[test]
fn what_a_full_ring_swallows_is_looked_for() {
    let Some(ears) = Ears::with_programs() else { return };
    let (busy, bystander) = (Victim::start(Fate::Forks(1500)), Victim::start(Fate::Signal(SIGKILL)));
    ears.kernel.watch(&[busy.process(), bystander.process()]);
    let held = ears.hold();
    busy.end();
    let mut busy = busy;
    busy.reap();
    bystander.end();
    drop(held);
    let heard: Vec<Heard> = ears.until_exit(bystander.pid());
    assert!(!heard.is_empty());
    let report = ears.report(|report| report.detail.contains("records lost and looked for"));
    println!("{}", report.detail);
}

#[test]
fn a_missing_object_is_said_and_the_ends_are_told_all_the_same() {
    let options = Options { object: Some("/nonexistent.o".into()), ..Options::default() };
    let ears = Ears::new(&options);
    let report = ears.report(|_| true);
    assert!(report.detail.contains("no BPF because there is no file /nonexistent.o"), "{report:?}");
    assert_eq!(end_of(&ears, Fate::Exit(7)), [exit(Some(7), None)]);
}

/// Not a test: what a victim runs.
#[test]
#[ignore = "what a victim runs"]
fn victim_process() {
    victim::run();
}
