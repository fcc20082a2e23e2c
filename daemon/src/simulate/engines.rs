//! What discovery would see of the simulated engines: their processes, and that these die.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use gpuadmit_core::{
    observation::{EngineFacts, EngineProcess, Observation, ProcessRole},
    units::Span,
};
use gpuadmit_sim::{SimEnd, SimEngine, SimProcess, SimRole};

use super::host;
use crate::{clock, source::Observe};

/// Plays discovery. Cheap to clone.
#[derive(Clone)]
pub(super) struct Engines {
    observe: Observe,
    /// By engine id; as many as the scenario has.
    known: Arc<Mutex<BTreeMap<Arc<str>, Known>>>,
}

#[derive(Default)]
struct Known {
    processes: Vec<EngineProcess>,
    /// The end that was told last.
    ended: Option<SimEnd>,
    /// As the vLLM source last told them, without processes.
    facts: Option<EngineFacts>,
}

impl Engines {
    pub(super) fn new(observe: Observe) -> Self {
        Self { observe, known: Arc::default() }
    }

    /// Adds the processes to the facts that the vLLM source learns; passes everything else on.
    pub(super) fn observer(&self) -> Observe {
        let engines = self.clone();
        Arc::new(move |observation| match observation {
            Observation::Engine(mut facts) => {
                // Held until it is told: `look` may have news, which must come after.
                let mut all = engines.lock();
                let known = all.entry(Arc::clone(&facts.engine)).or_default();
                known.facts = Some((*facts).clone());
                facts.processes.clone_from(&known.processes);
                (engines.observe)(Observation::Engine(facts));
            }
            other => (engines.observe)(other),
        })
    }

    /// The processes that an engine had at the last look.
    pub(super) fn processes(&self, engine: &str) -> Vec<EngineProcess> {
        self.lock().get(engine).map(|known| known.processes.clone()).unwrap_or_default()
    }

