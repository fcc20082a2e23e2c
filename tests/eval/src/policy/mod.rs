//! Who is let in: the rules under comparison.

mod bucket;
mod epp;
mod gauge;
mod gpuadmit;
mod ledger;
mod past_future;
mod roster;
mod ttft;
mod vllm;

use std::{collections::BTreeMap, time::Duration};

use gpuadmit_core::{
    observation::{EngineReading, RankReading},
    request::Outcome,
};

use crate::{
    engine::{EngineSetup, RequestId},
    reference::{Clairvoyant, Order},
    request::Request,
    time::Nanos,
    world::World,
};

pub(crate) use gpuadmit::mono;
pub(crate) use roster::{CLAIRVOYANT, Candidate, FAMILIES, STATE, family};

/// What a gateway sees of the requests it sent.
pub(crate) type Streams = BTreeMap<RequestId, Stream>;

/// One request as its gateway sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) prompt: u64,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) sent_at: Nanos,
    /// Tokens that came back.
    pub(crate) generated: u64,
    /// When the last of them came.
    pub(crate) last_token: Nanos,
}

/// What a gateway reports of a request's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    pub(crate) generated: u64,
}

/// A question.
pub(crate) struct Ask<'a> {
    pub(crate) at: Nanos,
    pub(crate) request: &'a Request,
    /// All that the gateway has under way.
    pub(crate) streams: &'a Streams,
    pub(crate) setup: &'a EngineSetup,
    /// For references only.
    pub(crate) world: &'a World,
}

impl Ask<'_> {
    /// The longest time to the request's first token, for rules that know its objective.
    pub(crate) fn deadline(&self) -> Nanos {
        self.world.deadline(self.request, 0)
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Let in, with at most so many output tokens; `None`: as asked.
    Admit { max_tokens: Option<u64> },
    /// Not now, for `reason`, where the rule names one.
    Deny { retry_after: Option<Duration>, reason: &'static str },
}

impl Answer {
    /// Admits if `fits`; a denial names no time.
    pub(crate) const fn plain(fits: bool) -> Self {
        Self::because(fits, "")
    }

    /// The same, and a denial's reason: slots, memory, time, or another.
    pub(crate) const fn because(fits: bool, reason: &'static str) -> Self {
        if fits { Self::Admit { max_tokens: None } } else { Self::Deny { retry_after: None, reason } }
    }
}

/// Blocks in use as a policy believes them to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub(crate) low: u64,
    pub(crate) middle: u64,
    pub(crate) high: u64,
}

/// The clairvoyant rule that takes all that fit as they arrive.
pub(crate) fn clairvoyant() -> Box<dyn Policy> {
    Box::new(Clairvoyant::new(Order::Arrival))
}

/// A rule of admission. Only `decide` must be there; the rest is what a rule may listen to.
pub(crate) trait Policy {
    /// Answers a request.
    fn decide(&mut self, ask: &Ask<'_>) -> Answer;
    /// The engine is up and idle.
    fn started(&mut self, _at: Nanos, _setup: &EngineSetup, _reading: RankReading) {}
    /// A scrape delivered.
    fn scraped(&mut self, _at: Nanos, _reading: &EngineReading) {}
    /// An admitted request's first token came back.
    fn first_token(&mut self, _at: Nanos, _id: RequestId) {}
    /// An admitted request goes on.
    fn progressed(&mut self, _at: Nanos, _id: RequestId, _generated: u64) {}
    /// An admitted request ended, or its client left.
    fn completed(&mut self, _at: Nanos, _id: RequestId, _end: &End) {}
    /// Blocks in use.
    fn estimate(&mut self, _at: Nanos) -> Option<Estimate> {
        None
    }
    /// Requests that it believes to be under way, where it keeps a ledger of its own.
    fn held(&self) -> Option<usize> {
        None
    }
    /// Interval of scrapes, where the rule sets its own.
    fn interval(&self) -> Option<Nanos> {
        None
    }
    /// Whether nobody can go past it: it stands in the engine's own API server.
    fn asked_by_everybody(&self) -> bool {
        false
    }
}
