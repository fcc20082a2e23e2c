//! The queue of prompts before an engine's first tokens: what is still to be computed, what that costs, and so when a new
//! request would see its first token.
//!
//! vLLM takes requests in order and gives each step's budget of tokens to the running ones first (v1/core/sched/
//! scheduler.py). So the prompts still to be computed are those of the requests that wait, and of at most one more that
//! is in the middle of its own. And when a gateway tells of a first token, all that came before that request has been
//! computed, whatever the age of the last reading: what is left came after it.

use std::time::Duration;

use crate::{
    cost::{Cost, Work},
    margin::Margin,
    parts::Parts,
    rate::Mean,
    strangers::Strangers,
    units::Mono,
};

/// A cost is learned from at least this much time of unbroken work, for prompts are counted when they end.
const WINDOW: Duration = Duration::from_millis(500);
/// Time over which it is learned which share of requests comes by other ways than ours.
const OTHERS_MEMORY: Duration = Duration::from_secs(20);
/// Largest share of an engine's time that others are believed to take.
const MOST_OTHERS: f64 = 0.9;
/// First tokens of one step are told of within this time.
const SAME_STEP: Duration = Duration::from_millis(3);
/// So many strangers are none.
const FEW: f64 = 0.25;
/// Prompt tokens per second presumed before any were measured: a model of eight billion parameters on a large GPU.
const PRESUMED: f64 = 20_000.0;
/// Seconds.
const DAY: f64 = 86_400.0;
/// So many gateways in a row that told of a first token: one that was not told of has not come.
const TOLD: u32 = 8;

/// The prompts that wait, and what they cost.
#[derive(Clone, Debug)]
pub(crate) struct Prefill {
    /// To be computed at the last reading.
    left: Work,
    /// Of what was admitted since.
    since: Work,
    read_at: Mono,
    /// All that was admitted and has not passed.
    ours: Work,
    /// Seconds of work of others that is left beside.
    theirs: f64,
    /// When a prompt was last told to have passed.
    pub(crate) passed_at: Mono,
    /// Work by word of gateways since the cost was last learned, and its time.
    heard: (Work, Duration),
    /// The last step of which first tokens were told: work, time, and whether no stranger's prompt was in it.
    step: Work,
    step_time: Duration,
    step_alone: bool,
    /// Share of others among those that come in.
    others: Mean,
    /// Requests in a row that had told of their first token when they ended.
    told: u32,
    pub(crate) margin: Margin,
    cost: Cost,
    /// Who comes by other ways than ours, and what the prompt of one costs.
    pub(crate) strangers: Strangers,
    stranger: Work,
    /// Strangers that had come when the queue was last known, and before the one that last passed.
    came_then: f64,
    came_passed: f64,
    /// Whether all in the engine were ours at the last reading.
    among_ours: bool,
    /// Work since the queue was last empty or the cost last learned, and its time.
    busy: (Work, Duration),
    was_backlogged: bool,
    /// What the counter moved and no prompt of ours accounts for yet, prompt tokens.
    pub(crate) credit: f64,
    /// What passed by word of gateways since the last reading.
    passed: Work,
    passed_prompts: f64,
    parts: Parts,
}

