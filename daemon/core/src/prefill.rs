//! The queue of prompts before an engine's first tokens: how many prompt tokens are still to be computed, how fast that
//! goes, and so when a new request would see its first token.
//!
//! vLLM exports the tokens of prompts that have passed prefill, but not those that wait. What waits is what came in by
//! our ledger (and by bypass traffic, at the mean) less what that counter has moved.

use std::time::Duration;

use crate::{
    rate::Mean,
    units::{Mono, Tokens, count_up, real},
};

/// A rate is measured over at least this much time of unbroken work, for prompts are counted when they end.
const WINDOW: Duration = Duration::from_millis(500);
/// Without any prompt passing for this many times what the queue should take, the queue is not there.
const PATIENCE: f64 = 4.0;

/// The prompts that wait, and how fast they go.
#[derive(Clone, Debug)]
pub(crate) struct Prefill {
    /// Prompt tokens not yet computed, at the last reading, changed by what was admitted since.
    owed: f64,
    /// Of those, admitted since the reading.
    since_reading: f64,
    read_at: Mono,
    /// When a prompt last passed.
    passed_at: Mono,
    /// Tokens per second while there is work.
    rate: Mean,
    /// Unbroken work since the last rate was taken: tokens and time.
    busy: (f64, Duration),
}

impl Default for Prefill {
    fn default() -> Self {
        Self {
            owed: 0.0,
            since_reading: 0.0,
            read_at: Mono(0),
            passed_at: Mono(0),
            rate: Mean::over(Duration::from_secs(20)),
            busy: (0.0, Duration::ZERO),
        }
    }
}

/// What a reading says of prefill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) at: Mono,
    pub(crate) elapsed: Duration,
    /// Prompt tokens that have passed since the reading before.
    pub(crate) tokens: f64,
    /// Prompt tokens that came in by other ways than ours.
    pub(crate) others: f64,
    /// Nothing runs and nothing waits.
    pub(crate) idle: bool,
    /// Prompt tokens of ours that no reading shows yet.
    pub(crate) unseen: f64,
}

impl Prefill {
    /// Before we have measured: the engine's own mean since its start.
    pub(crate) fn seed(&mut self, tokens: f64, seconds: f64) {
        if self.rate.get().is_none() && tokens > 0.0 && seconds > 0.0 {
            self.rate.take(tokens / seconds, Duration::from_secs(1));
        }
    }

    /// A prompt was admitted.
    pub(crate) fn add(&mut self, prompt: Tokens) {
        self.owed += real(prompt.0);
        self.since_reading += real(prompt.0);
    }

    /// A request ended that had not come to its first token.
    pub(crate) fn withdraw(&mut self, prompt: Tokens) {
        self.owed = (self.owed - real(prompt.0)).max(0.0);
    }

    /// Takes in a reading.
    pub(crate) fn read(&mut self, passed: Passed) {
        let before = self.owed - self.since_reading;
        self.owed = (self.owed + passed.others - passed.tokens).max(0.0);
        if passed.tokens > 0.0 {
            self.passed_at = passed.at;
        }
        let due = self.rate.get().map_or(f64::INFINITY, |rate| PATIENCE * self.owed / rate + 1.0);
        if passed.idle || passed.at.since(self.passed_at).as_secs_f64() > due {
            self.owed = passed.unseen;
        }
        self.measure(before, &passed);
        (self.since_reading, self.read_at) = (0.0, passed.at);
    }

    /// A rate holds only for time in which there was work from end to end; where the work ended in between, what
    /// passed is at least a lower bound.
    fn measure(&mut self, before: f64, passed: &Passed) {
        let (tokens, time) = (self.busy.0 + passed.tokens, self.busy.1 + passed.elapsed);
        if before > 0.0 && self.owed > 0.0 {
            self.busy = (tokens, time);
            if time >= WINDOW && tokens > 0.0 {
                self.rate.take(tokens / time.as_secs_f64(), time);
                self.busy = (0.0, Duration::ZERO);
            }
            return;
        }
        let bound = tokens / time.as_secs_f64();
        if bound.is_finite() && bound > 0.0 && self.rate.get().is_none_or(|rate| bound > rate) {
            self.rate.take(bound, time.max(WINDOW));
        }
        self.busy = (0.0, Duration::ZERO);
    }

    /// Prompt tokens still to be computed at `now`.
    pub(crate) fn queued(&self, now: Mono) -> Tokens {
        let gone = self.rate.get().unwrap_or(0.0) * now.since(self.read_at).as_secs_f64();
        Tokens(count_up((self.owed - gone).max(0.0)))
    }

    /// Tokens per second, where measured.
    pub(crate) const fn rate(&self) -> Option<f64> {
        self.rate.get()
    }

    /// Time until `prompt` more tokens will have been computed, behind all that is queued.
    pub(crate) fn time_for(&self, now: Mono, prompt: Tokens) -> Option<Duration> {
        let rate = self.rate.get().filter(|rate| *rate > 0.0)?;
        let seconds = real((self.queued(now) + prompt).0) / rate;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn passed(seconds: f64, tokens: f64) -> Passed {
        let elapsed = Duration::from_millis(200);
        Passed { at: at(seconds), elapsed, tokens, others: 0.0, idle: false, unseen: 0.0 }
    }

    /// A queue of 10,000 tokens that is worked off at 5,000 a second.
    fn working() -> Prefill {
        let mut prefill = Prefill::default();
        prefill.read(passed(0.0, 0.0));
        prefill.add(Tokens(10_000));
        prefill.read(passed(0.2, 0.0));
        for tick in 2..6 {
            prefill.read(passed(0.2 * f64::from(tick), 1000.0));
        }
        prefill
    }

    #[test]
    fn the_rate_is_measured_while_there_is_work() {
        let rate = working().rate().unwrap();
        assert!((4000.0..=5000.0).contains(&rate), "{rate}");
    }

    #[test]
    fn the_queue_is_what_came_in_less_what_passed() {
        let prefill = working();
        assert_eq!(prefill.queued(at(1.0)), Tokens(6000));
        assert!(prefill.queued(at(1.5)) < Tokens(4100));
        let wait = prefill.time_for(at(1.0), Tokens(4000)).unwrap().as_secs_f64();
        assert!((2.0..=2.5).contains(&wait), "{wait}");
    }

    #[test]
    fn an_idle_engine_has_no_queue_but_what_is_on_its_way() {
        let mut prefill = working();
        prefill.read(Passed { idle: true, unseen: 300.0, ..passed(2.0, 0.0) });
        assert_eq!(prefill.queued(at(2.0)), Tokens(300));
    }

    #[test]
    fn a_queue_of_which_nothing_passes_is_given_up() {
        let mut prefill = working();
        prefill.read(passed(1.2, 0.0));
        assert!(prefill.queued(at(1.2)) > Tokens::ZERO);
        prefill.read(passed(20.0, 0.0));
        assert_eq!(prefill.queued(at(20.0)), Tokens::ZERO);
    }

    #[test]
    fn without_a_rate_nothing_is_predicted() {
        assert_eq!(Prefill::default().time_for(at(0.0), Tokens(100)), None);
    }
}
