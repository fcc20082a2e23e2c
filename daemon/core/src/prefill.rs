//! The queue of prompts before an engine's first tokens: what is still to be computed, what that costs, and so when a new
//! request would see its first token.
//!
//! vLLM takes requests in order and gives each step's budget of tokens to the running ones first (v1/core/sched/
//! scheduler.py). So the prompts still to be computed are those of the requests that wait, and of at most one more that
//! is in the middle of its own.

use std::time::Duration;

use crate::{
    cost::{Cost, Work},
    rate::Mean,
    units::Mono,
};

/// A cost is learned from at least this much time of unbroken work, for prompts are counted when they end.
const WINDOW: Duration = Duration::from_millis(500);
/// Time over which it is learned what comes in by other ways than ours.
const INFLOW_MEMORY: Duration = Duration::from_secs(20);

/// The prompts that wait, and what they cost.
#[derive(Clone, Debug)]
pub(crate) struct Prefill {
    /// To be computed at the last reading.
    left: Work,
    /// Of what was admitted since.
    since: Work,
    read_at: Mono,
    cost: Cost,
    /// Seconds of work that come in by other ways than ours, per second.
    inflow: Mean,
    /// Work since the queue was last empty or the cost last learned, and its time.
    busy: (Work, Duration),
    was_backlogged: bool,
    /// What the counter moved and no prompt of ours accounts for yet, prompt tokens.
    pub(crate) credit: f64,
}

impl Default for Prefill {
    fn default() -> Self {
        Self {
            left: Work::default(),
            since: Work::default(),
            read_at: Mono(0),
            cost: Cost::default(),
            inflow: Mean::over(INFLOW_MEMORY),
            busy: (Work::default(), Duration::ZERO),
            was_backlogged: false,
            credit: 0.0,
        }
    }
}

/// What a reading says of prefill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) at: Mono,
    pub(crate) elapsed: Duration,
    /// Passed since the reading before.
    pub(crate) work: Work,
    /// Tokens computed in all its life, and the engine's own time in prefill, where it tells anew.
    pub(crate) told: Option<(f64, f64)>,
    /// Came in by other ways than ours.
    pub(crate) arrived: Work,
    /// Still to be computed.
    pub(crate) left: Work,
    /// Requests wait, and for nothing but their turn.
    pub(crate) backlogged: bool,
}

impl Prefill {
    /// A prompt was admitted.
    pub(crate) fn add(&mut self, work: Work) {
        self.since.add(work);
    }

    /// A prompt that was admitted since the last reading will not come.
    pub(crate) fn withdraw(&mut self, work: Work) {
        self.since.add(work.times(-1.0));
        self.since.tokens = self.since.tokens.max(0.0);
        self.since.squares = self.since.squares.max(0.0);
    }

    /// Takes in a reading.
    pub(crate) fn read(&mut self, passed: Passed) {
        if let Some(work) = self.cost.seconds(passed.arrived) {
            self.inflow.take(work / passed.elapsed.as_secs_f64(), passed.elapsed);
        }
        self.cost.pass(passed.elapsed);
        self.measure(&passed);
        (self.left, self.since, self.read_at) = (passed.left, Work::default(), passed.at);
        self.was_backlogged = passed.backlogged;
    }

    /// A cost holds only for time in which there was work from end to end: from one prompt's end to another's. Where the
    /// work began or ended in between, what passed since the queue was last empty took no longer; nor than the engine
    /// tells of its own time, in which prompts computed together count twice.
    fn measure(&mut self, passed: &Passed) {
        self.busy.0.add(passed.work);
        self.busy.1 += passed.elapsed;
        let (work, time) = self.busy;
        if self.was_backlogged && passed.backlogged {
            if time >= WINDOW && passed.work.tokens > 0.0 {
                self.cost.learn(work, time);
                self.busy = (Work::default(), Duration::ZERO);
            }
        } else if passed.left.tokens <= 0.0 {
            self.cost.learn_bound(work.tokens, time.as_secs_f64());
            self.busy = (Work::default(), Duration::ZERO);
        }
        if let Some((tokens, seconds)) = passed.told {
            self.cost.learn_bound(tokens, seconds);
        }
    }