impl Default for Prefill {
    fn default() -> Self {
        Self {
            left: Work::default(),
            since: Work::default(),
            read_at: Mono(0),
            ours: Work::default(),
            theirs: 0.0,
            passed_at: Mono(0),
            heard: (Work::default(), Duration::ZERO),
            step: Work::default(),
            step_time: Duration::ZERO,
            step_alone: true,
            others: Mean::over(OTHERS_MEMORY),
            told: 0,
            margin: Margin::default(),
            cost: Cost::default(),
            strangers: Strangers::default(),
            stranger: Work::default(),
            came_then: 0.0,
            came_passed: 0.0,
            among_ours: true,
            busy: (Work::default(), Duration::ZERO),
            was_backlogged: false,
            credit: 0.0,
            passed: Work::default(),
            passed_prompts: 0.0,
            parts: Parts::default(),
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
    /// Came in by other ways than ours; the share of those among all that came, if any did; and the prompt of one.
    pub(crate) arrived: u64,
    pub(crate) others: Option<f64>,
    pub(crate) stranger: Work,
    /// Nothing in the engine came by other ways.
    pub(crate) among_ours: bool,
    /// Still to be computed.
    pub(crate) left: Work,
    /// All of ours of which something is left, as a whole.
    pub(crate) ours: Work,
    /// Requests wait, and for nothing but their turn.
    pub(crate) backlogged: bool,
}

impl Prefill {
    /// With these of its learned parts.
    pub(crate) fn of(parts: Parts) -> Self {
        Self {
            parts,
            cost: Cost::new(!parts.cost_per_pair),
            strangers: Strangers::of(parts),
            ..Self::default()
        }
    }

    /// A prompt was admitted.
    pub(crate) fn add(&mut self, work: Work) {
        self.since.add(work);
        self.ours.add(work);
    }

    /// A prompt that was admitted since the last reading will not come.
    pub(crate) fn withdraw(&mut self, work: Work) {
        self.since.take_off(work);
    }

    /// A prompt that had not passed is gone.
    pub(crate) fn leave(&mut self, work: Work) {
        self.ours.take_off(work);
    }

    /// Whether times foreseen now can teach how late first tokens come.
    pub(crate) fn foresees(&self) -> bool {
        self.cost.learned()
    }

    /// The first token of a prompt is out that was admitted at `admitted`, when `came` strangers had come, if that is known:
    /// what is queued came after it.
    pub(crate) fn pass(&mut self, now: Mono, (admitted, came): (Mono, Option<f64>), work: Work) {
        self.leave(work);
        let passed_at = std::mem::replace(&mut self.passed_at, now);
        // Where not all are told of, what was not told of may have passed long ago.
        if !self.told() {
            return;
        }
        let time = now.since(passed_at.max(admitted));
        let between = came.map(|came| came - std::mem::replace(&mut self.came_passed, came));
        // One that was queued when the one before it passed took all the time since, but for strangers that came between
        // them; one that was not may have found strangers there.
        let few = between.map_or(self.among_ours, |count| count < FEW);
        let alone = if passed_at > admitted { few } else { self.among_ours };
        self.hear(work, time, alone);
        (self.left, self.since, self.read_at) = (self.ours, Work::default(), now);
        self.came_then = self.strangers.came(now);
        let behind = came.map_or_else(
            || self.strangers.usual(now.since(admitted)),
            |came| (self.came_then - came).max(0.0),
        );
        self.theirs = self.cost.seconds(self.stranger.times(behind)).unwrap_or(0.0);
    }

    /// A gateway has told of `work` that took `time`, `alone` or beside strangers' prompts. Of those it is not known how long
    /// they are: they teach only where nothing better has for long.
    fn hear(&mut self, work: Work, time: Duration, alone: bool) {
        // Prompts of one step are told of together, and the time of all of them with the first.
        if time <= SAME_STEP {
            self.step.add(work);
            self.step_time += time;
            self.step_alone &= alone;
            return;
        }
        let work = std::mem::replace(&mut self.step, work);
        let time = std::mem::replace(&mut self.step_time, time);
        // A stranger before the next one may have been in the same step.
        let alone = std::mem::replace(&mut self.step_alone, alone) && alone;
        if alone || !self.cost.confirmed() {
            self.heard.0.add(work);
            self.heard.1 += if alone { time } else { time.mul_f64(1.0 - self.others_share()) };
        }
        if self.heard.1 >= WINDOW {
            self.cost.learn(self.heard.0, self.heard.1);
            self.heard = (Work::default(), Duration::ZERO);
        }
    }

    /// A prompt passed by its gateway's word, sooner or later.
    pub(crate) fn note_passed(&mut self, prompt: f64, work: Work) {
        self.passed.add(work);
        self.passed_prompts += prompt;
        self.credit -= prompt;
    }

    /// What so passed by `at` since it was last asked: to be computed, and prompt tokens.
    pub(crate) fn take_passed(&mut self, at: Mono) -> (Work, f64) {
        // A reading does not show what came after it.
        if self.passed_at > at {
            return (Work::default(), 0.0);
        }
        (std::mem::take(&mut self.passed), std::mem::take(&mut self.passed_prompts))
    }

    /// A request ended, and `told` of its first token or not.
    pub(crate) fn ended(&mut self, told: bool) {
        self.told = if told { self.told.saturating_add(1) } else { 0 };
    }

    /// From when to when the first of those that are left, admitted at `admitted`, is computed.
    pub(crate) fn begun(&self, admitted: Mono, work: Work) -> Option<(Mono, Mono)> {
        let from = self.passed_at.max(admitted);
        let time = self.cost.seconds(work)? / (1.0 - self.others_share());
        Some((from, from + Duration::try_from_secs_f64(time).ok()?))
    }

    /// Whether gateways tell of first tokens.
    pub(crate) const fn told(&self) -> bool {
        self.told >= TOLD
    }

    /// Share of requests that come by other ways.
    pub(crate) fn others_share(&self) -> f64 {
        if !self.parts.bypass_share {
            return 0.0;
        }
        self.others.get().unwrap_or(0.0).min(MOST_OTHERS)
    }

    /// Takes in a reading.
    pub(crate) fn read(&mut self, passed: Passed) {
        self.strangers.read(passed.at, passed.elapsed, passed.arrived);
        (self.came_then, self.stranger) = (self.strangers.came(passed.at), passed.stranger);
        self.among_ours = passed.among_ours;
        if let Some(others) = passed.others {
            self.others.take(others, passed.elapsed);
        }
        self.cost.pass(passed.elapsed);
        self.measure(&passed);
        (self.left, self.since, self.read_at) = (passed.left, Work::default(), passed.at);
        (self.ours, self.theirs) = (passed.ours, 0.0);
        self.was_backlogged = passed.backlogged;
    }

    /// A cost holds only for time in which there was work from end to end: from one prompt's end to another's. Where the
    /// work began or ended in between, what passed since the queue was last empty took no longer; nor than the engine
    /// tells of its own time, in which prompts computed together count twice.
    fn measure(&mut self, passed: &Passed) {
        if let Some((tokens, seconds)) = passed.told {
            self.cost.learn_bound(tokens, seconds);
        }
        // What gateways tell of is exact.
        if self.told() {
            self.busy = (Work::default(), Duration::ZERO);
            return;
        }
        self.busy.0.add(passed.work);
        self.busy.1 += passed.elapsed;
        // A first token told of since the reading was made is not in it yet.
        if self.passed_at > passed.at {
            return;
        }
        let (work, time) = self.busy;
        if self.was_backlogged && passed.backlogged {
            if time >= WINDOW && work.tokens > 0.0 {
                self.cost.learn(work, time);
                self.busy = (Work::default(), Duration::ZERO);
            }
        } else if passed.left.tokens <= 0.0 {
            self.cost.learn_bound(work.tokens, time.as_secs_f64());
            self.busy = (Work::default(), Duration::ZERO);
        }
    }

    /// Seconds of work still to be done at `now`; `None` before a cost is known.
    fn queued(&self, now: Mono) -> Option<f64> {
        let elapsed = now.since(self.read_at);
        let came = (self.strangers.came(now) - self.came_then).max(0.0);
        let work = self.cost.seconds(self.left)? + self.cost.seconds(self.since)? + self.theirs;
        let theirs = self.cost.seconds(self.stranger.times(came))?;
        Some((work + theirs - elapsed.as_secs_f64()).max(0.0))
    }

    /// Time that the next stranger's prompt takes, as far as one is to be expected within `time`.
    pub(crate) fn stranger(&self, time: Duration) -> Duration {
        let share = self.strangers.usual(time).min(1.0);
        self.time(self.stranger.times(share)).unwrap_or_default()
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
        Some(within_a_day(self.cost.seconds(work)?))
    }

    /// Time that what was admitted and has not passed takes at the presumed pace: all that is known before there is a cost.
    pub(crate) fn presumed(&self, now: Mono) -> Duration {
        within_a_day(self.ours.tokens / PRESUMED).saturating_sub(now.since(self.read_at))
    }

    /// Time until `work` more will have been done, behind all that is queued.
    pub(crate) fn time_for(&self, now: Mono, work: Work) -> Option<Duration> {
        Some(within_a_day(self.queued(now)? + self.cost.seconds(work)?))
    }
}

/// Beyond a day it makes no difference, whatever an engine's figures say.
pub(crate) fn within_a_day(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, DAY))
}

#[cfg(test)]
#[path = "prefill_tests.rs"]
mod tests;
