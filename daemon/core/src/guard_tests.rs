use super::*;
use crate::testing::{at, facts};

const SMALL: u64 = 1 << 16; // class 16: 256 to 361 tokens
const ID: ReservationId = ReservationId(9);

fn e() -> Arc<str> {
    "e".into()
}

fn large() -> u64 {
    SizeClass::of(Tokens(6000)).bit()
}

/// Hours on the test's clock.
fn hours(hours: f64) -> Mono {
    at(hours * 3600.0)
}

/// Twice dead with a prompt of 6,000 tokens in flight.
fn guarded() -> Guard {
    let mut guard = Guard::default();
    assert_eq!(guard.ran_out(hours(0.0), &e(), "c".into(), SMALL | large()), None);
    let held = guard.ran_out(hours(1.0), &e(), "c".into(), SMALL | large());
    assert_eq!(held, Some(SizeClass::of(Tokens(6000))));
    guard
}

#[test]
fn four_thousand_tokens_and_six_thousand_are_different_sizes() {
    // 2^11.5 = 2896.3, 2^12 = 4096, 2^12.5 = 5792.6, 2^13 = 8192.
    let class = SizeClass::of(Tokens(6000));
    assert_eq!((class.shortest(), class.longest()), (Tokens(5793), Tokens(8191)));
    let class = SizeClass::of(Tokens(4000));
    assert_eq!((class.shortest(), class.longest()), (Tokens(2897), Tokens(4095)));
}

#[test]
fn every_length_lies_within_its_class() {
    for tokens in (0..70_000).chain([u64::from(u32::MAX) - 1, u64::from(u32::MAX), u64::MAX]) {
        let class = SizeClass::of(Tokens(tokens));
        assert!(class.shortest().0 <= tokens.max(1) && tokens <= class.longest().0, "{tokens}: {class:?}");
        assert_eq!(SizeClass::numbered(class.number()), Some(class));
    }
}

#[test]
fn two_deaths_hold_back_the_largest_size_that_was_in_flight_both_times_and_no_other() {
    let guard = guarded();
    assert!(matches!(guard.gate(hours(1.1), "e", Tokens(7000)), Gate::Closed(_)));
    assert_eq!(guard.gate(hours(1.1), "e", Tokens(4000)), Gate::Open);
    assert_eq!(guard.gate(hours(1.1), "e", Tokens(300)), Gate::Open);
    assert_eq!(guard.gate(hours(1.1), "other", Tokens(7000)), Gate::Open);
}

#[test]
fn a_size_that_was_served_well_between_the_deaths_is_innocent() {
    let mut guard = Guard::default();
    guard.ran_out(hours(0.0), &e(), "c".into(), SMALL | large());
    guard.ended("e", Tokens(6000), ID, Outcome::Ok);
    guard.ended("e", Tokens(300), ID, Outcome::EngineError);
    assert_eq!(guard.ran_out(hours(1.0), &e(), "c".into(), SMALL | large()), SizeClass::numbered(16));
}

#[test]
fn another_cause_in_between_makes_the_count_begin_anew() {
    let mut guard = Guard::default();
    guard.ran_out(hours(0.0), &e(), "c".into(), large());
    guard.exonerate("e");
    assert_eq!(guard.ran_out(hours(1.0), &e(), "c".into(), large()), None);
    assert_eq!(guard.ran_out(hours(2.0), &e(), "other".into(), large()), None, "another configuration");
    assert_eq!(guard.ran_out(hours(2.0 + 24.0 * 7.1), &e(), "other".into(), large()), None, "too long ago");
}

#[test]
fn one_prompt_is_let_through_after_a_while_and_lifts_the_guard_when_it_ends_well() {
    let mut guard = guarded();
    assert_eq!(guard.gate(hours(3.9), "e", Tokens(6000)), Gate::Closed(Duration::from_secs(360)));
    assert_eq!(guard.gate(hours(4.0), "e", Tokens(6000)), Gate::Probe);
    guard.probing(hours(4.0), "e", Tokens(6000), ID);
    assert!(matches!(guard.gate(hours(4.1), "e", Tokens(6000)), Gate::Closed(_)), "one at a time");
    assert_eq!(guard.ended("e", Tokens(6000), ReservationId(1), Outcome::Ok), None, "that is another");
    assert_eq!(guard.ended("e", Tokens(6000), ID, Outcome::Ok), Some(SizeClass::of(Tokens(6000))));
    assert_eq!(guard.gate(hours(4.2), "e", Tokens(6000)), Gate::Open);
}

#[test]
fn a_cancelled_probe_says_nothing_and_a_lost_one_is_given_up() {
    let mut guard = guarded();
    guard.probing(hours(4.0), "e", Tokens(6000), ID);
    assert_eq!(guard.ended("e", Tokens(6000), ID, Outcome::Cancelled), None);
    assert_eq!(guard.gate(hours(4.1), "e", Tokens(6000)), Gate::Probe);
    guard.probing(hours(4.1), "e", Tokens(6000), ID);
    assert_eq!(guard.gate(hours(4.7), "e", Tokens(6000)), Gate::Probe);
}

#[test]
fn a_death_with_the_probe_in_flight_holds_on_for_another_day_and_waits_twice_as_long() {
    let mut guard = guarded();
    guard.probing(hours(4.0), "e", Tokens(6000), ID);
    assert_eq!(guard.ran_out(hours(4.1), &e(), "c".into(), SMALL | large()), None, "known already");
    assert_eq!(guard.gate(hours(4.1), "e", Tokens(6000)), Gate::Closed(2 * FIRST_PAUSE));
    let held = guard.held(hours(4.1));
    assert_eq!((held.len(), held[0].deaths, held[0].left), (1, 3, HOLD));
    assert_eq!(guard.gate(hours(4.1), "e", Tokens(300)), Gate::Open, "the small ones are not blamed for it");
}

#[test]
fn it_is_lifted_after_a_day_by_another_configuration_and_by_the_operator() {
    let size = SizeClass::of(Tokens(6000));
    let mut guard = guarded();
    assert_eq!(guard.expire(hours(24.9)), vec![]);
    assert_eq!(guard.expire(hours(25.0)), vec![(e(), size)]);
    let mut guard = guarded();
    assert_eq!(guard.configured("e", "c"), vec![]);
    assert_eq!(guard.configured("e", "d"), vec![size]);
    let mut guard = guarded();
    assert_eq!(guard.clear("e"), vec![size]);
    assert_eq!(guard.gate(hours(2.0), "e", Tokens(6000)), Gate::Open);
}

#[test]
fn it_outlives_the_daemon() {
    let mut guard = guarded();
    guard.ran_out(hours(1.5), &"other".into(), "d".into(), large());
    let kept = guard.keep(hours(2.0));
    assert_eq!((kept.held.len(), kept.suspected.len()), (1, 1));
    let mut next = Guard::default();
    // Another boot: another clock.
    next.take_up(at(5.0), kept.clone());
    assert_eq!(next.keep(at(5.0)), kept);
    assert!(matches!(next.gate(at(6.0), "e", Tokens(6000)), Gate::Closed(_)));
    assert_eq!(
        next.ran_out(at(7.0), &"other".into(), "d".into(), large()),
        Some(SizeClass::of(Tokens(6000)))
    );
}

#[test]
fn a_configuration_is_known_when_version_and_model_are() {
    let mut known = facts(at(0.0));
    let first = configuration(&known).unwrap();
    known.max_num_batched_tokens = Some(8192);
    assert_ne!(configuration(&known).unwrap(), first);
    known.version = None;
    assert_eq!(configuration(&known), None);
}