    /// Seconds of work still to be done at `now`; `None` before a cost is known.
    fn queued(&self, now: Mono) -> Option<f64> {
        let net = 1.0 - self.inflow.get().unwrap_or(0.0);
        let work = self.cost.seconds(self.left)? + self.cost.seconds(self.since)?;
        Some((work - net * now.since(self.read_at).as_secs_f64()).max(0.0))
    }

    /// Tokens per second, over prompts as they came.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.cost.rate()
    }

    /// Whether nothing waits to be computed.
    pub(crate) fn empty(&self, now: Mono) -> bool {
        self.queued(now).is_none_or(|seconds| seconds <= 0.0)
    }

    /// Time that `work` takes by itself.
    pub(crate) fn time(&self, work: Work) -> Option<Duration> {
        Duration::try_from_secs_f64(self.cost.seconds(work)?).ok()
    }

    /// Time until `work` more will have been done, behind all that is queued.
    pub(crate) fn time_for(&self, now: Mono, work: Work) -> Option<Duration> {
        Duration::try_from_secs_f64(self.queued(now)? + self.cost.seconds(work)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{testing::at, units::Tokens};

    fn prompts(count: u64) -> Work {
        Work::of(Tokens(1000), Tokens(1000)).times(crate::units::real(count))
    }

    fn passed(seconds: f64, done: u64, left: u64) -> Passed {
        Passed {
            at: at(seconds),
            elapsed: Duration::from_millis(200),
            work: prompts(done),
            told: None,
            arrived: Work::default(),
            left: prompts(left),
            backlogged: left > 0,
        }
    }

    /// Ten prompts of 1,000 tokens that are worked off at five a second, one with each reading.
    fn working() -> Prefill {
        let mut prefill = Prefill::default();
        for tick in 1..6_u32 {
            prefill.read(passed(0.2 * f64::from(tick), 1, 11 - u64::from(tick)));
        }
        prefill
    }

    fn wait(prefill: &Prefill, seconds: f64, more: u64) -> f64 {
        prefill.time_for(at(seconds), prompts(more)).unwrap().as_secs_f64()
    }

    #[test]
    fn the_cost_is_learned_while_there_is_work() {
        let one = working().time(prompts(1)).unwrap().as_secs_f64();
        assert!((0.19..=0.21).contains(&one), "{one}");
    }

    #[test]
    fn less_work_than_it_could_do_does_not_make_it_look_slow() {
        let mut prefill = working();
        for tick in 6..60_u32 {
            prefill.read(passed(0.2 * f64::from(tick), u64::from(tick % 5 == 0), 0));
        }
        assert!(prefill.time(prompts(1)).unwrap().as_secs_f64() < 0.21);
    }

    #[test]
    fn the_engines_own_time_in_prefill_is_a_start() {
        let mut prefill = Prefill::default();
        prefill.read(Passed { told: Some((30_000.0, 10.0)), ..passed(0.2, 0, 0) });
        let one = prefill.time(prompts(1)).unwrap().as_secs_f64();
        assert!((one - 1.0 / 3.0).abs() < 1e-9, "{one}");
    }

    #[test]
    fn the_queue_drains_between_readings_and_grows_by_what_is_admitted() {
        let mut prefill = working();
        assert!((wait(&prefill, 1.0, 0) - 1.2).abs() < 0.02);
        assert!((wait(&prefill, 1.5, 0) - 0.7).abs() < 0.02);
        prefill.add(prompts(2));
        assert!((wait(&prefill, 1.0, 3) - 2.2).abs() < 0.05);
    }

    #[test]
    fn what_others_bring_keeps_the_queue_from_draining() {
        let mut prefill = working();
        for tick in 6..600_u32 {
            prefill.read(Passed { arrived: prompts(1), ..passed(0.2 * f64::from(tick), 1, 6) });
        }
        let queued = wait(&prefill, 0.2 * 599.0 + 5.0, 0);
        assert!((queued - 1.2).abs() < 0.1, "{queued}");
    }

    #[test]
    fn without_a_cost_nothing_is_predicted() {
        assert_eq!(Prefill::default().time_for(at(0.0), prompts(1)), None);
        assert!(Prefill::default().empty(at(0.0)));
    }
}
