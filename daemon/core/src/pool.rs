//! One KV pool (of one data-parallel rank): its size, its last reading, and what they say together with the ledger.

use std::time::Duration;

use crate::{
    explain::Terms,
    ledger::Sums,
    need::{Need, blocks_held},
    observation::{EngineFacts, RankReading},
    rate::{Drain, Mean},
    settings::Settings,
    snapshot::PoolSnapshot,
    units::{Blocks, Mono, Span, Tokens, count_up, real},
};

/// vLLM's default, used until the engine tells (vLLM 0.32 config/cache.py).
const DEFAULT_BLOCK_SIZE: u64 = 16;
/// Share of past requests that ended within the output length assumed for a request we know nothing of.
const BYPASS_QUANTILE: f64 = 0.9;
/// Prompt tokens assumed for a request we know nothing of, until the engine's counters tell.
const BYPASS_PROMPT: Tokens = Tokens(512);

/// Output tokens per second and request that an engine may reach, until its own rate is measured.
const PRIOR_TOKEN_RATE: f64 = 50.0;

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

    /// Whether steps are due: something runs, or waits for nothing but room.
    pub(crate) fn busy(&self) -> bool {
        let deferred = self.raw.waiting_deferred.unwrap_or(0);
        self.raw.running > Some(0) || self.raw.waiting > Some(deferred)
    }
}

/// One pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) rank: u32,
    /// Blocks that can hold tokens: the null block is left out.
    pub(crate) total: Option<Blocks>,
    pub(crate) block_size: u64,
    pub(crate) figures: Option<Figures>,
    /// Output tokens per second and running request.
    pub(crate) token_rate: Mean,
    pub(crate) drain: Drain,
    /// Requests in the engine that are not ours, at the last reading.
    pub(crate) bypass: u64,
}

impl Pool {
    pub(crate) fn new(rank: u32, facts: &EngineFacts) -> Self {
        let block_size = facts.block_size.filter(|size| *size > 0).unwrap_or(DEFAULT_BLOCK_SIZE);
        Self {
            rank,
            total: None,
            block_size,
            figures: None,
            token_rate: Mean::default(),
            drain: Drain::default(),
            bypass: 0,
        }
    }

    /// Takes in a reading; returns how many requests arrived and how the counters moved.
    pub(crate) fn read(&mut self, span: Span, interval: Duration, raw: RankReading) -> Change {
        self.learn_size(&raw);
        let used = self.total.zip(raw.kv_usage).map(|(total, usage)| share_of(total, usage));
        let change = Change::between(self.figures.as_ref(), span, &raw);
        if let Some(rate) = change.token_rate {
            self.token_rate.take(rate, change.elapsed);
        }
        self.figures = Some(Figures { span, interval, raw, used });
        change
    }

    /// vLLM counts one null block in num_gpu_blocks that holds nothing (v1/core/block_pool.py). Where it tells the
    /// pool's size in tokens, tokens per block follow from it: hybrid models report a block_size that does not multiply
    /// out.
    fn learn_size(&mut self, raw: &RankReading) {
        let Some(blocks) = raw.num_gpu_blocks.filter(|blocks| *blocks > 1) else { return };
        self.total = Some(Blocks(blocks - 1));
        let by_tokens = raw.kv_cache_size_tokens.map(|tokens| tokens / blocks);
        if let Some(size) = by_tokens.or(raw.block_size).filter(|size| *size > 0) {
            self.block_size = size;
        }
    }

    /// Age of the last reading.
    pub(crate) fn age(&self, now: Mono) -> Option<Duration> {
        self.figures.as_ref().map(|figures| now.since(figures.span.not_before))
    }

    /// Most blocks that may be committed.
    pub(crate) fn limit(&self, settings: &Settings) -> Option<Blocks> {
        let total = self.total?;
        Some(Blocks(count_up(real(total.0) * settings.ceiling).min(total.0)))
    }

    /// The sum that decides: use in the last reading, changed by all that the ledger knows since, plus the need.
    pub(crate) fn terms(&self, now: Mono, sums: Sums, need: Option<&Need>, settings: &Settings) -> Terms {
        let reported = self.figures.as_ref().and_then(|figures| figures.used);
        // Where ours would be more than the reading has, it does not show all that we think it does.
        let missing = (sums.sure + sums.ended).saturating_sub(reported.unwrap_or_default());
        Terms {
            rank: self.rank,
            reported,
            age: self.age(now),
            growth: sums.seen.saturating_sub(sums.sure) + missing,
            unseen: sums.unseen,
            ended: sums.ended,
            bypass: self.bypass_growth(settings),
            need: need.map_or(Blocks::ZERO, |need| need.blocks(self.block_size)),
            limit: self.limit(settings),
            prompt: need.map_or(Tokens::ZERO, |need| need.prompt),
            output: need.map_or(Tokens::ZERO, |need| need.output),
            reservations: sums.count,
        }
    }

