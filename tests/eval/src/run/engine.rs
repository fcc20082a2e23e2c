//! The engine's side of a run: steps and what they do to requests.

use super::{InUse, Next, REPORT_MS, Run};
use crate::{
    engine::{AisimEngine, EngineModel as _, Event, Exposition, Gauges, Output, RequestId, Submission},
    request::Phase,
    time::Nanos,
};

impl Run {
    pub(super) fn reach(&mut self, id: RequestId) {
        self.world.fate(id).phase = Phase::Queued;
        let request = self.world.request(id);
        let end = request.prompt + request.length;
        let output = match request.content.session() {
            Some(_) if self.world.setup.prefix_caching => {
                Output::Tokens(request.content.tokens(id, request.prompt, end))
            }
            _ => Output::Length(request.length),
        };
        let prompt = request.content.tokens(id, 0, request.prompt);
        self.exposition.arrived(self.at, id, request.prompt);
        self.engine.submit(Submission { id, prompt, output });
        self.begin_step();
    }

    pub(super) fn begin_step(&mut self) {
        if self.step.is_some() {
            return;
        }
        let Some(step) = self.engine.step(self.at) else { return };
        self.account();
        let (mut ending, mut ended) = (0, 0);
        for event in &step.events {
            match *event {
                Event::Scheduled { id, cached } => self.world.fate(id).cached = cached,
                Event::Preempted { id } => self.world.fate(id).preempted = true,
                Event::Finished { id } => {
                    let request = self.world.request(id);
                    ending += self.world.blocks(request.prompt + request.length - 1);
                    ended += 1;
                }
                Event::Token { .. } | Event::Rejected { .. } => {}
            }
        }
        // What ends with this step is held until then.
        self.world.used = InUse {
            blocks: (step.gauges.used + ending).min(self.world.setup.blocks),
            slots: (step.gauges.running + ended).min(self.world.setup.max_num_seqs),
            waiting: step.gauges.waiting,
        };
        self.world.partial += step.prompt_tokens;
        self.world.step_time = smoothed(self.world.step_time, step.duration);
        self.world.step_end = self.at + step.duration;
        self.plan(self.world.step_end, Next::StepEnd(self.life));
        self.step = Some((self.at, step));
    }

    pub(super) fn step_end(&mut self) {
        let Some((began, step)) = self.step.take() else { return };
        self.account();
        self.world.used = in_use(step.gauges);
        for event in &step.events {
            match *event {
                Event::Token { id } => self.token(id),
                Event::Finished { id } => self.ended(id, Phase::Done),
                Event::Rejected { id } => self.ended(id, Phase::Failed),
                Event::Scheduled { .. } | Event::Preempted { .. } => {}
            }
        }
        self.counted(began, step);
        self.begin_step();
    }

    pub(super) fn token(&mut self, id: RequestId) {
        if !self.world.fate(id).live() {
            return;
        }
        let (at, prompt) = (self.at, self.world.request(id).prompt);
        let fate = self.world.fate(id);
        fate.generated += 1;
        let first = fate.first_token.is_none();
        if first {
            fate.first_token = Some(at);
            fate.phase = Phase::Decoding;
            let computed = prompt - fate.cached.min(prompt);
            self.world.partial = self.world.partial.saturating_sub(computed);
        } else {
            fate.longest_gap = fate.longest_gap.max(at - fate.last_token);
        }
        let fate = self.world.fate(id);
        fate.last_token = at;
        let generated = fate.generated;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.generated = generated;
            stream.last_token = at;
            if first {
                self.policy.first_token(at, id);
            }
        }
    }

    pub(super) fn ended(&mut self, id: RequestId, phase: Phase) {
        if !self.world.fate(id).live() {
            return;
        }
        self.world.fate(id).phase = phase;
        self.world.live.retain(|live| *live != id);
        self.world.served(self.at, id);
        // What was recomputed after preemptions is not counted one by one; an empty engine sets it right.
        if self.world.live.is_empty() {
            self.world.partial = 0;
        }
        if self.streams.contains_key(&id) && !self.world.request(id).lost {
            let told = self.soon(id, REPORT_MS);
            self.plan(told, Next::Told(id));
        }
    }

    pub(super) fn client_leaves(&mut self, id: RequestId) {
        if !self.world.fate(id).live() {
            return;
        }
        self.engine.abort(id);
        self.exposition.aborted(self.at, id);
        self.ended(id, Phase::Left);
        if self.step.is_none() {
            self.account();
            self.world.used = in_use(self.engine.gauges());
        }
    }

    pub(super) fn restart(&mut self) {
        self.account();
        self.engine = AisimEngine::new(&self.world.setup).expect("it was built before");
        self.exposition = Exposition::new(&self.world.setup);
        self.unseen.clear();
        self.life += 1;
        self.step = None;
        self.world.used = InUse::default();
        self.world.step_end = self.at;
        for id in self.world.live.clone() {
            if self.world.fate(id).phase != Phase::Travelling {
                self.ended(id, Phase::Failed);
            }
        }
    }
}

const fn in_use(gauges: Gauges) -> InUse {
    InUse { blocks: gauges.used, slots: gauges.running, waiting: gauges.waiting }
}

/// Mean step time: the past weighs as some fifty steps.
fn smoothed(mean: Nanos, step: Nanos) -> Nanos {
    (mean * 49 + step) / 50
}
