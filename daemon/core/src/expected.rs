//! Those who were told to come back: when, what they will need then, and the room that others leave them for it.
//!
//! Without it a wait is a guess: what is freed until then goes to whoever comes first, and small requests always do. So
//! each who was told to come back is expected, with what it needs, and who comes in between must leave what will not have
//! been given back until then. How much that is goes by the share of those told who really came; where nobody ever does,
//! nothing is kept. A request is known again by what a decision depends on, not by a name: of two that are alike either
//! may take the place.

use std::time::Duration;

use crate::{
    cost::Work,
    decision::Weighed,
    engine::Engine,
    idempotency,
    queue::Question,
    request::{Class, Reason},
    settings::{Mode, Settings},
    units::{Blocks, Mono, count_up, real},
};

/// Most that are expected at an engine.
const KEPT: usize = 64;
/// They may come earlier than told by this share of the wait, and later by this share and a moment.
const EARLY: f64 = 0.1;
const LATE: f64 = 0.25;
const MOMENT: Duration = Duration::from_secs(1);
/// Nobody is waited for longer.
const LONGEST_LATE: Duration = Duration::from_secs(5);
/// How far one who came, or did not, moves the share of those who do.
const STEP: f64 = 0.05;
/// Most of a pool that is kept: one that asks for nearly all of it, again and again, must not shut out the others.
const MOST_KEPT: f64 = 0.25;
/// Below this share nothing is kept: some come that are only alike.
const LEAST_SHARE: f64 = 0.3;

/// One who was told to come back.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// From when to when it is taken for the one who was told.
    from: Mono,
    until: Mono,
    /// When it was told to come.
    pub(crate) due: Mono,
    /// Fingerprint of its question.
    key: u64,
    /// Fingerprint of its tenant's name.
    tenant: u64,
    pub(crate) question: Question,
    pub(crate) reason: Reason,
    /// Blocks it is expected to hold at most.
    room: f64,
    /// Time that its prompt takes.
    time: Duration,
    /// Whether it was learned from.
    pub(crate) learned: bool,
}

impl Expected {
    /// One who was denied for `reason` and told to come back in `wait`.
    pub(crate) fn new(now: Mono, wait: Duration, (key, question): (u64, Question), reason: Reason) -> Self {
        let late = (wait.mul_f64(LATE) + MOMENT).min(LONGEST_LATE);
        let due = now + wait;
        Self {
            from: due.before(wait.mul_f64(EARLY)),
            until: due + late,
            due,
            key,
            tenant: idempotency::fingerprint_of(&question.tenant),
            question,
            reason,
            room: 0.0,
            time: Duration::ZERO,
            learned: false,
        }
    }

    /// The same, with what it will need.
    pub(crate) fn needing(self, room: f64, time: Duration) -> Self {
        Self { room, time, ..self }
    }
}

/// All of them at one engine, in the order in which they are due.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expecting {
    all: Vec<Expected>,
    /// Share of those told who came.
    share: f64,
}

impl Expecting {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Nobody is expected any more; how many of them come is still known.
    pub(crate) fn clear(&mut self) {
        self.all.clear();
    }

    /// Beyond the bound nobody is expected, but that the tenant with most places gives up its last.
    pub(crate) fn add(&mut self, one: Expected) {
        if self.all.len() >= KEPT {
            let of = |tenant: u64| self.all.iter().filter(|one| one.tenant == tenant).count();
            let places = |index: &usize| self.all.get(*index).map_or(0, |one| of(one.tenant));
            // Of several that have as many, the last one.
            let most = (0..self.all.len()).max_by_key(places);
            if let Some(index) = most.filter(|index| places(index) > of(one.tenant) + 1) {
                self.all.remove(index);
            }
        }
        if self.all.len() < KEPT {
            let place = self.all.partition_point(|other| other.due <= one.due);
            self.all.insert(place, one);
        }
    }

    /// One that is due and not learned from.
    pub(crate) fn due(&mut self, now: Mono) -> Option<&mut Expected> {
        self.all.iter_mut().take_while(|one| one.due <= now).find(|one| !one.learned)
    }

    /// Whether one with this fingerprint is expected now.
    pub(crate) fn expects(&self, now: Mono, key: u64) -> bool {
        self.place(now, key).is_some()
    }

    fn place(&self, now: Mono, key: u64) -> Option<usize> {
        self.all.iter().position(|one| one.key == key && one.from <= now)
    }

