use super::*;
use crate::{
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
    let of = |tenant: &str, prompt, wait| Expected {
        tenant: idempotency::fingerprint_of(tenant),
        ..told(prompt, wait)
    };
    let mut expecting = Expecting::default();
    for prompt in 0..100 {
        expecting.add(of("many", prompt, 30.0));
    }
    assert!(expecting.expects(at(30.0), key(63)) && !expecting.expects(at(30.0), key(64)));
    for prompt in 200..300 {
        expecting.add(of("few", prompt, 10.0));
    }
    let kept = |expecting: &Expecting, prompts: std::ops::Range<u64>| {
        prompts.filter(|one| expecting.expects(at(60.0), key(*one))).count()
    };
    // Half for each, for neither has two more than the other.
    assert_eq!((kept(&expecting, 0..100), kept(&expecting, 200..300)), (32, 32));
    // Whoever is due last does not keep others out.
    expecting.add(of("third", 300, 60.0));
    for prompt in 400..500 {
        expecting.add(of("third", prompt, 10.0));
    }
    let all = [0..100, 200..300, 300..500].map(|prompts| kept(&expecting, prompts));
    assert_eq!((all.iter().min(), all.iter().sum::<usize>()), (Some(&21), 64));
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
    let reading =
        EngineReading { span: Span::at(at(0.0)), ranks: vec![rank(0, 0, 0, 0)], ..EngineReading::default() };
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
