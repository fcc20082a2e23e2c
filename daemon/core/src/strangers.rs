//! How many requests come to an engine by other ways than ours: so many per second, and so many per request that asks us,
//! for what makes ours come makes others come as well. Both are learned by least squares from what readings showed to have
//! come; where the two do not go together, the second is found to be nothing.

use std::time::Duration;

use libm::exp;

use crate::{
    parts::Parts,
    units::{Mono, real},
};

/// Time after which an older reading weighs 1/e.
const MEMORY: Duration = Duration::from_mins(5);
/// Their prompts are taken to be as long as others' until more than so many have passed,
const USUAL: f64 = 10.0;
/// and so many times longer or shorter at most.
const UNUSUAL: f64 = 8.0;
/// Readings are of one kind when their determinant is below this share of what it could be; then only the number per
/// second follows from them.
const ALIKE: f64 = 1e-3;

/// The two numbers, as weighted sums of what came; and who has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Strangers {
    time_time: f64,
    time_asks: f64,
    asks_asks: f64,
    time_came: f64,
    asks_came: f64,
    /// Came by the last reading, in all; when that was made; and requests that asked us since.
    came: f64,
    read_at: Mono,
    asks: u64,
    /// Waited at the last reading.
    waiting: f64,
    /// Passed of late, and their prompt tokens.
    passed: f64,
    tokens: f64,
    parts: Parts,
}

impl Strangers {
    pub(crate) fn of(parts: Parts) -> Self {
        Self { parts, ..Self::default() }
    }

    /// A request asked us.
    pub(crate) fn ask(&mut self) {
        self.asks = self.asks.saturating_add(1);
    }

    /// A reading made at `at` shows that `came` of them came in `elapsed`.
    pub(crate) fn read(&mut self, at: Mono, elapsed: Duration, came: u64) {
        let asks = std::mem::take(&mut self.asks);
        self.learn(elapsed, asks, came);
        (self.came, self.read_at) = (self.came + real(came), at);
    }

    /// How many had come by the last reading, in all.
    pub(crate) const fn seen(&self) -> f64 {
        self.came
    }

    /// How many have come by `now`, in all: as readings showed, and as is to be expected since the last one.
    pub(crate) fn came(&self, now: Mono) -> f64 {
        self.came + self.expected(now.since(self.read_at), self.asks)
    }

    /// How many are expected to have come since the last reading, when that is `age` old.
    pub(crate) fn since(&self, age: Duration) -> f64 {
        self.expected(age, self.asks)
    }

    /// A reading, `elapsed` after the one before, shows that `came` of them came and `waiting` wait, and that prompts of
    /// `tokens` passed which were not ours, more or less by what it is too late or too early for; `None`: not known.
    pub(crate) fn learn_prompts(
        &mut self,
        elapsed: Duration,
        (came, waiting): (u64, u64),
        tokens: Option<f64>,
    ) {
        let passed = real(came) + std::mem::replace(&mut self.waiting, real(waiting)) - real(waiting);
        let Some(tokens) = tokens else { return };
        let keep = exp(-elapsed.as_secs_f64() / MEMORY.as_secs_f64());
        self.passed = self.passed * keep + passed;
        self.tokens = self.tokens * keep + tokens;
    }

    /// Prompt tokens of one, where all that the engine computes have `usual` on the average.
    pub(crate) fn prompt(&self, usual: f64) -> f64 {
        if !self.parts.bypass_prompt {
            return usual;
        }
        let mean = (self.tokens + USUAL * usual) / (self.passed.max(0.0) + USUAL);
        mean.clamp(usual / UNUSUAL, usual * UNUSUAL)
    }

    /// `came` of them in `elapsed`, in which `asks` asked us.
    fn learn(&mut self, elapsed: Duration, asks: u64, came: u64) {
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let (asks, came) = (real(asks), real(came));
        let keep = exp(-seconds / MEMORY.as_secs_f64());
        // Numbers vary as their expectations, and those go with time.
        let weight = 1.0 / seconds;
        for (sum, value) in [
            (&mut self.time_time, seconds * seconds),
            (&mut self.time_asks, seconds * asks),
            (&mut self.asks_asks, asks * asks),
            (&mut self.time_came, seconds * came),
            (&mut self.asks_came, asks * came),
        ] {
            *sum = *sum * keep + weight * value;
        }
    }

