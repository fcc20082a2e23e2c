//! A request on its way through a run.

use std::time::Duration;

use crate::{engine::RequestId, time::Nanos, trace::Content};

/// A request as it will turn out to be.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) at: Nanos,
    pub(crate) prompt: u64,
    /// Tokens it will generate.
    pub(crate) length: u64,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) tenant: u32,
    pub(crate) content: Content,
    /// From its admission to the engine's queue.
    pub(crate) delivery: Nanos,
    /// Goes to the engine without asking.
    pub(crate) bypass: bool,
    /// Its end is never reported.
    pub(crate) lost: bool,
    /// Its client leaves so long after it was let in, if it has not ended by then.
    pub(crate) leaves_after: Option<Nanos>,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Coming,
    Denied,
    /// Sent, not there yet.
    Travelling,
    /// In the engine, no token yet.
    Queued,
    Decoding,
    Done,
    /// The engine refused it, or died with it.
    Failed,
    /// Its client left.
    Left,
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    pub(crate) phase: Phase,
    /// When it was let in.
    pub(crate) sent_at: Nanos,
    /// Prompt tokens found in the prefix cache.
    pub(crate) cached: u64,
    pub(crate) generated: u64,
    pub(crate) first_token: Option<Nanos>,
    pub(crate) last_token: Nanos,
    pub(crate) longest_gap: Nanos,
    pub(crate) preempted: bool,
    /// How it stood when it was denied.
    pub(crate) denial: Option<Denial>,
    /// Retry-After of its first denial.
    pub(crate) told: Option<Duration>,
    /// Came back at its Retry-After.
    pub(crate) retried: bool,
}

/// How things stood when a request was denied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Denial {
    pub(crate) at: Nanos,
    /// Whether the clairvoyant rule would have let it in.
    pub(crate) fits: bool,
    /// Share of the pool in use.
    pub(crate) usage: f64,
    /// As the rule named it; empty where it does not.
    pub(crate) reason: &'static str,
}

impl Fate {
    /// Time to first token.
    pub(crate) fn ttft(&self) -> Option<Nanos> {
        self.first_token.map(|first| first - self.sent_at)
    }

    /// Whether the engine has it, or will have it soon.
    pub(crate) fn live(&self) -> bool {
        matches!(self.phase, Phase::Travelling | Phase::Queued | Phase::Decoding)
    }
}
