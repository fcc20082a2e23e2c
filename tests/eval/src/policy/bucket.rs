//! Token bucket: so many tokens a second, whatever the engine does.

use gpuadmit_core::observation::RankReading;

use super::{Answer, Ask, Policy};
use crate::{
    engine::EngineSetup,
    time::{Nanos, seconds},
};

/// Seconds of its rate that a bucket holds.
const BURST_S: f64 = 5.0;

pub(crate) struct TokenBucket {
    /// Prompt and allowed output tokens a second, as a share of the engine's rate of prefill.
    share: f64,
    rate: f64,
    level: f64,
    filled_at: Nanos,
}

impl TokenBucket {
    pub(crate) fn new(share: f64) -> Self {
        Self { share, rate: 0.0, level: 0.0, filled_at: 0 }
    }
}

impl Policy for TokenBucket {
    fn started(&mut self, at: Nanos, setup: &EngineSetup, _: RankReading) {
        self.rate = self.share * setup.prefill_rate();
        (self.level, self.filled_at) = (self.rate * BURST_S, at);
    }

    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let most = self.rate * BURST_S;
        self.level = (self.level + self.rate * seconds(ask.at - self.filled_at)).min(most);
        self.filled_at = ask.at;
        let request = ask.request;
        let need = (request.prompt + request.max_tokens.unwrap_or(super::ledger::ASSUMED_OUTPUT)) as f64;
        // A request larger than the bucket may go when it is full.
        let fits = self.level >= need.min(most);
        if fits {
            self.level -= need.min(most);
        }
        Answer::because(fits, "rate")
    }
}
