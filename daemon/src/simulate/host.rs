//! What the kernel and the host would say of the simulated node: how processes end, how they are scheduled, and how short
//! memory is.

use std::sync::Arc;

use gpuadmit_core::{
    host::{CgroupMemory, HostFact, Pressure, ProcessState, Scheduled},
    observation::{
        EngineProcess, Observation, OomScope, ProcessChange, ProcessEvent, ProcessRole, Sender, SourceHealth,
        SourceReport,
    },
    units::{Bytes, Mono, Span},
    verdict::{SIGKILL, SIGSEGV, SIGTERM},
};
use gpuadmit_sim::{
    End, SimEnd, SimEngine,
    mishap::{Mishap, SimHost},
};
use tokio::time::Instant;

use super::{
    engines::{self, Engines},
    mono,
};
use crate::{clock, source::Observe};

/// Time between two looks, in looks of the node: one second.
const LOOKS: u32 = 10;
/// Memory that shares are shares of.
const MEMORY: u64 = 64 << 30;
/// Swapped in per second at most.
const SWAP: u64 = 1 << 30;
/// `si_code` of a signal by the kernel.
const SI_KERNEL: i32 = 0x80;

/// Plays the host.
pub(super) struct Host {
    observe: Observe,
    looks: u32,
}

impl Host {
    pub(super) const fn new(observe: Observe) -> Self {
        Self { observe, looks: 0 }
    }

    /// Tells what happened to processes that `engines` had at the last look.
    pub(super) fn befall(&self, engines: &Engines, mishaps: Vec<(Instant, Mishap)>) {
        for (at, mishap) in mishaps {
            let (engine, what) = change(&mishap);
            if let Some(core) = with(&engines.processes(engine), ProcessRole::EngineCore) {
                (self.observe)(event(mono(at), &core, what));
            }
        }
    }

    /// Tells once a second how things stand, and that all that happened before `since` has been told.
    pub(super) fn look(&mut self, since: Mono, nodes: &[SimEngine], host: &SimHost) {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS) {
            for fact in facts(nodes, host) {
                (self.observe)(Observation::Host(fact));
            }
            (self.observe)(Observation::Source(SourceReport {
                source: "kernel".into(),
                span: Span { not_before: since, not_after: clock::now() },
                health: SourceHealth::Ok,
                detail: "exits, signals, OOM kills (simulated)".into(),
                busy: None,
            }));
        }
    }
}

/// `share` of `whole`.
fn part(whole: u64, share: f64) -> Bytes {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of some gigabytes; `as` saturates"
    )]
    let part = (whole as f64 * share) as u64;
    Bytes(part)
}

fn facts(nodes: &[SimEngine], host: &SimHost) -> Vec<HostFact> {
    let span = Span::at(clock::now());
    let states = nodes.iter().flat_map(|engine| engine.processes.iter().map(|one| (engine.frozen, one)));
    let states = states.map(|(frozen, one)| {
        let process = engines::process(one);
        let stopped = frozen && process.role == ProcessRole::EngineCore;
        let state = if stopped { Scheduled::Stopped } else { Scheduled::Normal };
        ProcessState { pid: process.pid, start_ticks: process.start_ticks, state }
    });
    let full_percent = host.pressure * 100.0;
    let mut facts = vec![
        HostFact::Processes { span, states: states.collect() },
        HostFact::Pressure(Pressure { span, cgroup: None, some_percent: full_percent, full_percent }),
        HostFact::SwapIn { span, per_second: part(SWAP, host.swap) },
        HostFact::SharedMemory {
            span,
            mount: "/dev/shm".into(),
            total: Bytes(MEMORY),
            used: part(MEMORY, host.shared_memory),
        },
    ];
    facts.extend(host.cgroups.iter().map(|(engine, share)| {
        HostFact::Cgroup(Box::new(CgroupMemory {
            span,
            path: cgroup(engine).into(),
            engines: vec![Arc::clone(engine)],
            limit: Some(Bytes(MEMORY)),
            in_use: part(MEMORY, *share),
            oom: None,
            oom_kills: None,
        }))
    }));
    facts
}

fn cgroup(engine: &str) -> String {
    format!("/simulated.slice/{engine}.service")
}

/// Whose process it happens to, and what.
fn change(mishap: &Mishap) -> (&str, ProcessChange) {
    match mishap {
        Mishap::OomScore { engine, to } => {
            (engine, ProcessChange::OomScoreAdjusted { from: Some(0), to: *to })
        }
        Mishap::FailedAllocation { engine, mib } => {
            let requested = Some(Bytes(mib.saturating_mul(1 << 20)));
            (engine, ProcessChange::AllocationFailed { requested, call: "cuMemCreate" })
        }
    }
}

fn with(processes: &[EngineProcess], role: ProcessRole) -> Option<EngineProcess> {
    processes.iter().find(|process| process.role == role).copied()
}

