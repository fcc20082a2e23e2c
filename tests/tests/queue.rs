//! Requests that wait for room: who is answered, when, and in which order.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers included")]

use std::{collections::BTreeMap, time::Duration};

use gpuadmit_core::{
    node::Node,
    observation::{Observation, ScrapeFailure},
    queue::{Answer, Ticket},
    request::{Class, Decision, Reason, Reference, Request, ReservationId, SessionId, Verdict},
    settings::{Classes, Settings},
    units::{Mono, Span, Tokens},
};
use gpuadmit_tests::node_kit::{
    NaiveEngine, OK, admitted, at, complete, denied, e, facts, rank, reading, ready_node, request, strict,
};
use proptest::prelude::*;

/// A strict node with an engine of 100 blocks, all promised to one request.
fn full_node(settings: Settings) -> (Node, ReservationId) {
    let mut node = ready_node(settings, 100);
    let all = node.admit(at(0.1), &request(800, Some(800))).unwrap();
    let id = admitted(&all).reservation;
    (node, id)
}

fn waiting(class: Class, prompt: u64, wait: f64) -> Request<'static> {
    Request { class, wait: Duration::from_secs_f64(wait), ..request(prompt, Some(16)) }
}

fn ticket(answer: &Answer) -> Ticket {
    match answer {
        Answer::Wait(ticket) => *ticket,
        Answer::Decided(decision) => panic!("decided: {decision:?}"),
    }
}

fn decided(answer: Answer) -> Decision {
    match answer {
        Answer::Decided(decision) => decision,
        Answer::Wait(ticket) => panic!("waits: {ticket:?}"),
    }
}

/// All answers that can be fetched now.
fn answers(node: &mut Node) -> Vec<(Ticket, Decision)> {
    std::iter::from_fn(|| node.poll_grant()).collect()
}

fn reason(decision: &Decision) -> Reason {
    denied(decision).reason
}

#[test]
fn who_waits_is_granted_the_moment_a_completion_makes_room() {
    let (mut node, all) = full_node(strict());
    let first = ticket(&node.admit_or_wait(at(0.2), &waiting(Class::Standard, 100, 5.0)).unwrap());
    assert!(answers(&mut node).is_empty());
    assert_eq!(node.snapshot(at(0.2)).engines[0].queued, 1);
    complete(&mut node, at(0.3), all);
    let answered = answers(&mut node);
    assert_eq!(answered[0].0, first);
    assert_eq!(admitted(&answered[0].1).max_tokens, Some(Tokens(16)));
    assert_eq!((node.waiting(), node.reservations()), (0, 1));
}

#[test]
fn the_idle_rule_grants_too() {
    let (mut node, _) = full_node(strict());
    let _ = ticket(&node.admit_or_wait(at(0.2), &waiting(Class::Standard, 100, 9.0)).unwrap());
    // The request that had all was never seen to end; the engine shows that it has.
    node.observe(at(2.0), reading("e", at(2.0), vec![rank(0, 100, 0, 0, 0, 1)]));
    assert_eq!(answers(&mut node).len(), 1);
}

#[test]
fn an_engine_that_gets_ready_grants_and_one_that_dies_answers_at_once() {
    let mut node = Node::new(strict(), 7);
    node.observe(at(0.0), Observation::Engine(Box::new(facts("e", 1600, at(0.0)))));
    for _ in 0..2 {
        let _ = ticket(&node.admit_or_wait(at(0.1), &waiting(Class::Standard, 700, 9.0)).unwrap());
    }
    node.observe(at(1.0), reading("e", at(1.0), vec![rank(0, 50, 0, 0, 0, 0)]));
    let granted = answers(&mut node);
    assert_eq!(granted.len(), 1, "there is room for one of them");
    let gone = Observation::EngineGone { engine: e(), span: Span::at(at(1.5)), evidence: "killed".into() };
    node.observe(at(1.5), gone);
    let answered = answers(&mut node);
    assert_eq!(answered.iter().map(|(_, one)| reason(one)).collect::<Vec<_>>(), [Reason::EngineDown]);
}

#[test]
fn what_can_never_be_served_or_is_broken_does_not_wait() {
    let (mut node, _) = full_node(strict());
    let never = node.admit_or_wait(at(0.2), &waiting(Class::Standard, 1600, 5.0)).unwrap();
    assert_eq!(reason(&decided(never)), Reason::ContextTooLong);
    let unknown = Request { model: "other", ..waiting(Class::Standard, 10, 5.0) };
    assert_eq!(reason(&decided(node.admit_or_wait(at(0.2), &unknown).unwrap())), Reason::UnknownModel);
    node.observe(
        at(0.3),
        Observation::ScrapeFailed { engine: e(), span: Span::at(at(0.3)), failure: ScrapeFailure::Refused },
    );
    let down = node.admit_or_wait(at(0.4), &waiting(Class::Standard, 10, 5.0)).unwrap();
    assert_eq!(reason(&decided(down)), Reason::EngineDown);
}