    /// What requests that are not ours may still grow by: the running ones to a high quantile of past output lengths,
    /// the waiting ones to that and a prompt.
    fn bypass_growth(&self, settings: &Settings) -> Blocks {
        let Some(figures) = self.figures.as_ref().filter(|_| self.bypass > 0) else { return Blocks::ZERO };
        let output = length_quantile(&figures.raw.generation_lengths, BYPASS_QUANTILE)
            .unwrap_or(settings.default_max_tokens);
        let prompt = mean_prompt(&figures.raw).unwrap_or(BYPASS_PROMPT);
        let waiting = figures.raw.waiting.unwrap_or(0).min(self.bypass);
        let running = self.bypass - waiting;
        output.to_blocks(self.block_size).times(running)
            + blocks_held(prompt, output, 1, self.block_size).times(waiting)
    }

    /// Half the width of the band around the corrected use: what may have changed since the reading was made, at the
    /// measured token rate, and one partly filled block for each sequence.
    pub(crate) fn uncertainty(&self, now: Mono, unseen_sequences: u64) -> Blocks {
        let Some(figures) = &self.figures else { return Blocks::ZERO };
        let sequences = figures.raw.running.unwrap_or(0).saturating_add(unseen_sequences);
        let rate = self.token_rate.get().unwrap_or(PRIOR_TOKEN_RATE);
        let tokens = real(sequences) * rate * now.since(figures.span.not_before).as_secs_f64();
        Blocks(count_up(tokens / real(self.block_size.max(1))).saturating_add(sequences))
    }

    /// Whether a reading that is not yet overdue shows that nothing runs and nothing waits.
    pub(crate) fn idle(&self, now: Mono) -> bool {
        self.figures.as_ref().is_some_and(|figures| {
            figures.idle() && now.since(figures.span.not_before) <= figures.interval * 2 + IDLE_SLACK
        })
    }

    /// The pool for those who look; `held` and `shown` are sums over its reservations, `unseen` what the unseen hold.
    pub(crate) fn snapshot(&self, now: Mono, terms: &Terms, held: Held) -> PoolSnapshot {
        let corrected = terms.reported.map(|reported| {
            let ours = held.shown + terms.ended;
            let of_others = reported.saturating_sub(ours);
            let estimate = of_others + held.now;
            let estimate = self.total.map_or(estimate, |total| estimate.min(total));
            let width = self.uncertainty(now, held.unseen_sequences);
            let high = estimate + width;
            let high = self.total.map_or(high, |total| high.min(total));
            // What is not in the reading may not have arrived.
            let not_there = held.unseen + ours.saturating_sub(reported);
            (estimate.saturating_sub(width + not_there), estimate, high)
        });
        let committed = terms.reported.map(|_| terms.committed());
        let raw = self.figures.as_ref().map(|figures| &figures.raw);
        PoolSnapshot {
            rank: self.rank,
            total: self.total,
            block_size: self.total.map(|_| self.block_size),
            reported: terms.reported,
            corrected,
            committed,
            running: raw.and_then(|raw| raw.running),
            waiting: raw.and_then(|raw| raw.waiting),
            age: self.age(now),
        }
    }
}

/// Slack for a scrape's own duration when judging whether a reading is overdue.
const IDLE_SLACK: Duration = Duration::from_secs(1);

/// What reservations hold, for the corrected use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// All of them, now.
    pub(crate) now: Blocks,
    /// In the last reading.
    pub(crate) shown: Blocks,
    /// Those that no reading was seen to show, now or at their end.
    pub(crate) unseen: Blocks,
    /// Sequences of those.
    pub(crate) unseen_sequences: u64,
}

impl Terms {
    /// All that is committed, the need of the request included.
    #[must_use]
    pub fn committed(&self) -> Blocks {
        let promised = self.reported.unwrap_or_default() + self.growth + self.unseen + self.bypass;
        promised.saturating_sub(self.ended) + self.need
    }

    /// Blocks by which the sum exceeds the limit; zero when it fits or the pool is unknown.
    #[must_use]
    pub fn excess(&self) -> Blocks {
        self.limit.map_or(Blocks::ZERO, |limit| self.committed().saturating_sub(limit))
    }
}

/// What changed from one reading to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    /// Time between the two.
    pub(crate) elapsed: Duration,
    /// Sequences that arrived, by Δ(running + waiting) + Δ(finished); `None` without both counts.
    pub(crate) arrivals: Option<u64>,
    /// Any counter or gauge moved.
    pub(crate) moved: bool,
    /// A counter fell: the engine was started anew.
    pub(crate) restarted: bool,
    /// Output tokens per second and running request, where something ran all the time.
    pub(crate) token_rate: Option<f64>,
}

impl Change {
    fn between(before: Option<&Figures>, span: Span, now: &RankReading) -> Self {
        let Some(before) = before else { return Self { moved: true, ..Self::default() } };
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
        Self {
            elapsed,
            arrivals: arrivals(before, now),
            moved,
            restarted,
            token_rate: token_rate(old, now, elapsed),
        }
    }
}

