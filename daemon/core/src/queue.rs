//! The requests that wait for room, and who comes first.
//!
//! A waiting request has a level: that of its class, one lower (better) for each quarter of the longest wait that it has
//! waited. Within a level the tenant that holds least comes first, then the earliest deadline. At level 0 the order is
//! that of arrival, and nothing passes any more: so whatever waits long enough is next.
//!
//! In a full queue the tenant with most requests in it loses its last one to another's, and batch makes room for a person.
//!
//! Who waits because the KV cache is full has a claim on the engines that could serve it: requests of worse levels may
//! not take the room that it waits for, though they be small enough to fit.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{
    request::{Class, Decision, Prompt, Request, SessionId},
    tenants::Slot,
    units::{Blocks, Mono, Tokens},
};

/// Most requests that wait, all engines together.
pub(crate) const MAX_WAITING: usize = 256;
/// Levels, and parts of the longest wait: an interactive request starts at 1, batch at 3.
const LEVELS: u32 = 4;

/// Names a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What is answered to a request that may wait.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "boxing the decision would allocate on its way")]
pub enum Answer {
    /// Yes or no.
    Decided(Decision),
    /// Later, by [`poll_grant`](crate::node::Node::poll_grant), under this ticket.
    Wait(Ticket),
}

/// A set of engines, by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Engines(u64);

impl Engines {
    pub(crate) const ALL: Self = Self(u64::MAX);

    pub(crate) fn one(index: usize) -> Self {
        u32::try_from(index).ok().and_then(|index| 1_u64.checked_shl(index)).map_or(Self::ALL, Self)
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// A request that was asked and not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    model: Box<str>,
    engine: Option<Box<str>>,
    pub(crate) tenant: Box<str>,
    session_key: Option<Box<str>>,
    request_id: Option<Box<str>>,
    prompt: Prompt,
    max_tokens: Option<Tokens>,
    n: u32,
    has_stop: bool,
    pub(crate) class: Class,
    pub(crate) ttft_objective: Option<Duration>,
    pace_objective: Option<Duration>,
    peer_uid: u32,
    pub(crate) session: Option<SessionId>,
    forwards_rank: bool,
}

impl Question {
    pub(crate) fn new(request: &Request<'_>) -> Self {
        Self {
            model: request.model.into(),
            engine: request.engine.map(Into::into),
            tenant: request.tenant.into(),
            session_key: request.session_key.map(Into::into),
            request_id: request.request_id.map(Into::into),
            prompt: request.prompt,
            max_tokens: request.max_tokens,
            n: request.n,
            has_stop: request.has_stop,
            class: request.class,
            ttft_objective: request.ttft_objective,
            pace_objective: request.pace_objective,
            peer_uid: request.peer_uid,
            session: request.session,
            forwards_rank: request.forwards_rank,
        }
    }

    /// The request as it stands after it has waited for `waited`.
    pub(crate) fn request(&self, waited: Duration) -> Request<'_> {
        Request {
            model: &self.model,
            engine: self.engine.as_deref(),
            prompt: self.prompt,
            max_tokens: self.max_tokens,
            n: self.n,
            has_stop: self.has_stop,
            class: self.class,
            tenant: &self.tenant,
            session_key: self.session_key.as_deref(),
            ttft_objective: self.ttft_objective.map(|objective| objective.saturating_sub(waited)),
            pace_objective: self.pace_objective,
            wait: Duration::ZERO,
            request_id: self.request_id.as_deref(),
            peer_uid: self.peer_uid,
            session: self.session,
            forwards_rank: self.forwards_rank,
        }
    }
}

/// One request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) ticket: Ticket,
    pub(crate) question: Question,
    pub(crate) tenant: Slot,
    pub(crate) since: Mono,
    pub(crate) deadline: Mono,
    /// Engine in whose queue it has its place.
    pub(crate) home: Arc<str>,
    /// Engines that could serve it.
    pub(crate) engines: Engines,
    /// Whether it waits for the KV cache, and not for its own share or the engine's start.
    pub(crate) claims: bool,
    /// Blocks that it may come to need.
    pub(crate) need: Blocks,
    level: u32,
    /// What its tenant holds.
    held: Blocks,
}

/// A place in the order, best first.
pub(crate) type Rank = (u32, Blocks, Mono, Ticket);

