//! One KV pool (of one data-parallel rank): its size, its last reading, and what is learned from its readings.

use std::time::Duration;

use crate::{
    band::Band,
    caution::Caution,
    cost::Work,
    explain::Terms,
    figures::{Change, Figures, length_quantile, mean_prompt, share_of},
    forecast::Other,
    ledger::Sums,
    need::Need,
    observation::{EngineFacts, RankReading},
    parts::Parts,
    prefill::{Passed, Prefill},
    rate::{Drain, Mean},
    request::Class,
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
/// Time over which the mean use of bypass traffic is learned.
const BYPASS_MEMORY: Duration = Duration::from_mins(1);
/// Time over which it is learned how many blocks a request really takes.
const WEIGHT_MEMORY: Duration = Duration::from_secs(30);
/// Least blocks of ours from which that is learned.
const WEIGHT_SAMPLE: Blocks = Blocks(20);
/// Use of the pool, share, beyond which requests may wait for room.
const FULL: f64 = 0.95;
/// Standard deviations to one side of a 95 % band.
const BAND_SIGMAS: f64 = 1.96;
/// Share of the pool by which our reckoning of our own requests may be off.
const OURS_SLACK: f64 = 0.1;
/// So many times as many as usual may have come by other ways; more is not believed before it is seen.
const BUSIEST: f64 = 5.0;
/// How long they stay is known when more than so many come in a second.
const LEAST_STRANGERS: f64 = 0.02;
/// Output tokens after which they are taken to have been replaced, before that is known.
pub(crate) const BYPASS_LIFE: f64 = 256.0;
/// No step is believed to take longer.
const LONGEST_STEP: Duration = Duration::from_millis(500);
/// Less use than this, in blocks, is none.
const NO_BLOCKS: f64 = 0.5;
/// Slack for a scrape's own duration when judging whether a reading is overdue.
const IDLE_SLACK: Duration = Duration::from_secs(1);

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
    /// Blocks that requests held when they ended.
    pub(crate) drain: Drain,
    /// Blocks that they had been promised.
    pub(crate) promised_drain: Drain,
    pub(crate) prefill: Prefill,
    /// How far off what is published of its use is, and what the forecast starts from. Of a prompt the forecast counts the
    /// whole: it need not know which pieces of it have their blocks already.
    pub(crate) band: Band,
    pub(crate) doubt: Band,
    pub(crate) caution: Caution,
    /// Requests in the engine that are not ours, at the last reading.
    pub(crate) bypass: u64,
    /// Blocks that are in use for each one we reckon: below 1 where prompts share a prefix, and whatever hybrid models
    /// make of it.
    weight: Mean,
    /// For how long all requests in the engine were ours.
    alone: Duration,
    /// Prompt tokens by which the counter lags behind what passed by all other signs; never positive.
    beyond_ours: f64,
    /// Share of prompt tokens that the prefix cache holds.
    cached: Mean,
    /// Blocks in the last reading beyond what we reckon our requests to hold in it; negative where it has less.
    residual: f64,
    /// Blocks in the last reading that our requests do not explain, their long-run mean and mean square.
    unexplained: f64,
    unexplained_mean: Mean,
    unexplained_square: Mean,
    /// Long-run mean of requests that are not ours.
    bypassing: Mean,
    pub(crate) parts: Parts,
}

/// What the reservations of a pool hold by our reckoning, in blocks as requests take them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// All of them.
    pub(crate) all: Blocks,
    /// Of those, the ones that no reading was seen to show, now or at their end.
    pub(crate) unseen: Blocks,
    /// Sequences of those.
    pub(crate) unseen_sequences: u64,
}