fn arrivals(before: &Figures, now: &RankReading) -> Option<u64> {
    let in_engine = now.running?.saturating_add(now.waiting?);
    let finished = now.finished?.saturating_sub(before.raw.finished?);
    Some(in_engine.saturating_add(finished).saturating_sub(before.in_engine()?))
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
fn share_of(total: Blocks, usage: f64) -> Blocks {
    Blocks(count_up((usage.clamp(0.0, 1.0) * real(total.0) - 0.5).max(0.0)))
}

/// Output length that `share` of past requests did not exceed, from a cumulative histogram; `None` without requests.
/// In the unbounded last bucket its lower end is the answer.
fn length_quantile(buckets: &[(f64, u64)], share: f64) -> Option<Tokens> {
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

fn mean_prompt(raw: &RankReading) -> Option<Tokens> {
    let finished = raw.finished.filter(|finished| *finished > 0)?;
    Some(Tokens(raw.prompt_tokens? / finished))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, facts, rank};

    fn pool(used: u64, running: u64) -> Pool {
        let mut pool = Pool::new(0, &facts(at(0.0)));
        pool.read(Span::at(at(0.0)), Duration::from_secs(1), rank(used, running, 0, 0));
        pool
    }

    #[test]
    fn the_null_block_holds_nothing() {
        assert_eq!(pool(37, 1).total, Some(Blocks(100)));
        assert_eq!(pool(37, 1).figures.unwrap().used, Some(Blocks(37)));
    }

    #[test]
    fn a_hybrid_models_block_size_follows_from_the_pool_in_tokens() {
        let mut pool = pool(0, 0);
        let raw =
            RankReading { block_size: Some(4), kv_cache_size_tokens: Some(101 * 256), ..rank(0, 0, 0, 0) };
        pool.read(Span::at(at(1.0)), Duration::from_secs(1), raw);
        assert_eq!(pool.block_size, 256);
    }

    #[test]
    fn a_pool_whose_size_is_not_told_has_no_limit_and_no_use() {
        let mut pool = Pool::new(0, &facts(at(0.0)));
        let raw = RankReading { num_gpu_blocks: None, ..rank(50, 1, 0, 0) };
        pool.read(Span::at(at(0.0)), Duration::from_secs(1), raw);
        let terms = pool.terms(at(0.0), Sums::default(), None, &Settings::default());
        assert_eq!((terms.limit, terms.reported), (None, None));
        assert_eq!(terms.excess(), Blocks::ZERO);
    }

    #[test]
    fn arrivals_are_what_came_into_the_engine_whether_it_stayed_or_ended() {
        let mut pool = pool(10, 2);
        // 2 in the engine; 5 ended since and 3 are there now: 6 came.
        let change = pool.read(Span::at(at(1.0)), Duration::from_secs(1), rank(10, 2, 1, 5));
        assert_eq!(change.arrivals, Some(6));
        assert!(change.moved && !change.restarted);
        let change = pool.read(Span::at(at(2.0)), Duration::from_secs(1), rank(10, 2, 1, 5));
        assert_eq!((change.arrivals, change.moved), (Some(0), false));
        let change = pool.read(Span::at(at(3.0)), Duration::from_secs(1), rank(0, 0, 0, 0));
        assert!(change.restarted);
    }

    #[test]
    fn the_token_rate_is_per_running_request() {
        let mut pool = pool(10, 4);
        let raw = RankReading { generation_tokens: Some(200), ..rank(12, 4, 0, 0) };
        pool.read(Span::at(at(2.0)), Duration::from_secs(1), raw);
        // 200 tokens, 4 requests, 2 seconds.
        assert_eq!(pool.token_rate.get(), Some(25.0));
    }

    #[test]
    fn the_operators_ceiling_lowers_the_limit() {
        let settings = Settings { ceiling: 0.8, ..Settings::default() };
        assert_eq!(pool(0, 0).limit(&settings), Some(Blocks(80)));
    }

    #[test]
    fn output_lengths_come_from_the_engines_histogram() {
        let buckets = [(10.0, 50), (100.0, 90), (1000.0, 100), (f64::INFINITY, 100)];
        assert_eq!(length_quantile(&buckets, 0.9), Some(Tokens(100)));
        assert_eq!(length_quantile(&buckets, 0.91), Some(Tokens(1000)));
        assert_eq!(length_quantile(&[(10.0, 0), (f64::INFINITY, 5)], 0.9), Some(Tokens(10)));
        assert_eq!(length_quantile(&[(f64::INFINITY, 0)], 0.9), None);
    }

    #[test]
    fn requests_that_are_not_ours_are_given_room_to_grow() {
        let mut pool = pool(30, 3);
        pool.bypass = 2;
        let raw = RankReading {
            waiting: Some(1),
            prompt_tokens: Some(1600),
            generation_lengths: vec![(32.0, 10), (f64::INFINITY, 10)],
            ..rank(30, 3, 1, 10)
        };
        pool.read(Span::at(at(1.0)), Duration::from_secs(1), raw);
        // One running may grow by 32 tokens = 2 blocks; one waits with 160 + 32 tokens = 12 blocks.
        let terms = pool.terms(at(1.0), Sums::default(), None, &Settings::default());
        assert_eq!(terms.bypass, Blocks(2 + 12));
    }
}
