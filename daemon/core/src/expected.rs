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

    /// Beyond the bound nobody is expected, but that a tenant with more of the places gives up its last.
    pub(crate) fn add(&mut self, one: Expected) {
        if self.all.len() >= KEPT {
            let of = |tenant: &str| self.all.iter().filter(|one| &*one.question.tenant == tenant).count();
            let last = self.all.last().map_or(0, |last| of(&last.question.tenant));
            if last > of(&one.question.tenant) + 1 {
                self.all.pop();
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
        if expecting.is_empty() || !admitted || empty {
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
        let work = weighed.need.map(|need| Work::of(need.prompt, weighed.uncached));
        let time = pool.zip(work).and_then(|(pool, work)| pool.prefill.time(work));
        (f64::from(room), time.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        idempotency,
        node::Node,
        observation::{EngineReading, Observation},
        queue::Answer,
        request::{Completion, Outcome, Reference, Request, ReservationId, Verdict},
        settings::Risk,
        testing::{at, facts, rank, request},
        units::{Span, Tokens},
    };

    /// One with a prompt of so many tokens, told at the start to come in `wait` seconds, that needs 40 blocks and a second.
    fn told(prompt: u64, wait: f64) -> Expected {
        let mut asked = request(prompt);
        asked.ttft_objective = Some(Duration::from_secs(3));
        let question = (idempotency::question(&asked), Question::new(&asked));
        let wait = Duration::from_secs_f64(wait);
        Expected::new(at(0.0), wait, question, Reason::KvFull).needing(40.0, Duration::from_secs(1))
    }

    /// The same, where it was time that it lacked.
    fn for_time(prompt: u64, wait: f64) -> Expected {
        Expected { reason: Reason::Ttft, ..told(prompt, wait) }
    }

    fn key(prompt: u64) -> u64 {
        let mut asked = request(prompt);
        asked.ttft_objective = Some(Duration::from_secs(3));
        idempotency::question(&asked)
    }

    /// All of twenty have come that were told to.
    fn trusting() -> Expecting {
        let mut expecting = Expecting::default();
        for prompt in 0..20 {
            expecting.add(told(1000 + prompt, 1.0));
            assert!(expecting.take(at(1.0), key(1000 + prompt)).is_some());
        }
        expecting
    }

    #[test]
    fn it_is_known_again_by_its_question_about_when_it_was_told_to_come() {
        let mut expecting = Expecting::default();
        expecting.add(told(10, 4.0));
        assert!(!expecting.expects(at(3.5), key(10)));
        assert!(expecting.expects(at(3.7), key(10)));
        assert!(!expecting.expects(at(4.0), key(11)));
        // A quarter of four seconds and a moment later it is no longer waited for.
        expecting.forget(at(5.9));
        assert!(expecting.expects(at(5.9), key(10)));
        expecting.forget(at(6.1));
        assert!(expecting.is_empty());
    }

    #[test]
    fn one_that_waits_is_the_one_that_was_told_however_long_it_has_waited() {
        let mut asked = request(10);
        asked.ttft_objective = Some(Duration::from_millis(2_600));
        assert_eq!(idempotency::question(&asked), key(10));
    }

    #[test]
    fn nothing_is_kept_for_those_who_never_come() {
        let mut expecting = trusting();
        expecting.add(told(10, 1.0));
        assert!(expecting.room(at(1.0), Class::Standard, 0.0) > 20.0);
        for _ in 0..60 {
            expecting.forget(at(100.0));
            expecting.add(told(10, 1.0));
        }
        assert_eq!(expecting.room(at(1.0), Class::Standard, 0.0), 0.0);
        assert_eq!(
            expecting.late(
                at(1.0),
                Class::Standard,
                (Duration::from_secs(60), Duration::from_secs(60)),
                |time| time
            ),
            Duration::ZERO
        );
    }

    #[test]
    fn one_tenant_does_not_take_all_places() {
        let of = |tenant: &str, prompt, wait| {
            let mut one = told(prompt, wait);
            one.question.tenant = tenant.into();
            one
        };
        let mut expecting = Expecting::default();
        for prompt in 0..100 {
            expecting.add(of("many", prompt, 30.0));
        }
        assert!(expecting.expects(at(30.0), key(63)) && !expecting.expects(at(30.0), key(64)));
        for prompt in 200..300 {
            expecting.add(of("few", prompt, 10.0));
        }
        let kept = |prompts: std::ops::Range<u64>| {
            prompts.filter(|one| expecting.expects(at(30.0), key(*one))).count()
        };
        // Half for each, for neither has two more than the other.
        assert_eq!((kept(0..100), kept(200..300)), (32, 32));
    }

    #[test]
    fn what_will_be_given_back_until_then_need_not_be_left() {
        let mut expecting = trusting();
        expecting.add(told(10, 2.0));
        let due = expecting.room(at(2.0), Class::Standard, 10.0);
        // 64 % of 40 blocks: 1 - 0.95^20.
        assert!((due - 25.66).abs() < 0.01, "{due}");
        let before = expecting.room(at(1.0), Class::Standard, 10.0);
        assert!((due - before - 10.0).abs() < 1e-6, "{before}");
        assert_eq!(expecting.room(at(0.0), Class::Standard, 20.0), 0.0);
        // Only the one that lacks most counts, and none of a worse class.
        expecting.add(told(11, 2.0));
        assert_eq!(expecting.room(at(2.0), Class::Standard, 10.0), due);
        assert_eq!(expecting.room(at(2.0), Class::Interactive, 10.0), 0.0);
    }

    #[test]
    fn a_prompt_must_not_make_theirs_late() {
        let mut expecting = trusting();
        expecting.add(for_time(10, 2.0));
        // Due in one second, a second of its own, wanted within three: what is queued until then may take three seconds.
        let late = |now, own, ttft| {
            let seconds = |own: f64, ttft: f64| (Duration::from_secs_f64(own), Duration::from_secs_f64(ttft));
            expecting.late(at(now), Class::Standard, seconds(own, ttft), |time| time).as_secs_f64()
        };
        assert_eq!((late(1.0, 2.0, 3.0), late(1.0, 4.0, 5.0)), (0.0, 2.0));
        // It is late without this one, or this one goes before it is due, or it has not come.
        assert_eq!(late(1.0, 0.5, 5.0), 0.0);
        assert_eq!(late(0.0, 3.5, 3.5), 0.0);
        assert_eq!((late(3.0, 4.0, 4.0), late(3.1, 4.0, 4.0)), (2.0, 0.0));
    }

    #[test]
    fn who_lacked_room_is_made_late_by_nobody() {
        let mut expecting = trusting();
        expecting.add(told(10, 2.0));
        let long = Duration::from_secs(60);
        assert_eq!(expecting.late(at(2.0), Class::Standard, (long, long), |time| time), Duration::ZERO);
    }

    #[test]
    fn nobody_stands_back_for_a_first_token_that_would_be_late_anyhow() {
        let mut expecting = trusting();
        let one = for_time(10, 2.0);
        // Its prompt alone takes longer than the three seconds that it wants.
        expecting.add(one.needing(40.0, Duration::from_millis(3_001)));
        let late = |ttft| expecting.late(at(2.0), Class::Standard, (ttft, ttft), |time| time);
        assert_eq!((late(Duration::ZERO), late(Duration::from_secs(60))), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn no_more_are_expected_than_the_bound() {
        let mut expecting = Expecting::default();
        for prompt in 0..=64 {
            expecting.add(told(prompt, 1.0));
        }
        assert_eq!(expecting.all.len(), 64);
    }

    /// A request of 10 blocks, or one of 20.
    fn of_blocks(blocks: u64) -> Request<'static> {
        Request { max_tokens: Some(Tokens(16)), ..request(blocks * 16 - 16) }
    }

    fn ask(node: &mut Node, seconds: f64, blocks: u64) -> Result<ReservationId, (Reason, Option<Duration>)> {
        match node.admit(at(seconds), &of_blocks(blocks)).unwrap().verdict {
            Verdict::Admit(admit) => Ok(admit.reservation),
            Verdict::Deny(deny) => Err((deny.reason, deny.retry_after)),
        }
    }

    /// A pool of 100 blocks, full but for 10 of those that a request of 20 was denied for, which those before it came back
    /// for; and when it was told to come.
    fn one_was_told(expecting: Expecting) -> (Node, f64) {
        let mut node = Node::new(Settings { risk: Risk::NONE, ..Settings::default() }, 1);
        node.observe(at(0.0), Observation::Engine(Box::new(facts(at(0.0)))));
        let reading = EngineReading {
            span: Span::at(at(0.0)),
            ranks: vec![rank(0, 0, 0, 0)],
            ..EngineReading::default()
        };
        node.observe(at(0.0), Observation::Reading { engine: "e".into(), reading: Box::new(reading) });
        node.engines[0].come_back.expecting = expecting;
        let small: Vec<_> = (0..10).map(|_| ask(&mut node, 0.1, 10).unwrap()).collect();
        let end = |node: &mut Node, id| {
            let ended = Completion { outcome: Outcome::Ok, output_tokens: None, prompt_tokens: None };
            node.complete(at(0.2), Reference::Id(id), ended);
        };
        end(&mut node, small[0]);
        let (reason, wait) = ask(&mut node, 0.2, 20).unwrap_err();
        assert_eq!(reason, Reason::KvFull);
        end(&mut node, small[1]);
        (node, 0.2 + wait.unwrap().as_secs_f64())
    }

    #[test]
    fn at_most_a_quarter_of_the_pool_is_kept_whatever_comes_back() {
        let (mut node, due) = one_was_told(trusting());
        // Nine tenths of the pool: of that, 64 % would be kept.
        let question = (1, Question::new(&of_blocks(90)));
        let huge = Expected::new(at(due - 1.0), Duration::from_secs(1), question, Reason::KvFull);
        node.engines[0].come_back.expecting.add(huge.needing(90.0, Duration::ZERO));
        // 20 of 100 blocks are free; when 30 more are, 25 stay free.
        let held: Vec<_> = node.engines[0].ledger.live.keys().copied().take(3).collect();
        for id in held {
            let ended = Completion { outcome: Outcome::Ok, output_tokens: None, prompt_tokens: None };
            node.complete(at(due), Reference::Id(id), ended);
        }
        assert!(ask(&mut node, due, 26).is_err());
        assert!(ask(&mut node, due, 25).is_ok());
    }

    /// Both fit: 20 blocks are free, one of 10 waits because 13 are left to one of 20, which comes when the other has waited
    /// long enough to stand before it.
    #[test]
    fn who_waits_only_for_those_who_come_back_does_not_keep_them_out() {
        let (mut node, due) = one_was_told(trusting());
        node.settings.queue_time = Duration::from_secs(2);
        let patient = Request { wait: Duration::from_secs(60), ..of_blocks(10) };
        assert!(matches!(node.admit_or_wait(at(due), &patient).unwrap(), Answer::Wait(_)));
        node.handle_timeout(at(due + 0.6));
        assert_eq!(node.waiting(), 1);
        assert!(ask(&mut node, due + 0.6, 20).is_ok());
    }

    #[test]
    fn who_comes_back_and_waits_is_not_kept_waiting_for_itself() {
        let (mut node, due) = one_was_told(trusting());
        let (wait, ttft_objective) = (Duration::from_secs(60), Some(Duration::from_secs(30)));
        let patient = Request { wait, ttft_objective, ..of_blocks(20) };
        // What is free is taken again before it comes.
        node.engines[0].come_back.expecting = Expecting::default();
        let taken = ask(&mut node, due, 10).unwrap();
        let mut expecting = trusting();
        let question = (idempotency::question(&patient), Question::new(&patient));
        expecting.add(
            Expected::new(at(due - 1.0), Duration::from_secs(1), question, Reason::KvFull)
                .needing(40.0, Duration::ZERO),
        );
        node.engines[0].come_back.expecting = expecting;
        let Answer::Wait(ticket) = node.admit_or_wait(at(due), &patient).unwrap() else { panic!("decided") };
        let ended = Completion { outcome: Outcome::Ok, output_tokens: None, prompt_tokens: None };
        node.complete(at(due + 0.1), Reference::Id(taken), ended);
        let (answered, decision) = node.poll_grant().unwrap();
        assert_eq!(answered, ticket);
        assert!(matches!(decision.verdict, Verdict::Admit(_)), "{decision:?}");
    }

    #[test]
    fn room_is_left_to_those_who_come_back_and_not_where_nobody_does() {
        let (mut node, due) = one_was_told(trusting());
        // 64 % of 20 blocks are left to it, so that of 20 not 10 may be taken.
        let (reason, wait) = ask(&mut node, due, 10).unwrap_err();
        assert_eq!(reason, Reason::KvFull);
        assert!(wait.is_some());
        assert!(ask(&mut node, due, 20).is_ok());
        let (mut node, due) = one_was_told(Expecting::default());
        assert!(ask(&mut node, due, 10).is_ok());
        assert!(ask(&mut node, due, 20).is_err());
    }
}
