//! Rules that look at the engine's gauges only.

use gpuadmit_core::observation::EngineReading;

use super::{Answer, Ask, Policy};
use crate::time::Nanos;

/// Everybody is let in.
pub(crate) struct Everybody;

impl Policy for Everybody {
    fn decide(&mut self, _: &Ask<'_>) -> Answer {
        Answer::plain(true)
    }
}

/// The last scrape.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    at: Nanos,
    usage: f64,
    waiting: u64,
}

impl Seen {
    fn of(at: Nanos, reading: &EngineReading) -> Self {
        let rank = reading.ranks.first();
        let usage = rank.and_then(|rank| rank.kv_usage).unwrap_or(0.0);
        Self { at, usage, waiting: rank.and_then(|rank| rank.waiting).unwrap_or(0) }
    }
}

/// Gauge and margin: the reported use and the prompt must leave `margin` of the pool free.
pub(crate) struct Margin {
    pub(crate) margin: f64,
    pub(crate) interval: Option<Nanos>,
    seen: Seen,
}

impl Margin {
    pub(crate) fn new(margin: f64, interval: Option<Nanos>) -> Self {
        Self { margin, interval, seen: Seen::default() }
    }
}

impl Policy for Margin {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let need = ask.world.blocks(ask.request.prompt) as f64 / ask.setup.blocks as f64;
        Answer::because(self.seen.usage + need <= 1.0 - self.margin, "memory")
    }

    fn scraped(&mut self, at: Nanos, reading: &EngineReading) {
        self.seen = Seen::of(at, reading);
    }

    fn interval(&self) -> Option<Nanos> {
        self.interval
    }
}

/// kaito's middleware: deny while more wait than `limit`, the gauge hedged with what was sent since. It sits in the
/// engine's own process: its gauge is one step old.
pub(crate) struct WaitingLimit {
    /// `None`: as published, max_num_seqs.
    limit: Option<u64>,
    seen: Seen,
}

impl WaitingLimit {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { limit, seen: Seen::default() }
    }
}

impl Policy for WaitingLimit {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let sent_since = ask.streams.values().filter(|stream| stream.sent_at > self.seen.at).count() as u64;
        let limit = self.limit.unwrap_or(ask.setup.max_num_seqs);
        Answer::because(self.seen.waiting + sent_since <= limit, "slots")
    }

    fn scraped(&mut self, at: Nanos, reading: &EngineReading) {
        self.seen = Seen::of(at, reading);
    }

    fn interval(&self) -> Option<Nanos> {
        Some(super::epp::INTERVAL)
    }
}
