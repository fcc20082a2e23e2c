//! Endpoint picker of the Gateway API inference extension (now the llm-d router): its saturation detectors.

use gpuadmit_core::observation::EngineReading;

use super::{Answer, Ask, Policy, Stream};
use crate::time::{MILLISECOND, Nanos};

/// As published: metrics are refreshed every 50 ms, and stale after 200 ms.
pub(super) const INTERVAL: Nanos = 50 * MILLISECOND;
const STALE: Nanos = 200 * MILLISECOND;
/// Requests that may wait, as published.
const QUEUE: f64 = 5.0;

/// The utilization detector: saturated at max(queue / 5, use / limit) ≥ 1, or when its metrics are stale. Requests in
/// flight that the last scrape does not show count as waiting. With a limit on the requests in flight it is the
/// published combination with the concurrency detector: the more constrained of the two decides.
pub(crate) struct Utilization {
    /// Share of the pool.
    kv: f64,
    /// Most requests in flight, share of the slots; `None`: no limit.
    in_flight: Option<f64>,
    at: Nanos,
    usage: f64,
    waiting: u64,
    running: u64,
}

impl Utilization {
    pub(crate) fn new(kv: f64) -> Self {
        Self { kv, in_flight: None, at: 0, usage: 0.0, waiting: 0, running: 0 }
    }

    /// The published example: the pool may fill up, and requests in flight are limited.
    pub(crate) fn hybrid(in_flight: f64) -> Self {
        Self { in_flight: Some(in_flight), ..Self::new(1.0) }
    }
}

impl Policy for Utilization {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        if ask.at - self.at > STALE {
            return Answer::because(false, "stale");
        }
        let in_flight = ask.streams.len() as u64;
        let limit = self.in_flight.map_or(f64::INFINITY, |share| share * ask.setup.max_num_seqs as f64);
        if in_flight as f64 >= limit {
            return Answer::because(false, "slots");
        }
        let unseen = in_flight.saturating_sub(self.waiting + self.running);
        if (self.waiting + unseen) as f64 >= QUEUE {
            return Answer::because(false, "slots");
        }
        Answer::because(self.usage < self.kv, "memory")
    }

    fn scraped(&mut self, at: Nanos, reading: &EngineReading) {
        let Some(rank) = reading.ranks.first() else { return };
        self.at = at;
        self.usage = rank.kv_usage.unwrap_or(0.0);
        self.waiting = rank.waiting.unwrap_or(0);
        self.running = rank.running.unwrap_or(0);
    }

    fn interval(&self) -> Option<Nanos> {
        Some(INTERVAL)
    }
}

/// The concurrency detector by tokens: prompt tokens count until the first chunk, output is guessed as
/// min(1.5 × prompt, max_tokens, cap). Its default limit is 1,000,000; here a share of the pool's tokens.
pub(crate) struct TokenConcurrency(pub(crate) f64);

/// As published.
const OUTPUT_RATIO: f64 = 1.5;
/// Guessed outputs are cut here.
const OUTPUT_CAP: u64 = 4096;

impl TokenConcurrency {
    fn tokens(prompt: u64, max_tokens: Option<u64>, started: bool) -> u64 {
        let guess =
            ((prompt as f64 * OUTPUT_RATIO) as u64).min(max_tokens.unwrap_or(u64::MAX)).min(OUTPUT_CAP);
        if started { guess } else { prompt + guess }
    }
}

impl Policy for TokenConcurrency {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let of = |stream: &Stream| Self::tokens(stream.prompt, stream.max_tokens, stream.generated > 0);
        let in_flight: u64 = ask.streams.values().map(of).sum();
        let need = Self::tokens(ask.request.prompt, ask.request.max_tokens, false);
        let limit = self.0 * ask.setup.pool_tokens() as f64;
        Answer::because((in_flight + need) as f64 <= limit, "memory")
    }
}
