//! What a prompt costs an engine, in seconds: so much per token, and so much per token and token before it, for attention
//! looks at all of them. Both are learned by least squares from what was computed in time without a gap.

use std::time::Duration;

use libm::exp;

use crate::{
    prompts::Prompts,
    units::{Tokens, real},
};

/// Work after which an older observation weighs 1/e.
const MEMORY: Duration = Duration::from_mins(1);
/// A time-out after which a cost that was never confirmed is believed less and less: else prompts that are denied for it
/// could never show that it is wrong.
const CONFIDENCE: Duration = Duration::from_mins(5);
/// Observations are of one kind when their determinant is below this share of what it could be; then only the cost per
/// token follows from them.
const ALIKE: f64 = 1e-3;

/// Prompt tokens to be computed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    /// Tokens.
    pub(crate) tokens: f64,
    /// Pairs of such a token and one before it, halves left out: p² − c² for a prompt of p tokens of which c are cached.
    pub(crate) squares: f64,
}

impl Work {
    /// A prompt of which all but the last `uncached` tokens are in the prefix cache.
    pub(crate) fn of(prompt: Tokens, uncached: Tokens) -> Self {
        Self::of_all(prompt.into(), uncached)
    }

    /// Several prompts. The squares of their lengths together are at most their sum times the longest.
    pub(crate) fn of_all(prompts: Prompts, uncached: Tokens) -> Self {
        let (total, cached) = (real(prompts.total.0), real(prompts.total.0.saturating_sub(uncached.0)));
        let share = if total > 0.0 { real(prompts.longest.0) / total } else { 1.0 };
        let squares = (total * total - cached * cached) * share;
        Self { tokens: total - cached, squares }
    }

    /// That many times this work.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { tokens: self.tokens * factor, squares: self.squares * factor }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.squares += other.squares;
    }

    /// What is left of it, never less than nothing.
    pub(crate) fn take_off(&mut self, other: Self) {
        self.tokens = (self.tokens - other.tokens).max(0.0);
        self.squares = (self.squares - other.squares).max(0.0);
    }
}

/// The two costs, as weighted sums of what was observed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    tokens_tokens: f64,
    tokens_squares: f64,
    squares_squares: f64,
    tokens_time: f64,
    squares_time: f64,
    /// An upper bound of the cost per token, until work without a gap was seen.
    bound: Option<f64>,
    /// Since something was learned.
    silent: Duration,
    /// Whether the cost per token is all that is learned.
    tokens_only: bool,
}

impl Cost {
    /// A cost per token and, unless `tokens_only`, per token and token before it.
    pub(crate) fn new(tokens_only: bool) -> Self {
        Self { tokens_only, ..Self::default() }
    }

    /// `work` took `time`, without a gap.
    pub(crate) fn learn(&mut self, work: Work, time: Duration) {
        let seconds = time.as_secs_f64();
        let keep = exp(-seconds / MEMORY.as_secs_f64());
        // Each observation weighs by its time: relative errors count alike.
        let weight = 1.0 / seconds.max(1e-3);
        for (sum, value) in [
            (&mut self.tokens_tokens, work.tokens * work.tokens),
            (&mut self.tokens_squares, work.tokens * work.squares),
            (&mut self.squares_squares, work.squares * work.squares),
            (&mut self.tokens_time, work.tokens * seconds),
            (&mut self.squares_time, work.squares * seconds),
        ] {
            *sum = *sum * keep + weight * value;
        }
        (self.bound, self.silent) = (None, Duration::ZERO);
    }

    /// `tokens` took no more than `seconds`: they may have waited in between.
    pub(crate) fn learn_bound(&mut self, tokens: f64, seconds: f64) {
        let cost = seconds / tokens;
        if !cost.is_finite() || cost <= 0.0 {
            return;
        }
        if self.tokens_tokens == 0.0 {
            self.bound = Some(self.bound.map_or(cost, |bound| bound.min(cost)));
        } else if self.per_token().is_some_and(|known| cost < known / 2.0) {
            // Something has become much faster: begin anew.
            *self = Self { bound: Some(cost), ..Self::new(self.tokens_only) };
        }
    }