impl Waiter {
    /// Who asks at `now`, and would wait no longer than `wait`.
    pub(crate) fn new(
        now: Mono,
        ticket: Ticket,
        request: &Request<'_>,
        longest: Duration,
        tenant: (Slot, Blocks),
        home: Arc<str>,
    ) -> Self {
        let wait = request.ttft_objective.map_or(request.wait, |objective| objective.min(request.wait));
        Self {
            ticket,
            question: Question::new(request),
            tenant: tenant.0,
            since: now,
            deadline: now + wait.min(longest),
            home,
            engines: Engines::default(),
            claims: false,
            need: Blocks::ZERO,
            level: level(request.class, Duration::ZERO, longest),
            held: tenant.1,
        }
    }

    pub(crate) const fn rank(&self) -> Rank {
        match self.level {
            0 => (0, Blocks::ZERO, self.since, self.ticket),
            level => (level, self.held, self.deadline, self.ticket),
        }
    }

    /// Whether it stands before one of `rank` that is here later, and keeps it from what it claims.
    const fn bars(&self, level: u32) -> bool {
        self.claims && (self.level == 0 || self.level < level)
    }
}

/// Level of a request that has waited for `waited`.
pub(crate) fn level(class: Class, waited: Duration, longest: Duration) -> u32 {
    let start = match class {
        Class::Interactive => 1,
        Class::Standard => 2,
        Class::Batch => 3,
    };
    let parts = waited.as_nanos().saturating_mul(LEVELS.into()) / longest.as_nanos().max(1);
    u32::saturating_sub(start, u32::try_from(parts).unwrap_or(u32::MAX))
}

/// All that wait, and answers not fetched yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    waiting: Vec<Waiter>,
    pub(crate) answers: VecDeque<(Ticket, Decision)>,
    next: u64,
}

impl Queue {
    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.waiting.iter()
    }

    pub(crate) const fn new_ticket(&mut self) -> Ticket {
        self.next = self.next.saturating_add(1);
        Ticket(self.next)
    }

    pub(crate) fn push(&mut self, waiter: Waiter) {
        self.waiting.push(waiter);
    }

    /// The one in place `index`.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Waiter> {
        self.waiting.get_mut(index)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Waiter> {
        self.waiting.get(index)
    }

    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Waiter> {
        let index = self.waiting.iter().position(|waiter| waiter.ticket == ticket)?;
        Some(self.waiting.remove(index))
    }

    /// Forgets those of a stream that broke.
    pub(crate) fn drop_session(&mut self, session: SessionId) {
        self.waiting.retain(|waiter| waiter.question.session != Some(session));
    }

    /// Those in the queue of engine `home`: how many, and what they may need.
    pub(crate) fn at(&self, home: &str) -> (usize, Blocks) {
        let there = self.waiting.iter().filter(|waiter| &*waiter.home == home);
        there.fold((0, Blocks::ZERO), |(count, sum), waiter| (count + 1, sum + waiter.need))
    }

    /// Who loses its place to `newcomer` in a full queue: the last one of the tenant that has most of them there, or, where
    /// that is the newcomer's own, its last one of a worse level.
    pub(crate) fn displaced_by(&self, newcomer: &Waiter) -> Option<Ticket> {
        let there = || self.waiting.iter().filter(|waiter| waiter.home == newcomer.home);
        let of = |tenant| there().filter(move |waiter| waiter.tenant == tenant);
        let own = of(newcomer.tenant).count().saturating_add(1);
        let (most, tenant) = there().map(|waiter| (of(waiter.tenant).count(), waiter.tenant)).max()?;
        if most > own {
            return of(tenant).max_by_key(|waiter| waiter.rank()).map(|last| last.ticket);
        }
        let last = of(newcomer.tenant).max_by_key(|waiter| waiter.rank())?;
        (newcomer.level < last.level).then_some(last.ticket)
    }

    /// When the first of them has waited long enough.
    pub(crate) fn first_deadline(&self) -> Option<Mono> {
        self.waiting.iter().map(|waiter| waiter.deadline).min()
    }

    /// Puts them in order from place `from` on. `held` tells what a tenant holds.
    pub(crate) fn sort(&mut self, now: Mono, longest: Duration, from: usize, held: impl Fn(Slot) -> Blocks) {
        let Some(rest) = self.waiting.get_mut(from..) else { return };
        for waiter in &mut *rest {
            waiter.level = level(waiter.question.class, now.since(waiter.since), longest);
            waiter.held = held(waiter.tenant);
        }
        rest.sort_unstable_by_key(Waiter::rank);
    }

    /// Engines whose room the one in place `index` must leave to others.
    pub(crate) fn barred_from(&self, index: usize) -> Engines {
        let level = self.waiting.get(index).map_or(0, |waiter| waiter.level);
        claimed(self.waiting.iter().take(index), level)
    }

    /// Engines whose room a new request of `class` must leave to those who wait.
    pub(crate) fn barred(&self, class: Class, longest: Duration) -> Engines {
        if self.waiting.is_empty() {
            return Engines::default();
        }
        claimed(self.waiting.iter(), level(class, Duration::ZERO, longest))
    }
}

