//! Rules that look at the engine's gauges only.

use gpuadmit_core::observation::EngineReading;

use super::{Answer, Ask, Policy};
use crate::time::{MILLISECOND, Nanos};

/// Everybody is let in.
pub(crate) struct Everybody;

impl Policy for Everybody {
    fn decide(&mut self, _: &Ask<'_>) -> Answer {
        Answer::plain(true)
    }
}

/// The clairvoyant: true lengths, true state, KV and TTFT.
pub(crate) struct Clairvoyant;

impl Policy for Clairvoyant {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        Answer::plain(ask.world.fits(ask.at, ask.request))
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
        Answer::plain(self.seen.usage + need <= 1.0 - self.margin)
    }

    fn scraped(&mut self, at: Nanos, reading: &EngineReading) {
        self.seen = Seen::of(at, reading);
    }

    fn interval(&self) -> Option<Nanos> {
        self.interval
    }
}

/// Endpoint picker of the Gateway API inference extension: an endpoint is saturated at max(queue / limit, kv / limit) ≥ 1,
/// or when its metrics are too old. Scraped every 50 ms.
pub(crate) struct EndpointThresholds {
    pub(crate) kv: f64,
    pub(crate) queue: u64,
    seen: Seen,
}

/// As published: `--refresh-metrics-interval` 50 ms, staleness 200 ms.
const PICKER_INTERVAL: Nanos = 50 * MILLISECOND;
const PICKER_STALE: Nanos = 200 * MILLISECOND;

impl EndpointThresholds {
    pub(crate) fn new(kv: f64, queue: u64) -> Self {
        Self { kv, queue, seen: Seen::default() }
    }
}

impl Policy for EndpointThresholds {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let stale = ask.at - self.seen.at > PICKER_STALE;
        Answer::plain(!stale && self.seen.usage < self.kv && self.seen.waiting < self.queue)
    }

    fn scraped(&mut self, at: Nanos, reading: &EngineReading) {
        self.seen = Seen::of(at, reading);
    }

    fn interval(&self) -> Option<Nanos> {
        Some(PICKER_INTERVAL)
    }
}

/// kaito's middleware: deny while more wait than `limit` (published: max_num_seqs), the gauge hedged with what was sent
/// since. It sits in the engine's own process: its gauge is one step old.
pub(crate) struct WaitingLimit {
    pub(crate) limit: u64,
    seen: Seen,
}

impl WaitingLimit {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, seen: Seen::default() }
    }
}

impl Policy for WaitingLimit {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let sent_since = ask.streams.values().filter(|stream| stream.sent_at > self.seen.at).count() as u64;
        Answer::plain(self.seen.waiting + sent_since <= self.limit)
    }

    fn scraped(&mut self, at: Nanos, reading: &EngineReading) {
        self.seen = Seen::of(at, reading);
    }

    fn interval(&self) -> Option<Nanos> {
        Some(PICKER_INTERVAL)
    }
}