#[test]
fn who_waited_in_vain_is_told_so_at_the_end_of_its_wait() {
    let (mut node, _) = full_node(strict());
    node.handle_timeout(at(0.2));
    let first = ticket(&node.admit_or_wait(at(0.2), &waiting(Class::Standard, 100, 0.1)).unwrap());
    assert_eq!(node.poll_timeout(), Some(at(0.2) + Duration::from_millis(100)));
    node.handle_timeout(at(0.29));
    assert!(answers(&mut node).is_empty());
    node.handle_timeout(at(0.3));
    let answered = answers(&mut node);
    assert_eq!((answered[0].0, reason(&answered[0].1)), (first, Reason::WaitExpired));
}

#[test]
fn the_longest_wait_is_the_operators() {
    let settings = Settings { queue_time: Duration::from_secs(2), ..strict() };
    let (mut node, _) = full_node(settings);
    let _ = ticket(&node.admit_or_wait(at(0.2), &waiting(Class::Standard, 100, 600.0)).unwrap());
    node.handle_timeout(at(2.2));
    assert_eq!(reason(&answers(&mut node)[0].1), Reason::WaitExpired);
}

#[test]
fn a_full_queue_denies_and_tells_when_to_come_again() {
    let settings = Settings { queue_depth: 2, ..strict() };
    let mut node = ready_node(settings, 100);
    let mut ids: Vec<_> = (0..10)
        .map(|_| admitted(&node.admit(at(0.1), &request(144, Some(16))).unwrap()).reservation)
        .collect();
    // Ten blocks come back each second.
    for second in 1..=5_u32 {
        let now = at(f64::from(second));
        complete(&mut node, now, ids.remove(0));
        ids.push(admitted(&node.admit(now, &request(144, Some(16))).unwrap()).reservation);
    }
    for _ in 0..2 {
        let _ = ticket(&node.admit_or_wait(at(5.0), &waiting(Class::Standard, 304, 5.0)).unwrap());
    }
    let full = decided(node.admit_or_wait(at(5.0), &waiting(Class::Standard, 304, 5.0)).unwrap());
    assert_eq!(reason(&full), Reason::QueueFull);
    let alone = decided(Answer::Decided(node.admit(at(5.0), &request(304, Some(16))).unwrap()));
    let (behind, alone) = (denied(&full).retry_after.unwrap(), denied(&alone).retry_after.unwrap());
    // 20 blocks for itself, or 60 with the two that are before it, at one rate.
    let ratio = behind.as_secs_f64() / alone.as_secs_f64();
    assert!((ratio - 3.0).abs() < 0.01, "{behind:?} and {alone:?}");
}

#[test]
fn an_interactive_request_takes_the_place_of_batch_in_a_full_queue() {
    let settings = Settings { queue_depth: 1, ..strict() };
    let (mut node, all) = full_node(settings);
    let batch = ticket(&node.admit_or_wait(at(0.2), &waiting(Class::Batch, 100, 9.0)).unwrap());
    let person = ticket(&node.admit_or_wait(at(0.3), &waiting(Class::Interactive, 100, 9.0)).unwrap());
    let answered = answers(&mut node);
    assert_eq!((answered[0].0, reason(&answered[0].1)), (batch, Reason::QueueFull));
    complete(&mut node, at(0.4), all);
    assert_eq!(answers(&mut node)[0].0, person);
}

#[test]
fn who_hangs_up_gives_up_its_place_and_what_it_did_not_fetch() {
    let (mut node, all) = full_node(strict());
    let first = ticket(&node.admit_or_wait(at(0.2), &waiting(Class::Standard, 1000, 9.0)).unwrap());
    let second = ticket(&node.admit_or_wait(at(0.2), &waiting(Class::Standard, 1000, 9.0)).unwrap());
    complete(&mut node, at(0.3), all);
    // The first was granted, and never fetches it: the second is next.
    assert!(node.cancel(at(0.4), first));
    let answered = answers(&mut node);
    assert_eq!(answered.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [second]);
    assert_eq!(node.reservations(), 1);
    assert!(!node.cancel(at(0.5), second), "it was fetched");
}

#[test]
fn those_of_a_broken_stream_wait_no_more() {
    let (mut node, all) = full_node(strict());
    let of_stream = Request { session: Some(SessionId(4)), ..waiting(Class::Standard, 100, 9.0) };
    let _ = ticket(&node.admit_or_wait(at(0.2), &of_stream).unwrap());
    node.session_broken(at(0.3), SessionId(4));
    assert_eq!(node.waiting(), 0);
    complete(&mut node, at(0.4), all);
    assert!(answers(&mut node).is_empty());
}