fn event(at: Mono, process: &EngineProcess, what: ProcessChange) -> Observation {
    let (span, start_ticks) = (Span::at(at), Some(process.start_ticks));
    let comm = "simulated".into();
    Observation::Process(Box::new(ProcessEvent {
        span,
        pid: process.pid,
        start_ticks,
        comm,
        watched: true,
        what,
    }))
}

/// What the kernel says when `processes` of an engine end that way.
pub(super) fn end(engine: &str, processes: &[EngineProcess], end: SimEnd) -> Vec<Observation> {
    let by_program = |comm: &str| Sender { pid: 1, comm: comm.into(), kernel: false };
    let exit = |code, signal| ProcessChange::Exit { code, signal };
    let signal = |number, code, sender| ProcessChange::Signal { number, code, sender };
    let (role, changes) = match end.by {
        End::Sigkill => {
            (ProcessRole::EngineCore, vec![signal(SIGKILL, 0, by_program("bash")), exit(None, Some(SIGKILL))])
        }
        End::OomDaemon => (
            ProcessRole::EngineCore,
            vec![signal(SIGKILL, 0, by_program("systemd-oomd")), exit(None, Some(SIGKILL))],
        ),
        End::OomKiller => {
            let kernel = Sender { kernel: true, ..by_program("simulated") };
            let scope = Some(OomScope::Cgroup(cgroup(engine).into()));
            let marked = ProcessChange::OomVictim { rss: None, scope };
            (ProcessRole::Worker, vec![signal(SIGKILL, SI_KERNEL, kernel), marked, exit(None, Some(SIGKILL))])
        }
        End::Segfault => {
            let kernel = Sender { kernel: true, ..by_program("simulated") };
            (ProcessRole::Worker, vec![signal(SIGSEGV, 1, kernel), exit(None, Some(SIGSEGV))])
        }
        End::Exit => (ProcessRole::EngineCore, vec![exit(Some(1), None)]),
        End::CudaOom => {
            let requested = Some(Bytes(96 << 20));
            let failed = ProcessChange::AllocationFailed { requested, call: "cuMemCreate" };
            (ProcessRole::EngineCore, vec![failed, exit(Some(1), None)])
        }
        End::Stop => {
            (ProcessRole::ApiServer, vec![signal(SIGTERM, 0, by_program("systemd")), exit(Some(0), None)])
        }
    };
    let Some(process) = with(processes, role) else { return Vec::new() };
    let at = mono(end.at);
    changes.into_iter().map(|what| event(at, &process, what)).collect()
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::Duration};

    use gpuadmit_sim::{SimProcess, SimRole};

    use super::*;

    fn engine(frozen: bool) -> SimEngine {
        let roles = [SimRole::ApiServer, SimRole::EngineCore, SimRole::Worker];
        let process = |(pid, role)| SimProcess { pid, start_ticks: 1, role };
        SimEngine {
            name: "a".into(),
            model: "m".into(),
            address: ([127, 0, 0, 1], 1).into(),
            max_model_len: 1,
            processes: (7..).zip(roles).map(process).collect(),
            ended: None,
            frozen,
        }
    }

    #[test]
    fn every_kind_of_end_is_told_of_a_process_that_the_engine_has() {
        let processes: Vec<_> = engine(false).processes.iter().map(engines::process).collect();
        for by in
            [End::Sigkill, End::OomKiller, End::OomDaemon, End::Segfault, End::Exit, End::CudaOom, End::Stop]
        {
            let ended = SimEnd { by, at: Instant::now() };
            let told = end("a", &processes, ended);
            let exit = matches!(
                told.last(),
                Some(Observation::Process(event)) if matches!(event.what, ProcessChange::Exit { .. })
            );
            assert!(exit, "{by:?}: {told:?}");
            assert!(end("a", &[], ended).is_empty());
        }
    }

    #[test]
    fn the_engine_core_of_a_frozen_engine_is_stopped() {
        let told = facts(&[engine(true)], &SimHost::default());
        let Some(HostFact::Processes { states, .. }) = told.first() else { panic!("states, not {told:?}") };
        let states: Vec<_> = states.iter().map(|state| state.state).collect();
        assert_eq!(states, [Scheduled::Normal, Scheduled::Stopped, Scheduled::Normal]);
    }

    #[test]
    fn a_mishap_happens_to_the_engine_core_when_it_did_and_to_nobody_while_it_is_down() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&told);
        let host = Host::new(Arc::new(move |observation| sink.lock().unwrap().push(observation)));
        let engines = Engines::new(Arc::new(|_| {}));
        let at = Instant::now();
        let mishap = || vec![(at, Mishap::OomScore { engine: "a".into(), to: 300 })];
        host.befall(&engines, mishap());
        assert!(told.lock().unwrap().is_empty());
        engines.look(&[engine(false)]);
        std::thread::sleep(Duration::from_millis(20));
        host.befall(&engines, mishap());
        let told = told.lock().unwrap();
        let [Observation::Process(event)] = &told[..] else { panic!("one event, not {told:?}") };
        assert_eq!(event.pid, 8);
        assert!(event.span.not_after <= clock::now().before(Duration::from_millis(20)));
    }
}