    /// Per second, and per ask.
    fn both(&self) -> (f64, f64) {
        if self.time_time <= 0.0 {
            return (0.0, 0.0);
        }
        let per_second = (self.time_came / self.time_time, 0.0);
        if !self.parts.bypass_per_ask {
            return per_second;
        }
        let most = self.time_time * self.asks_asks;
        let determinant = most - self.time_asks * self.time_asks;
        if determinant <= most * ALIKE {
            return per_second;
        }
        let of_time = self.time_came * self.asks_asks - self.asks_came * self.time_asks;
        let of_asks = self.asks_came * self.time_time - self.time_came * self.time_asks;
        if of_asks < 0.0 {
            return per_second;
        }
        if of_time < 0.0 {
            return (0.0, self.asks_came / self.asks_asks);
        }
        (of_time / determinant, of_asks / determinant)
    }

    /// How many are expected in `elapsed`, in which `asks` asked us.
    fn expected(&self, elapsed: Duration, asks: u64) -> f64 {
        let (per_second, per_ask) = match self.both() {
            (_, per_ask) if !self.parts.bypass_per_second => (0.0, per_ask),
            both => both,
        };
        per_second * elapsed.as_secs_f64() + per_ask * real(asks)
    }

    /// How many come in `time` on the average.
    pub(crate) fn usual(&self, time: Duration) -> f64 {
        let known = self.parts.bypass_per_second && self.time_time > 0.0;
        if known { self.time_came / self.time_time * time.as_secs_f64() } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn those_who_come_when_ours_do_are_told_from_those_who_come_anyway() {
        let mut strangers = Strangers::default();
        for second in 0..300_u64 {
            let asks = second * 7 % 12;
            // Two a second, and one for each three of ours.
            strangers.learn(SECOND, asks, 2 + (asks + second / 12 % 3) / 3);
        }
        assert!((strangers.expected(SECOND * 10, 0) - 20.0).abs() < 2.0);
        assert!((strangers.expected(Duration::ZERO, 30) - 10.0).abs() < 2.0);
    }

    #[test]
    fn those_who_came_are_as_many_as_readings_showed_and_as_is_to_be_expected_since() {
        let mut strangers = Strangers::default();
        for second in 0..100_u32 {
            strangers.read(Mono(0) + SECOND * second, SECOND, 3);
        }
        assert_eq!(strangers.came(Mono(0) + SECOND * 99), 300.0);
        assert!((strangers.came(Mono(0) + SECOND * 101) - 306.0).abs() < 1e-6);
    }

    #[test]
    fn their_prompts_are_what_passed_beside_ours() {
        let mut strangers = Strangers::default();
        assert_eq!(strangers.prompt(1000.0), 1000.0);
        // Ten come and wait: nothing of theirs has passed.
        strangers.learn_prompts(SECOND, (10, 10), Some(0.0));
        assert!((strangers.prompt(1000.0) - 1000.0).abs() < 1.0);
        // 90 more come and go; each has 3,000 tokens, and the ten still wait.
        for _ in 0..90 {
            strangers.learn_prompts(Duration::ZERO, (1, 10), Some(3000.0));
        }
        // Ten of the usual and ninety of theirs.
        assert!((strangers.prompt(1000.0) - 2800.0).abs() < 10.0, "{}", strangers.prompt(1000.0));
        // What is beyond belief comes from counts that do not go together.
        strangers.learn_prompts(Duration::ZERO, (0, 10), Some(1e9));
        assert_eq!(strangers.prompt(1000.0), 8000.0);
        strangers.learn_prompts(Duration::ZERO, (0, 10), Some(-2e9));
        assert_eq!(strangers.prompt(1000.0), 125.0);
    }

    #[test]
    fn at_a_steady_pace_time_alone_tells() {
        let mut strangers = Strangers::default();
        for _ in 0..100 {
            strangers.learn(SECOND, 5, 3);
        }
        assert!((strangers.expected(SECOND * 2, 50) - 6.0).abs() < 1e-6);
        assert!((strangers.usual(SECOND) - 3.0).abs() < 1e-6);
        assert_eq!(Strangers::default().usual(SECOND), 0.0);
        assert_eq!(Strangers::default().expected(SECOND, 9), 0.0);
    }

    #[test]
    fn strangers_that_wait_when_gateways_begin_to_tell_have_prompts_like_others() {
        let mut strangers = Strangers::default();
        // A hundred wait; one of a thousand tokens passes every second, and another comes.
        strangers.learn_prompts(SECOND, (1, 100), None);
        for _ in 0..100 {
            strangers.learn_prompts(SECOND, (1, 100), Some(1000.0));
        }
        let prompt = strangers.prompt(1000.0);
        assert!((500.0..2000.0).contains(&prompt), "{prompt}");
    }
}