#[test]
fn a_small_batch_request_does_not_take_the_room_that_others_wait_for() {
    let settings = Settings {
        classes: Classes { batch: Classes::default().standard, ..Classes::default() },
        ..strict()
    };
    let mut node = ready_node(settings, 100);
    let _ = admitted(&node.admit(at(0.1), &request(1264, Some(16))).unwrap()); // 80 blocks
    let _ = ticket(&node.admit_or_wait(at(0.2), &waiting(Class::Standard, 784, 9.0)).unwrap()); // 50
    let batch = Request { class: Class::Batch, ..request(64, Some(16)) };
    let decision = node.admit(at(0.3), &batch).unwrap();
    assert_eq!(reason(&decision), Reason::KvFull);
    assert!(denied(&decision).message.contains("wait"), "{}", denied(&decision).message);
    let _ = admitted(&node.admit(at(0.3), &request(64, Some(16))).unwrap());
    // After half of the longest wait nothing passes any more.
    node.handle_timeout(at(8.0));
    let late = Request { wait: Duration::from_secs(30), ..waiting(Class::Standard, 784, 30.0) };
    let _ = ticket(&node.admit_or_wait(at(8.0), &late).unwrap());
    for second in 9..24_u32 {
        node.handle_timeout(at(f64::from(second)));
    }
    let person = Request { class: Class::Interactive, ..request(64, Some(16)) };
    assert_eq!(reason(&node.admit(at(24.0), &person).unwrap()), Reason::KvFull);
}

#[test]
fn a_repeated_request_that_waits_gets_one_reservation() {
    let (mut node, all) = full_node(strict());
    let asked = Request { request_id: Some("r"), ..waiting(Class::Standard, 100, 9.0) };
    let _ = ticket(&node.admit_or_wait(at(0.2), &asked).unwrap());
    let _ = ticket(&node.admit_or_wait(at(0.2), &asked).unwrap());
    complete(&mut node, at(0.3), all);
    let answered = answers(&mut node);
    let ids: Vec<_> = answered.iter().map(|(_, one)| admitted(one).reservation).collect();
    assert_eq!((ids.len(), ids[0]), (2, ids[1]));
    assert_eq!(node.reservations(), 1);
}

/// A node, a truthful engine, and callers that wait.
struct World {
    node: Node,
    engine: NaiveEngine,
    now: Mono,
    open: Vec<ReservationId>,
    asked: BTreeMap<Ticket, (Class, u64, Mono, Mono)>,
    admitted: u64,
}

const BLOCKS: u64 = 64;
const TTL: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
enum Step {
    Ask { class: Class, prompt: u64, most: u64, wait_ms: u64, tenant: u8 },
    Pass { ms: u64 },
    Read,
    HangUp,
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![Just(Class::Interactive), Just(Class::Standard), Just(Class::Batch)];
    prop_oneof![
        6 => (class, 1..500_u64, 1..400_u64, 0..25_000_u64, 0..3_u8).prop_map(|(class, prompt, most, wait_ms, tenant)| {
            Step::Ask { class, prompt, most, wait_ms, tenant }
        }),
        5 => (1..2000_u64).prop_map(|ms| Step::Pass { ms }),
        2 => Just(Step::Read),
        1 => Just(Step::HangUp),
    ]
}

const TENANTS: [&str; 3] = ["", "a", "b"];

impl World {
    fn new() -> Self {
        let mut settings = Settings { queue_time: TTL, ..strict() };
        settings.classes.batch.pool_share = 1.0;
        Self {
            node: ready_node(settings, BLOCKS),
            engine: NaiveEngine::new(BLOCKS, 100, at(0.0)),
            now: at(0.1),
            open: Vec::new(),
            asked: BTreeMap::new(),
            admitted: 0,
        }
    }

    fn ask(&mut self, class: Class, prompt: u64, most: u64, wait_ms: u64, tenant: u8) -> Option<Ticket> {
        let asked = Request {
            class,
            wait: Duration::from_millis(wait_ms),
            tenant: TENANTS[usize::from(tenant)],
            ..request(prompt, Some(most))
        };
        let answer = self.node.admit_or_wait(self.now, &asked).unwrap();
        let ticket = match answer {
            Answer::Decided(decision) => {
                self.take(&decision, prompt);
                None
            }
            Answer::Wait(ticket) => {
                let deadline = self.now + Duration::from_millis(wait_ms).min(TTL);
                self.asked.insert(ticket, (class, prompt, self.now, deadline));
                Some(ticket)
            }
        };
        self.fetch();
        ticket
    }

