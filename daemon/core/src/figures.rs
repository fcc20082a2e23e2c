//! A pool's last reading, and what changed since the one before.

use std::time::Duration;

use crate::{
    observation::RankReading,
    units::{Blocks, Span, Tokens, count_up, real},
};

/// A pool's last reading.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) span: Span,
    /// How long until the next one is expected.
    pub(crate) interval: Duration,
    pub(crate) raw: RankReading,
    /// Blocks in use.
    pub(crate) used: Option<Blocks>,
}

impl Figures {
    /// Requests in the engine, running and waiting.
    pub(crate) fn in_engine(&self) -> Option<u64> {
        Some(self.raw.running?.saturating_add(self.raw.waiting?))
    }

    pub(crate) fn idle(&self) -> bool {
        self.in_engine() == Some(0)
    }

    /// Tokens that the engine has written to the pool in all its life: prompts but for what was cached, and outputs.
    pub(crate) fn written(&self) -> Tokens {
        let all = self.raw.prompt_tokens.unwrap_or(0).saturating_add(self.raw.generation_tokens.unwrap_or(0));
        Tokens(all.saturating_sub(self.raw.prefix_hits.unwrap_or(0)))
    }

    /// Whether steps are due: something runs, or waits for nothing but room.
    pub(crate) fn busy(&self) -> bool {
        let deferred = self.raw.waiting_deferred.unwrap_or(0);
        self.raw.running > Some(0) || self.raw.waiting > Some(deferred)
    }
}

/// What changed from one reading to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    /// Time between the two.
    pub(crate) elapsed: Duration,
    /// Sequences that arrived, by Δ(running + waiting) + Δ(finished); `None` without both counts.
    pub(crate) arrivals: Option<u64>,
    /// The same before ours were taken off; 0 where it is not known.
    pub(crate) all_arrivals: u64,
    /// Requests that were preempted, and that ended.
    pub(crate) preempted: u64,
    pub(crate) finished: u64,
    /// Any counter or gauge moved.
    pub(crate) moved: bool,
    /// A counter fell: the engine was started anew.
    pub(crate) restarted: bool,
    /// Output tokens per second and running request, where something ran all the time.
    pub(crate) token_rate: Option<f64>,
    /// Prompt tokens of requests that passed prefill.
    pub(crate) prompt_tokens: u64,
    /// Prompt tokens of the engine's whole life, and its own time in prefill, where it tells anew.
    pub(crate) prefill: Option<(f64, f64)>,
    /// Share of the tokens looked up in the prefix cache that were found there.
    pub(crate) cached_share: Option<f64>,
}

impl Change {
    pub(crate) fn between(before: Option<&Figures>, span: Span, now: &RankReading) -> Self {
        let Some(before) = before else {
            return Self { moved: true, prefill: prefill(None, now), ..Self::default() };
        };
        let old = &before.raw;
        let elapsed = span.not_before.since(before.span.not_before);
        let fell = |old: Option<u64>, new: Option<u64>| old.zip(new).is_some_and(|(old, new)| new < old);
        let restarted = fell(old.steps, now.steps)
            || fell(old.generation_tokens, now.generation_tokens)
            || fell(old.finished, now.finished);
        let moved = old.steps != now.steps
            || old.generation_tokens != now.generation_tokens
            || old.prompt_tokens != now.prompt_tokens
            || old.finished != now.finished
            || (old.running, old.waiting, old.kv_usage) != (now.running, now.waiting, now.kv_usage);
        let passed = old.prompt_tokens.zip(now.prompt_tokens).map(|(old, new)| new.saturating_sub(old));
        let arrivals = arrivals(before, now);
        let rose =
            |old: Option<u64>, new: Option<u64>| old.zip(new).map_or(0, |(old, new)| new.saturating_sub(old));
        Self {
            elapsed,
            preempted: rose(old.preemptions, now.preemptions),
            finished: rose(old.finished, now.finished),
            arrivals,
            all_arrivals: arrivals.unwrap_or(0),
            moved,
            restarted,
            token_rate: token_rate(old, now, elapsed),
            prompt_tokens: passed.unwrap_or(0),
            prefill: prefill(Some(old), now),
            cached_share: cached_share(old, now),
        }
    }
}

fn arrivals(before: &Figures, now: &RankReading) -> Option<u64> {
    let in_engine = now.running?.saturating_add(now.waiting?);
    let finished = now.finished?.saturating_sub(before.raw.finished?);
    Some(in_engine.saturating_add(finished).saturating_sub(before.in_engine()?))
}

/// Histograms are read more rarely than counters, so that only their whole sums go together.
fn prefill(old: Option<&RankReading>, now: &RankReading) -> Option<(f64, f64)> {
    let time = now.prefill_time.filter(|time| old.and_then(|old| old.prefill_time) != Some(*time))?;
    Some((real(now.prompt_tokens?), time.sum))
}

fn cached_share(old: &RankReading, now: &RankReading) -> Option<f64> {
    let queries = now.prefix_queries?.checked_sub(old.prefix_queries?)?;
    let hits = now.prefix_hits?.checked_sub(old.prefix_hits?)?;
    (queries > 0).then(|| (real(hits) / real(queries)).min(1.0))
}

/// Tokens generated in `elapsed`, per request that ran at both its ends.
fn token_rate(old: &RankReading, now: &RankReading, elapsed: Duration) -> Option<f64> {
    let running = real(old.running?.min(now.running?));
    let tokens = now.generation_tokens?.checked_sub(old.generation_tokens?)?;
    let mean_running = (running + real(old.running?.max(now.running?))) / 2.0;
    let request_seconds = mean_running * elapsed.as_secs_f64();
    (running > 0.0 && tokens > 0 && request_seconds > 0.0).then(|| real(tokens) / request_seconds)
}

/// `usage` of `total`, rounded to whole blocks; a usage outside 0 to 1 counts as its nearer end.
pub(crate) fn share_of(total: Blocks, usage: f64) -> Blocks {
    Blocks(count_up((usage.clamp(0.0, 1.0) * real(total.0) - 0.5).max(0.0)))
}

/// Output length that `share` of past requests did not exceed, from a cumulative histogram; `None` without requests.
/// In the unbounded last bucket its lower end is the answer.
pub(crate) fn length_quantile(buckets: &[(f64, u64)], share: f64) -> Option<Tokens> {
    let (_, all) = buckets.last().filter(|(_, all)| *all > 0)?;
    let wanted = count_up(real(*all) * share);
    let mut lower = 0.0;
    for (upper, count) in buckets {
        if *count >= wanted || !upper.is_finite() {
            return Some(Tokens(count_up(if upper.is_finite() { *upper } else { lower })));
        }
        lower = *upper;
    }
    None
}

pub(crate) fn mean_prompt(raw: &RankReading) -> Option<Tokens> {
    let finished = raw.finished.filter(|finished| *finished > 0)?;
    Some(Tokens(raw.prompt_tokens? / finished))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_lengths_come_from_the_engines_histogram() {
        let buckets = [(10.0, 50), (100.0, 90), (1000.0, 100), (f64::INFINITY, 100)];
        assert_eq!(length_quantile(&buckets, 0.9), Some(Tokens(100)));
        assert_eq!(length_quantile(&buckets, 0.91), Some(Tokens(1000)));
        assert_eq!(length_quantile(&[(10.0, 0), (f64::INFINITY, 5)], 0.9), Some(Tokens(10)));
        assert_eq!(length_quantile(&[(f64::INFINITY, 0)], 0.9), None);
    }
}