    /// Time passes without anything learned.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.silent = self.silent.saturating_add(time);
    }

    /// Seconds per token, and per square.
    fn both(&self) -> Option<(f64, f64)> {
        if self.tokens_tokens <= 0.0 {
            return Some((self.bound?, 0.0));
        }
        let single = (self.tokens_time / self.tokens_tokens, 0.0);
        let most = self.tokens_tokens * self.squares_squares;
        let determinant = most - self.tokens_squares * self.tokens_squares;
        if self.tokens_only || determinant < most * ALIKE {
            return Some(single);
        }
        let of_tokens = self.tokens_time * self.squares_squares - self.squares_time * self.tokens_squares;
        let of_squares = self.squares_time * self.tokens_tokens - self.tokens_time * self.tokens_squares;
        let (per_token, per_square) = (of_tokens / determinant, of_squares / determinant);
        if per_square < 0.0 {
            return Some(single);
        }
        if per_token < 0.0 {
            return Some((0.0, self.squares_time / self.squares_squares));
        }
        Some((per_token, per_square))
    }

    /// Whether work without a gap was seen: what is known before is a bound at best.
    pub(crate) fn learned(&self) -> bool {
        self.tokens_tokens > 0.0
    }

    /// Whether it was confirmed of late.
    pub(crate) fn confirmed(&self) -> bool {
        self.learned() && self.silent <= MEMORY
    }

    fn per_token(&self) -> Option<f64> {
        (self.tokens_tokens > 0.0).then(|| self.tokens_time / self.tokens_tokens)
    }

    /// Tokens per second over prompts as they came.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.per_token().or(self.bound).map(|cost| 1.0 / cost)
    }

    /// Seconds that `work` takes; `None` before anything was seen.
    pub(crate) fn seconds(&self, work: Work) -> Option<f64> {
        let (per_token, per_square) = self.both()?;
        let doubt = self.silent.saturating_sub(MEMORY).as_secs_f64() / CONFIDENCE.as_secs_f64();
        Some((per_token * work.tokens + per_square * work.squares).max(0.0) * exp(-doubt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(prompt: u64) -> Work {
        Work::of(Tokens(prompt), Tokens(prompt))
    }

    /// 100 µs a token and 2 ns a square.
    fn truth(work: Work) -> f64 {
        work.tokens * 1e-4 + work.squares * 2e-9
    }

    fn learned(prompts: &[u64]) -> Cost {
        let mut cost = Cost::default();
        for prompt in prompts {
            let work = work(*prompt);
            cost.learn(work, Duration::from_secs_f64(truth(work)));
        }
        cost
    }

    #[test]
    fn both_costs_are_found_from_prompts_of_different_length() {
        let cost = learned(&[1000, 20_000, 4000, 60_000, 500]);
        for prompt in [2000, 100_000] {
            let (seconds, truth) = (cost.seconds(work(prompt)).unwrap(), truth(work(prompt)));
            assert!((seconds / truth - 1.0).abs() < 0.01, "{prompt}: {seconds} {truth}");
        }
    }

    #[test]
    fn prompts_of_one_length_teach_the_cost_of_that_length() {
        let cost = learned(&[8000, 8000, 8000]);
        assert!((cost.seconds(work(8000)).unwrap() / truth(work(8000)) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_cached_prefix_costs_nothing_but_is_looked_at() {
        let rest = Work::of(Tokens(10_000), Tokens(1000));
        assert_eq!((rest.tokens, rest.squares), (1000.0, 1e8 - 81e6));
    }

    #[test]
    fn an_upper_bound_serves_until_work_was_seen() {
        let mut cost = Cost::default();
        assert_eq!(cost.seconds(work(10)), None);
        cost.learn_bound(1000.0, 2.0);
        cost.learn_bound(1000.0, 0.5);
        cost.learn_bound(1000.0, 1.0);
        assert_eq!(cost.seconds(work(2000)), Some(1.0));
    }

    #[test]
    fn a_cost_that_is_never_confirmed_is_believed_less_and_less() {
        let mut cost = learned(&[8000, 8000]);
        let at_first = cost.seconds(work(8000)).unwrap();
        cost.pass(Duration::from_mins(1));
        assert_eq!(cost.seconds(work(8000)), Some(at_first));
        cost.pass(Duration::from_mins(10));
        assert!(cost.seconds(work(8000)).unwrap() < at_first / 5.0);
    }
}