    fn take(&mut self, decision: &Decision, prompt: u64) {
        if let Verdict::Admit(admit) = &decision.verdict {
            let most = admit.max_tokens.unwrap().0;
            self.engine.send(Some(admit.reservation), prompt, most, most, self.now);
            self.open.push(admit.reservation);
            self.admitted += 1;
        }
    }

    fn fetch(&mut self) {
        while let Some((ticket, decision)) = self.node.poll_grant() {
            let (_, prompt, ..) = self.asked.remove(&ticket).expect("one answer to each, and none unasked");
            self.take(&decision, prompt);
        }
    }

    fn pass(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        while self.now < until {
            let due = self.node.poll_timeout().unwrap_or(until).max(self.now + Duration::from_millis(1));
            self.now = due.min(until).min(self.now + Duration::from_millis(100));
            for id in self.engine.run(self.now) {
                self.node.complete(self.now, Reference::Id(id), OK);
                self.fetch();
            }
            self.node.handle_timeout(self.now);
            self.fetch();
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Ask { class, prompt, most, wait_ms, tenant } => {
                self.ask(class, prompt, most, wait_ms, tenant);
            }
            Step::Pass { ms } => self.pass(ms),
            Step::Read => {
                self.engine.run(self.now).into_iter().for_each(|id| {
                    self.node.complete(self.now, Reference::Id(id), OK);
                });
                self.node.observe(self.now, self.engine.reading());
                self.fetch();
            }
            Step::HangUp => {
                if let Some((ticket, _)) = self.asked.pop_first() {
                    assert!(self.node.cancel(self.now, ticket));
                    self.fetch();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever is granted, at once or later, can grow to all it may; nobody waits beyond its time; everybody is answered
    /// once; and nothing is left over.
    #[test]
    fn no_grant_beyond_room_and_no_wait_beyond_its_time(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            prop_assert!(world.engine.promised() <= BLOCKS, "{} after {step:?}", world.engine.promised());
            for (ticket, (.., deadline)) in &world.asked {
                prop_assert!(world.now <= *deadline, "{ticket:?} still waits");
            }
            prop_assert_eq!(world.asked.len(), world.node.waiting());
        }
        world.pass(30_000);
        prop_assert!(world.asked.is_empty());
        prop_assert_eq!(world.node.reservations(), 0);
    }

    /// No lost wake-up: when all else has ended and a reading shows it, whoever waits first is granted.
    #[test]
    fn whoever_waits_for_room_alone_is_granted_when_there_is_room(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        // The first in order fits the whole engine: it gets it when the running ones (4 s at most) have ended.
        let waited: Vec<_> = world.asked.iter().map(|(ticket, (.., deadline))| (*ticket, *deadline)).collect();
        let before = world.admitted;
        world.pass(4_050);
        world.step(&Step::Read);
        let could_wait = waited.iter().filter(|(_, deadline)| *deadline > world.now).count();
        prop_assert!(could_wait == 0 || world.admitted > before);
    }
}

/// Keeps the engine full of requests of `flood` that always wait, and lets one of `class` wait as well; returns whether it
/// was admitted, and after how long.
fn under_flood(flood: Class, class: Class) -> (bool, Duration) {
    let mut world = World::new();
    let settle = |world: &mut World| {
        for _ in 0..8 {
            world.ask(flood, 100, 92, 20_000, 1); // 12 blocks each, five fit; done in 0.92 s
        }
        world.pass(100);
    };
    for _ in 0..20 {
        settle(&mut world);
    }
    let start = world.now;
    let Some(ticket) = world.ask(class, 100, 92, 19_900, 2) else { return (true, Duration::ZERO) };
    while world.asked.contains_key(&ticket) {
        let before = world.admitted;
        settle(&mut world);
        assert!(world.admitted >= before);
    }
    let admitted = world
        .node
        .records()
        .newest(1024)
        .any(|record| &*record.tenant == TENANTS[2] && record.denied.is_none());
    (admitted, world.now.since(start))
}

#[test]
fn interactive_requests_do_not_starve_under_a_flood_of_batch() {
    let (admitted, after) = under_flood(Class::Batch, Class::Interactive);
    assert!(admitted && after < Duration::from_secs(2), "{admitted} after {after:?}");
}

#[test]
fn standard_requests_do_not_starve_under_a_flood_of_interactive_ones() {
    let (admitted, after) = under_flood(Class::Interactive, Class::Standard);
    assert!(admitted && after < Duration::from_secs(15), "{admitted} after {after:?}");
}

#[test]
fn batch_does_not_starve_under_a_flood_of_interactive_ones() {
    let (admitted, after) = under_flood(Class::Interactive, Class::Batch);
    assert!(admitted && after < TTL, "{admitted} after {after:?}");
}