    /// Tells what has changed about the engines' processes.
    pub(super) fn look(&self, engines: &[SimEngine]) {
        let mut all = self.lock();
        for engine in engines {
            let known = all.entry(Arc::clone(&engine.name)).or_default();
            for told in change(known, engine) {
                (self.observe)(told);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn change(known: &mut Known, engine: &SimEngine) -> Vec<Observation> {
    let processes: Vec<EngineProcess> = engine.processes.iter().map(process).collect();
    let changed = known.processes != processes;
    let before = std::mem::replace(&mut known.processes, processes);
    let news = std::mem::replace(&mut known.ended, engine.ended) != engine.ended;
    // Until the vLLM source has told of the engine, nobody knows it.
    let Some(facts) = known.facts.as_ref() else { return Vec::new() };
    let end = engine.ended.filter(|_| news);
    let mut told = end.map(|end| host::end(&engine.name, &before, end)).unwrap_or_default();
    let span = Span::at(clock::now());
    if changed && known.processes.is_empty() {
        let evidence = "its processes have ended (simulated)".into();
        told.push(Observation::EngineGone { engine: Arc::clone(&engine.name), span, evidence });
    } else if changed {
        let processes = known.processes.clone();
        told.push(Observation::Engine(Box::new(EngineFacts { processes, span, ..facts.clone() })));
    }
    told
}

pub(super) const fn process(one: &SimProcess) -> EngineProcess {
    let role = match one.role {
        SimRole::ApiServer => ProcessRole::ApiServer,
        SimRole::EngineCore => ProcessRole::EngineCore,
        SimRole::Worker => ProcessRole::Worker,
    };
    EngineProcess { pid: one.pid, start_ticks: one.start_ticks, role }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpuadmit_core::{
        event::EventKind,
        node::Node,
        observation::{EngineReading, RankReading, ScrapeFailure, SourceHealth, SourceReport},
        settings::Settings,
        verdict::Cause,
    };
    use gpuadmit_sim::End;
    use tokio::time::Instant;

    use super::*;

    fn engine(pids: &[u32]) -> SimEngine {
        let process = |pid: &u32| SimProcess { pid: *pid, start_ticks: 1, role: SimRole::Worker };
        SimEngine {
            name: "a".into(),
            model: "m".into(),
            address: ([127, 0, 0, 1], 1).into(),
            max_model_len: 1,
            processes: pids.iter().map(process).collect(),
            ended: None,
            frozen: false,
        }
    }

    fn facts() -> EngineFacts {
        EngineFacts {
            engine: "a".into(),
            address: "http://127.0.0.1:1".into(),
            span: Span::default(),
            version: None,
            version_known: true,
            models: Vec::new(),
            adapters_at_runtime: false,
            processes: Vec::new(),
            block_size: None,
            max_num_seqs: None,
            max_num_batched_tokens: None,
            gpu_memory_utilization: None,
            data_parallel_size: 1,
            model_source: None,
            obstacle: None,
            statistics_off: false,
            metrics_filtered: None,
        }
    }

    /// Engines whose news are written down.
    fn written_down() -> (Engines, impl Fn() -> Vec<Observation>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&told);
        let engines = Engines::new(Arc::new(move |observation| sink.lock().unwrap().push(observation)));
        (engines, move || std::mem::take(&mut *told.lock().unwrap()))
    }

    fn with_all_roles(ended: Option<SimEnd>) -> SimEngine {
        let roles = [SimRole::ApiServer, SimRole::EngineCore, SimRole::Worker];
        let process = |(pid, role)| SimProcess { pid, start_ticks: 1, role };
        let processes = if ended.is_some() { vec![] } else { (7..).zip(roles).map(process).collect() };
        SimEngine { processes, ended, ..engine(&[]) }
    }

    /// The kernel as it is played says nothing for three seconds; meanwhile the port refuses.
    #[test]
    fn an_end_that_is_told_seconds_after_the_port_refuses_has_its_author() {
        for (by, cause) in [
            (End::Sigkill, Cause::Killed),
            (End::OomKiller, Cause::KernelOom),
            (End::OomDaemon, Cause::OomDaemon),
            (End::Segfault, Cause::Crash),
            (End::Exit, Cause::Exit),
            (End::CudaOom, Cause::CudaOom),
        ] {
            let (engines, take) = written_down();
            (engines.observer())(Observation::Engine(Box::new(facts())));
            engines.look(&[with_all_roles(None)]);
            let mut node = Node::new(Settings::default(), 1);
            let start = clock::now();
            let span = Span::at(start);
            let report = SourceReport {
                source: "kernel".into(),
                span,
                health: SourceHealth::Ok,
                detail: String::new(),
                busy: None,
            };
            let reading = EngineReading { span, ranks: vec![RankReading::default()], ..Default::default() };
            let reading = Observation::Reading { engine: "a".into(), reading: Box::new(reading) };
            for told in take().into_iter().chain([reading, Observation::Source(report)]) {
                node.observe(start, told);
            }
            let end = SimEnd { by, at: Instant::now() };
            let (now, failure) = (clock::now(), ScrapeFailure::Refused);
            node.observe(now, Observation::ScrapeFailed { engine: "a".into(), span: Span::at(now), failure });
            node.handle_timeout(now + Duration::from_secs(3));
            engines.look(&[with_all_roles(Some(end))]);
            for told in take() {
                node.observe(now + Duration::from_secs(3), told);
            }
            node.handle_timeout(now + Duration::from_secs(4));
            let events = node.history().after(0, usize::MAX).0;
            let down: Vec<_> = events.iter().filter(|event| event.kind == EventKind::EngineDown).collect();
            assert_eq!(
                down.iter().map(|event| event.cause).collect::<Vec<_>>(),
                [Some(cause)],
                "{events:#?}"
            );
        }
    }

    #[test]
    fn an_engine_that_is_up_again_at_the_next_look_has_ended_all_the_same() {
        let (engines, take) = written_down();
        (engines.observer())(Observation::Engine(Box::new(facts())));
        engines.look(&[with_all_roles(None)]);
        take();
        let ended = Some(SimEnd { by: End::Sigkill, at: Instant::now() });
        let again = SimEngine { ended, ..engine(&[10]) };
        engines.look(std::slice::from_ref(&again));
        let told = take();
        let pids: Vec<_> = told
            .iter()
            .map(|told| match told {
                Observation::Process(event) => event.pid,
                Observation::Engine(facts) => facts.processes[0].pid,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(pids, [8, 8, 10], "signal and exit of the old one, then the new one");
        engines.look(&[again]);
        assert!(take().is_empty(), "an end is told once");
    }

    #[test]
    fn facts_get_the_processes_and_a_change_of_these_is_told_once() {
        let (engines, take) = written_down();
        let pids = |observation: &Observation| match observation {
            Observation::Engine(facts) => facts.processes.iter().map(|process| process.pid).collect(),
            other => panic!("facts, not {other:?}"),
        };

        engines.look(&[engine(&[7])]);
        assert!(take().is_empty(), "the vLLM source has not told of it yet");
        (engines.observer())(Observation::Engine(Box::new(facts())));
        assert_eq!(take().iter().map(pids).collect::<Vec<Vec<u32>>>(), [[7]]);
        engines.look(&[engine(&[7])]);
        assert!(take().is_empty());
        engines.look(&[engine(&[])]);
        assert!(matches!(take()[..], [Observation::EngineGone { .. }]));
        engines.look(&[engine(&[8])]);
        assert_eq!(take().iter().map(pids).collect::<Vec<Vec<u32>>>(), [[8]]);
    }
}
