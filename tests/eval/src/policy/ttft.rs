//! The plain TTFT rule that every baseline is also given: prompt tokens queued over the measured rate of prefill.

use gpuadmit_core::observation::{EngineReading, RankReading};

use super::{Answer, Ask, End, Estimate, Policy};
use crate::{
    engine::{EngineSetup, RequestId},
    time::{Nanos, seconds},
};

/// A queue at least so long keeps the engine's prefill busy: then its rate is measured, tokens.
const BUSY_QUEUE: u64 = 2048;
/// Weight of the past when a second of measuring passes.
const FORGET_PER_S: f64 = 0.97;

/// A rule, and the TTFT rule on top.
pub(crate) struct WithTtft<P> {
    inner: P,
    /// Prompt tokens that got through while the queue was long, and seconds that it was.
    done: f64,
    busy: f64,
    /// Since when the queue is long, if it is.
    long_since: Option<Nanos>,
    /// Requests without a first token: prompt tokens.
    queue: std::collections::BTreeMap<RequestId, u64>,
    queued: u64,
}

impl<P> WithTtft<P> {
    pub(crate) fn new(inner: P) -> Self {
        Self { inner, done: 0.0, busy: 0.0, long_since: None, queue: Default::default(), queued: 0 }
    }

    /// Prompt tokens a second; `None` until the queue was long for once.
    fn rate(&self) -> Option<f64> {
        (self.busy > 0.5).then(|| self.done / self.busy)
    }

    fn left_queue(&mut self, at: Nanos, id: RequestId) {
        let Some(prompt) = self.queue.remove(&id) else { return };
        if let Some(since) = self.long_since {
            let elapsed = seconds(at - since);
            let keep = libm::pow(FORGET_PER_S, elapsed);
            self.done = self.done * keep + prompt as f64;
            self.busy = self.busy * keep + elapsed;
        }
        self.queued -= prompt;
        self.long_since = (self.queued >= BUSY_QUEUE).then_some(at);
    }
}

impl<P: Policy> Policy for WithTtft<P> {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        // A rule of gateways: it knows nothing of those that bypass.
        if ask.request.bypass {
            return self.inner.decide(ask);
        }
        let ahead = (self.queued + ask.request.prompt) as f64;
        if self.rate().is_some_and(|rate| ahead / rate > seconds(ask.deadline())) {
            return Answer::because(false, "time");
        }
        let answer = self.inner.decide(ask);
        if let Answer::Admit { .. } = answer {
            self.queue.insert(ask.request.id, ask.request.prompt);
            self.queued += ask.request.prompt;
            if self.queued >= BUSY_QUEUE && self.long_since.is_none() {
                self.long_since = Some(ask.at);
            }
        }
        answer
    }

    fn started(&mut self, at: Nanos, setup: &EngineSetup, reading: RankReading) {
        self.inner.started(at, setup, reading);
    }

    fn scraped(&mut self, at: Nanos, reading: &EngineReading) {
        self.inner.scraped(at, reading);
    }

    fn first_token(&mut self, at: Nanos, id: RequestId) {
        self.left_queue(at, id);
        self.inner.first_token(at, id);
    }

    fn progressed(&mut self, at: Nanos, id: RequestId, generated: u64) {
        self.inner.progressed(at, id, generated);
    }

    fn completed(&mut self, at: Nanos, id: RequestId, end: &End) {
        self.left_queue(at, id);
        self.inner.completed(at, id, end);
    }

    fn estimate(&mut self, at: Nanos) -> Option<Estimate> {
        self.inner.estimate(at)
    }

    fn interval(&self) -> Option<Nanos> {
        self.inner.interval()
    }

    fn asked_by_everybody(&self) -> bool {
        self.inner.asked_by_everybody()
    }
}
