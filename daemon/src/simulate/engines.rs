//! What discovery would see of the simulated engines: their processes, and that these die.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use gpuadmit_core::{
    observation::{EngineFacts, EngineProcess, Observation, ProcessRole},
    units::Span,
};
use gpuadmit_sim::{SimEngine, SimProcess, SimRole};

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
        Arc::new(move |observation| {
            let observation = match observation {
                Observation::Engine(facts) => Observation::Engine(Box::new(engines.complete(*facts))),
                other => other,
            };
            (engines.observe)(observation);
        })
    }

    fn complete(&self, mut facts: EngineFacts) -> EngineFacts {
        let mut all = self.lock();
        let known = all.entry(Arc::clone(&facts.engine)).or_default();
        known.facts = Some(facts.clone());
        facts.processes.clone_from(&known.processes);
        facts
    }

    /// Tells what has changed about the engines' processes.
    pub(super) fn look(&self, engines: &[SimEngine]) {
        for engine in engines {
            for told in self.change(engine) {
                (self.observe)(told);
            }
        }
    }

    fn change(&self, engine: &SimEngine) -> Vec<Observation> {
        let processes: Vec<EngineProcess> = engine.processes.iter().map(process).collect();
        let mut all = self.lock();
        let known = all.entry(Arc::clone(&engine.name)).or_default();
        if known.processes == processes {
            return Vec::new();
        }
        let before = std::mem::replace(&mut known.processes, processes);
        // Until the vLLM source has told of the engine, nobody knows it.
        let Some(facts) = known.facts.as_ref() else { return Vec::new() };
        let span = Span::at(clock::now());
        if known.processes.is_empty() {
            let evidence = "its processes have ended (simulated)".into();
            let gone = Observation::EngineGone { engine: Arc::clone(&engine.name), span, evidence };
            let kernel = engine.ended_by.map(|by| host::end(&engine.name, &before, by)).unwrap_or_default();
            return kernel.into_iter().chain([gone]).collect();
        }
        let processes = known.processes.clone();
        vec![Observation::Engine(Box::new(EngineFacts { processes, span, ..facts.clone() }))]
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    use super::*;

    fn engine(pids: &[u32]) -> SimEngine {
        let process = |pid: &u32| SimProcess { pid: *pid, start_ticks: 1, role: SimRole::Worker };
        SimEngine {
            name: "a".into(),
            model: "m".into(),
            address: ([127, 0, 0, 1], 1).into(),
            max_model_len: 1,
            processes: pids.iter().map(process).collect(),
            ended_by: None,
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

    #[test]
    fn facts_get_the_processes_and_a_change_of_these_is_told_once() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&told);
        let engines = Engines::new(Arc::new(move |observation| sink.lock().unwrap().push(observation)));
        let take = || std::mem::take(&mut *told.lock().unwrap());
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