fn claimed<'a>(before: impl Iterator<Item = &'a Waiter>, level: u32) -> Engines {
    before.filter(|waiter| waiter.bars(level)).fold(Engines::default(), |all, one| all.with(one.engines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, request};

    const LONGEST: Duration = Duration::from_secs(40);

    fn waiter(ticket: u64, class: Class, since: f64, wait: f64) -> Waiter {
        let mut asked = request(10);
        (asked.class, asked.wait) = (class, Duration::from_secs_f64(wait));
        Waiter::new(at(since), Ticket(ticket), &asked, LONGEST, (Slot::default(), Blocks::ZERO), "e".into())
    }

    fn order(waiters: Vec<Waiter>, now: f64, held: impl Fn(Slot) -> Blocks) -> Vec<u64> {
        let mut queue = Queue { waiting: waiters, ..Queue::default() };
        queue.sort(at(now), LONGEST, 0, held);
        queue.iter().map(|waiter| waiter.ticket.0).collect()
    }

    #[test]
    fn the_class_comes_first_and_then_the_deadline() {
        let waiters = vec![
            waiter(1, Class::Batch, 0.0, 1.0),
            waiter(2, Class::Standard, 0.0, 30.0),
            waiter(3, Class::Interactive, 0.0, 30.0),
            waiter(4, Class::Standard, 0.0, 20.0),
        ];
        assert_eq!(order(waiters, 0.0, |_| Blocks::ZERO), [3, 4, 2, 1]);
    }

    #[test]
    fn the_tenant_that_holds_least_comes_first_within_a_class() {
        let mut waiters = vec![waiter(1, Class::Standard, 0.0, 5.0), waiter(2, Class::Standard, 0.0, 30.0)];
        waiters[1].tenant = Slot(7);
        let held = |slot: Slot| if slot == Slot(7) { Blocks(1) } else { Blocks(9) };
        assert_eq!(order(waiters, 0.0, held), [2, 1]);
    }

    #[test]
    fn who_has_waited_long_rises_by_a_class_each_quarter() {
        // Ten seconds are a quarter of the longest wait.
        let waiters = || vec![waiter(1, Class::Batch, 0.0, 40.0), waiter(2, Class::Interactive, 19.0, 5.0)];
        assert_eq!(order(waiters(), 19.9, |_| Blocks::ZERO), [2, 1], "batch has risen to standard");
        let waiters = vec![waiter(1, Class::Batch, 0.0, 40.0), waiter(2, Class::Interactive, 29.0, 5.0)];
        assert_eq!(order(waiters, 30.0, |_| Blocks::ZERO), [1, 2], "and then comes before all");
    }

    #[test]
    fn at_the_best_level_the_order_is_that_of_arrival() {
        let waiters = vec![waiter(1, Class::Interactive, 1.0, 12.0), waiter(2, Class::Standard, 0.0, 40.0)];
        assert_eq!(order(waiters, 20.0, |_| Blocks::ZERO), [2, 1]);
    }

    #[test]
    fn a_claim_bars_worse_levels_and_after_long_all() {
        let mut claiming = waiter(1, Class::Standard, 0.0, 40.0);
        (claiming.claims, claiming.engines) = (true, Engines::one(3));
        let mut queue = Queue { waiting: vec![claiming], ..Queue::default() };
        assert_eq!(queue.barred(Class::Batch, LONGEST), Engines::one(3));
        assert_eq!(queue.barred(Class::Standard, LONGEST), Engines::default());
        queue.sort(at(20.0), LONGEST, 0, |_| Blocks::ZERO);
        assert_eq!(queue.barred(Class::Interactive, LONGEST), Engines::one(3));
    }

    #[test]
    fn nobody_waits_beyond_the_callers_wait_the_objective_or_the_longest_wait() {
        assert_eq!(waiter(1, Class::Standard, 0.0, 3.0).deadline, at(3.0));
        assert_eq!(waiter(1, Class::Standard, 0.0, 300.0).deadline, at(40.0));
        let mut asked = request(10);
        (asked.wait, asked.ttft_objective) = (Duration::from_secs(9), Some(Duration::from_secs(2)));
        let waiter = Waiter::new(at(0.0), Ticket(1), &asked, LONGEST, Default::default(), "e".into());
        assert_eq!(waiter.deadline, at(2.0));
    }
}