/// What a reading shows of the queue of prompts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    /// Of ours that has passed since the reading before: to be computed, and in prompt tokens.
    pub(crate) passed: Work,
    pub(crate) passed_prompts: f64,
    /// Of ours still to be computed; and those of which something is, as a whole.
    pub(crate) left: Work,
    pub(crate) ours: Work,
    /// Requests that came in by other ways than ours, and those of them that wait.
    pub(crate) others_arrived: u64,
    pub(crate) others_waiting: u64,
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
            promised_drain: Drain::default(),
            prefill: Prefill::default(),
            band: Band::default(),
            doubt: Band::default(),
            caution: Caution::default(),
            bypass: 0,
            weight: Mean::over(WEIGHT_MEMORY),
            alone: Duration::ZERO,
            beyond_ours: 0.0,
            cached: Mean::over(WEIGHT_MEMORY),
            residual: 0.0,
            unexplained: 0.0,
            unexplained_mean: Mean::over(BYPASS_MEMORY),
            unexplained_square: Mean::over(BYPASS_MEMORY),
            bypassing: Mean::over(BYPASS_MEMORY),
            parts: Parts::default(),
        }
    }

    /// The same with these of its learned parts; nothing was learned yet.
    pub(crate) fn with(self, parts: Parts) -> Self {
        Self { parts, prefill: Prefill::of(parts), ..self }
    }

    /// Takes in a reading; returns how many requests arrived and how the counters moved.
    pub(crate) fn read(&mut self, span: Span, interval: Duration, raw: RankReading) -> Change {
        self.learn_size(&raw);
        let used = self.total.zip(raw.kv_usage).map(|(total, usage)| share_of(total, usage));
        let change = Change::between(self.figures.as_ref(), span, &raw);
        if let Some(rate) = change.token_rate {
            self.token_rate.take(rate, change.elapsed);
        }
        if self.parts.caution {
            self.caution.learn(&change, self.prefill.others_share());
        }
        self.figures = Some(Figures { span, interval, raw, used });
        change
    }

    /// vLLM counts one null block in num_gpu_blocks that holds nothing (v1/core/block_pool.py). Where it tells the
    /// pool's size in tokens, tokens per block follow from it: hybrid models report a block_size that does not multiply
    /// out.
    pub(crate) fn learn_size(&mut self, raw: &RankReading) {
        let Some(blocks) = raw.num_gpu_blocks.filter(|blocks| *blocks > 1) else { return };
        self.total = Some(Blocks(blocks - 1));
        let by_tokens = raw.kv_cache_size_tokens.map(|tokens| tokens / blocks);
        if let Some(size) = by_tokens.or(raw.block_size).filter(|size| *size > 0) {
            self.block_size = size;
        }
    }

    /// Takes in what a reading says of the queue of prompts.
    pub(crate) fn read_prefill(&mut self, change: &Change, queue: &Queue) {
        if let Some(share) = change.cached_share {
            self.cached.take(share, change.elapsed);
        }
        let Some(figures) = &self.figures else { return };
        let computed = 1.0 - self.cached_share();
        let usual = real(mean_prompt(&figures.raw).unwrap_or(BYPASS_PROMPT).0);
        let beyond = real(change.prompt_tokens) - queue.passed_prompts;
        // Which of ours have passed is known where gateways tell.
        let (others, tokens) =
            ((queue.others_arrived, queue.others_waiting), self.prefill.told().then_some(beyond));
        self.prefill.strangers.learn_prompts(change.elapsed, others, tokens);
        let prompt = Tokens(count_up(self.prefill.strangers.prompt(usual)));
        let one = Work::of(prompt, Tokens(count_up(real(prompt.0) * computed)));
        let full = figures.raw.kv_usage.is_some_and(|usage| usage > FULL);
        let (mut left, mut work) = (queue.left, queue.passed);
        left.add(one.times(real(queue.others_waiting)));
        // What passed beyond ours was theirs; gateways tell sooner or later than the counter.
        self.beyond_ours += beyond;
        let theirs = self.beyond_ours.max(0.0) / real(prompt.0.max(1));
        self.beyond_ours = if figures.idle() { 0.0 } else { self.beyond_ours.min(0.0) };
        work.add(one.times(theirs));
        self.prefill.read(Passed {
            at: figures.span.not_before,
            elapsed: change.elapsed,
            work,
            told: change.prefill.map(|(tokens, seconds)| (tokens * computed, seconds)),
            arrived: queue.others_arrived,
            stranger: one,
            among_ours: self.bypass == 0,
            others: (change.all_arrivals > 0)
                .then(|| (real(queue.others_arrived) / real(change.all_arrivals)).min(1.0)),
            left,
            ours: queue.ours,
            backlogged: figures.raw.waiting > Some(0) && !full,
        });
    }

    /// Tokens of `prompt` that the prefix cache is not expected to hold: `known` of them are in it because its session
    /// was here before, else the usual share.
    pub(crate) fn uncached(&self, prompt: Tokens, known: Option<Tokens>) -> Tokens {
        let cached = known.unwrap_or_else(|| Tokens(count_up(self.cached_share() * real(prompt.0))));
        // The last token is always computed.
        prompt.saturating_sub(cached).max(Tokens(1))
    }

    /// Sets what the reading shows against what we reckon our requests hold in it: learns from the difference.
    pub(crate) fn explain(&mut self, shown: Blocks, elapsed: Duration) {
        let Some(figures) = &self.figures else { return };
        let Some(used) = figures.used else { return };
        let settled = self.prefill.empty(figures.span.not_before);
        self.alone = if self.bypass == 0 { self.alone.saturating_add(elapsed) } else { Duration::ZERO };
        if self.alone >= BYPASS_MEMORY && figures.raw.waiting == Some(0) && settled && shown >= WEIGHT_SAMPLE
        {
            self.weight.take((real(used.0) / real(shown.0)).clamp(0.2, 4.0), elapsed);
        }
        let beyond = real(used.0) - self.weight() * real(shown.0);
        // Where all requests are ours, so are their blocks, but for what no request explains.
        let slack = if self.bypass == 0 { real(self.total.unwrap_or_default().0) * OURS_SLACK } else { 0.0 };
        self.unexplained = (beyond - slack).max(0.0);
        self.residual = beyond;
        let bypass = if self.bypass > 0 { self.unexplained } else { 0.0 };
        self.bypassing.take(real(self.bypass), elapsed);
        self.unexplained_mean.take(bypass, elapsed);
        self.unexplained_square.take(bypass * bypass, elapsed);
    }

    pub(crate) fn weight(&self) -> f64 {
        self.weight.get().filter(|_| self.parts.block_weight).unwrap_or(1.0)
    }

    /// Share of prompt tokens that the prefix cache holds.
    fn cached_share(&self) -> f64 {
        self.cached.get().filter(|_| self.parts.cached_share).unwrap_or(0.0)
    }

    /// Use by traffic that the ledger does not know of, now and as it goes on. `life`: mean output length, worked out
    /// only where there is any.
    pub(crate) fn other(&self, now: Mono, life: impl FnOnce() -> f64) -> Other {
        let age = self.age(now).unwrap_or_default();
        let bound = self.uncertainty(now, 0);
        let above = if self.parts.decision_band { self.doubt.width(age, bound).1 } else { bound };
        let doubt = (real(above.0) / BAND_SIGMAS).powi(2);
        let none = |mean: Option<f64>| mean.is_none_or(|mean| mean < NO_BLOCKS);
        if self.bypass == 0 && self.unexplained < NO_BLOCKS && none(self.unexplained_mean.get()) {
            return Other { doubt, ..Other::default() };
        }
        let learned = |mean: &Mean| mean.get().filter(|_| self.parts.bypass_use);
        let mean = learned(&self.unexplained_mean).unwrap_or(self.unexplained);
        let square = learned(&self.unexplained_square).unwrap_or(mean * mean);
        let strangers = &self.prefill.strangers;
        let (usual, came) = (strangers.usual(age), strangers.since(age));
        let rate = self.token_rate.get().unwrap_or(0.0);
        Other {
            now: self.unexplained,
            growth: real(self.bypass) / real(self.block_size.max(1)),
            mean,
            variance: (square - mean * mean).max(0.0),
            doubt,
            since: rate * age.as_secs_f64(),
            busier: if usual > 0.0 { (came / usual).min(BUSIEST) } else { 1.0 },
            life: self.stay().map_or_else(life, |stay| stay * rate),
        }
    }

    /// How long those stay that come by other ways, seconds: by Little's law.
    fn stay(&self) -> Option<f64> {
        let usual = self.prefill.strangers.usual(Duration::from_secs(1));
        self.bypassing.get().filter(|_| usual > LEAST_STRANGERS).map(|bypassing| bypassing / usual)
    }

    /// Use now, by our reckoning: what the reading has beyond ours, and what ours hold now. `None` before a reading.
    pub(crate) fn corrected(&self, now: Mono, held: Blocks) -> Option<f64> {
        self.figures.as_ref()?.used?;
        // What others held then has ended in part, and others came.
        let theirs = if self.unexplained > 0.0 || self.bypass > 0 {
            self.other(now, || BYPASS_LIFE).by_now() - self.unexplained
        } else {
            0.0
        };
        let estimate = (self.residual + theirs + self.weight() * real(held.0)).max(0.0);
        Some(self.total.map_or(estimate, |total| estimate.min(real(total.0))))
    }

    /// The band around [`Self::corrected`]: how far the truth may lie below and above.
    pub(crate) fn width(&self, now: Mono, held: &Held) -> (Blocks, Blocks) {
        let age = self.age(now).unwrap_or_default();
        let bound = self.uncertainty(now, held.unseen_sequences);
        if !self.parts.band {
            return (bound + held.unseen, bound);
        }
        // The estimate is of the step under way, which no reading has shown.
        let (below, above) = self.band.width(age + self.step(), bound);
        if self.band.learned() { (below, above) } else { (below + held.unseen, above) }
    }

    /// How long a step takes.
    pub(crate) fn step(&self) -> Duration {
        let rate = self.token_rate.get().filter(|rate| *rate > 0.0);
        let step = rate.and_then(|rate| Duration::try_from_secs_f64(1.0 / rate).ok());
        step.unwrap_or_default().min(LONGEST_STEP)
    }

    /// How long the step takes that is under way at `at`: a long one where prompts are computed, up to `chunk` tokens in a
    /// step.
    pub(crate) fn step_at(&self, at: Mono, chunk: Tokens) -> Duration {
        if self.prefill.empty(at) {
            return self.step();
        }
        let long = self.prefill.time(Work::of(chunk, chunk)).unwrap_or_default();
        self.step().max(long.min(LONGEST_STEP))
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

    /// Blocks that requests of `class` leave free for the other classes.
    pub(crate) fn kept_from(&self, class: Class, settings: &Settings) -> Blocks {
        let (total, limit) = (self.total.unwrap_or_default(), self.limit(settings).unwrap_or_default());
        let share = settings.classes.of(class).pool_share;
        if share >= 1.0 {
            return Blocks::ZERO;
        }
        limit.saturating_sub(Blocks(count_up(real(total.0) * share)))
    }

    /// The worst case: use in the last reading, changed by all that the ledger knows since, with every live request
    /// growing to all it may, plus the need.
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
            peak: None,
            prompt: need.map_or(Tokens::ZERO, |need| need.prompts.total),
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
            + (prompt + output).to_blocks(self.block_size).times(waiting)
    }

    /// What may have changed since the reading was made, at the measured token rate, and one partly filled block for
    /// each sequence.
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

    /// The pool for those who look.
    pub(crate) fn snapshot(&self, now: Mono, terms: &Terms, held: &Held) -> PoolSnapshot {
        let corrected = self.corrected(now, held.all).map(|estimate| {
            let (below, above) = self.width(now, held);
            let estimate = Blocks(count_up(estimate - 0.5));
            let high = self.total.map_or(estimate + above, |total| (estimate + above).min(total));
            (estimate.saturating_sub(below), estimate, high)
        });
        let raw = self.figures.as_ref().map(|figures| &figures.raw);
        PoolSnapshot {
            rank: self.rank,
            total: self.total,
            block_size: self.total.map(|_| self.block_size),
            reported: terms.reported,
            corrected,
            committed: terms.reported.map(|_| terms.committed()),
            running: raw.and_then(|raw| raw.running),
            waiting: raw.and_then(|raw| raw.waiting),
            age: self.age(now),
        }
    }

    /// The engine's process is another one: what was in it is gone.
    pub(crate) fn forget_use(&mut self) {
        (self.bypass, self.unexplained, self.residual, self.beyond_ours) = (0, 0.0, 0.0, 0.0);
        self.prefill = Prefill::of(self.parts);
    }
}

impl Terms {
    /// All that is committed, the need of the request included, if every live request grows to all it may.
    #[must_use]
    pub fn committed(&self) -> Blocks {
        let promised = self.reported.unwrap_or_default() + self.growth + self.unseen + self.bypass;
        promised.saturating_sub(self.ended) + self.need
    }

    /// Blocks by which that exceeds the limit; zero when it fits or the pool is unknown.
    #[must_use]
    pub fn excess(&self) -> Blocks {
        self.limit.map_or(Blocks::ZERO, |limit| self.committed().saturating_sub(limit))
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