    /// It came.
    pub(crate) fn take(&mut self, now: Mono, key: u64) -> Option<Expected> {
        let one = self.all.remove(self.place(now, key)?);
        self.came(true);
        Some(one)
    }

    /// Forgets those who did not come.
    pub(crate) fn forget(&mut self, now: Mono) {
        let before = self.all.len();
        self.all.retain(|one| now <= one.until);
        for _ in self.all.len()..before {
            self.came(false);
        }
    }

    fn came(&mut self, came: bool) {
        self.share += STEP * (f64::from(u8::from(came)) - self.share);
    }

    /// Those for whom a request of `class` leaves room, and in what time they are due.
    fn before(&self, now: Mono, class: Class) -> impl Iterator<Item = (&Expected, Duration)> {
        let they_come = self.share >= LEAST_SHARE;
        let those = self.all.iter().filter(move |one| they_come && one.question.class <= class);
        those.map(move |one| (one, one.due.since(now)))
    }

    /// Blocks that are to be left where `drain` blocks are given back in a second: enough for the one that lacks most. Room
    /// for all of them at once would lie idle.
    fn room(&self, now: Mono, class: Class, drain: f64) -> f64 {
        let needed =
            self.before(now, class).map(|(one, due)| one.room * self.share - drain * due.as_secs_f64());
        needed.fold(0.0, f64::max)
    }

    /// By how much a prompt that takes `own`, and has its first token in `ttft`, makes the first token of one of them late
    /// that would else be in time; `margined` is what it is wise to foresee of a time.
    fn late(
        &self,
        now: Mono,
        class: Class,
        (own, ttft): (Duration, Duration),
        margined: impl Fn(Duration) -> Duration,
    ) -> Duration {
        let for_time = |one: &Expected| one.reason == Reason::Ttft && now <= one.due + MOMENT;
        let those = self.before(now, class).filter(|(one, _)| for_time(one));
        let late = those.filter_map(|(one, due)| {
            let objective = one.question.ttft_objective?;
            let after = |queued: Duration| margined(queued.saturating_sub(due) + one.time);
            let in_time = after(ttft.saturating_sub(own)) <= objective;
            Some(after(ttft).saturating_sub(objective)).filter(|_| in_time)
        });
        late.max().unwrap_or_default()
    }
}

impl Engine {
    /// Denies what would take the place of those who were told to come back. An empty engine has room for both.
    pub(crate) fn leave_to_expected(
        &self,
        now: Mono,
        class: Class,
        settings: &Settings,
        weighed: &mut Weighed,
    ) {
        let expecting = &self.come_back.expecting;
        let Some(pool) = self.pools.get(weighed.rank.unwrap_or(0)) else { return };
        let admitted = weighed.denied.is_none() && !weighed.probe && self.mode(settings) == Mode::Enforce;
        let empty = pool.idle(now) && self.ledger.live.is_empty();
        if !self.parts.expected_back || expecting.is_empty() || !admitted || empty {
            return;
        }
        let most = real(pool.total.unwrap_or_default().0) * MOST_KEPT;
        let room = Blocks(count_up(expecting.room(now, class, pool.drain.rate(now)).min(most)));
        if room > weighed.left {
            weighed.excess = room.saturating_sub(weighed.left);
            weighed.leave_to_others();
            return;
        }
        let (_, own) = self.needs(weighed);
        let ttft = weighed.ttft.unwrap_or_default();
        let late = expecting.late(now, class, (own, ttft), |time| pool.prefill.margin.of(time));
        if late > Duration::ZERO {
            (weighed.denied, weighed.held_back) = (Some(Reason::Ttft), true);
            weighed.retry_after = Some(late);
        }
    }

    /// What one that is weighed will need when it comes back: blocks, and time for its prompt.
    pub(crate) fn needs(&self, weighed: &Weighed) -> (f64, Duration) {
        let room = weighed.footprint.mean.iter().copied().fold(0.0, f32::max);
        let pool = self.pools.get(weighed.rank.unwrap_or(0));
        let work = weighed.need.map(|need| Work::of_all(need.prompts, weighed.uncached));
        let time = pool.zip(work).and_then(|(pool, work)| pool.prefill.time(work));
        (f64::from(room), time.unwrap_or_default())
    }
}

#[cfg(test)]
#[path = "expected_tests.rs"]
mod tests;
