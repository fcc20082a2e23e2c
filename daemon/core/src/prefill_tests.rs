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
        arrived: 0,
        others: None,
        stranger: prompts(1),
        among_ours: true,
        left: prompts(left),
        ours: prompts(left),
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
        prefill.read(Passed { arrived: 1, ..passed(0.2 * f64::from(tick), 1, 6) });
    }
    let queued = wait(&prefill, 0.2 * 599.0 + 5.0, 0);
    assert!((queued - 1.2).abs() < 0.1, "{queued}");
}

#[test]
fn a_first_token_tells_that_all_before_it_has_been_computed() {
    let mut prefill = working();
    for _ in 0..TOLD {
        prefill.ended(true);
    }
    // Six are left; by the clock five after two tenths of a second, but three first tokens have come.
    for _ in 0..3 {
        prefill.pass(at(1.2), (at(0.6), Some(0.0)), prompts(1));
    }
    assert!((wait(&prefill, 1.2, 0) - 0.6).abs() < 0.02, "{}", wait(&prefill, 1.2, 0));
    assert!((wait(&prefill, 1.4, 1) - 0.6).abs() < 0.02);
    // What others brought since it was admitted is behind it.
    for tick in 6..600_u32 {
        let arrived = u64::from(tick % 4 == 0);
        prefill.read(Passed { arrived, ..passed(0.2 * f64::from(tick), 1, 6) });
    }
    // Of 148 strangers two came later than one of ours of which five are left; or half of one for each of two seconds.
    for (came, seconds) in [(Some(146.0), 1.4), (None, 1.5)] {
        let mut prefill = prefill.clone();
        prefill.pass(at(119.8), (at(117.8), came), prompts(1));
        let queued = wait(&prefill, 119.8, 0);
        assert!((queued - seconds).abs() < 0.02, "{came:?}: {queued}");
    }
}

#[test]
fn strangers_between_two_of_ours_do_not_make_the_engine_look_slow() {
    let mut prefill = working();
    for _ in 0..TOLD {
        prefill.ended(true);
    }
    // Ours take a fifth of a second each; after a pause, one of them with a stranger before it, and one behind another.
    for second in 1..100_u32 {
        let now = 10.0 * f64::from(second);
        let came = Some(f64::from(second));
        let among_ours = second % 2 == 0;
        prefill.read(Passed { among_ours, at: at(now), ..passed(now, 0, 0) });
        let first = now + if among_ours { 0.2 } else { 1.2 };
        prefill.pass(at(first), (at(now), came), prompts(1));
        prefill.pass(at(first + 0.2), (at(now), came), prompts(1));
        prefill.pass(at(first + 2.2), (at(now), Some(f64::from(second) + 1.0)), prompts(1));
    }
    let one = prefill.time(prompts(1)).unwrap().as_secs_f64();
    assert!((0.19..=0.21).contains(&one), "{one}");
}

#[test]
fn before_a_cost_is_known_a_pace_is_presumed() {
    let mut prefill = Prefill::default();
    prefill.read(passed(0.0, 0, 100));
    prefill.add(prompts(20));
    assert_eq!(prefill.presumed(at(0.0)), Duration::from_secs(6));
    // It drains even where no reading tells.
    assert_eq!(prefill.presumed(at(4.0)), Duration::from_secs(2));
    assert_eq!(prefill.presumed(at(9.0)), Duration::ZERO);
}

#[test]
fn without_a_cost_nothing_is_predicted() {
    assert_eq!(Prefill::default().time_for(at(0.0), prompts(1)), None);
    assert!(Prefill::default().empty(at(0.0)));
}

/// A prompt.
const P: Work = Work { tokens: 1000.0, squares: 1e6 };

fn shown(seconds: f64, elapsed: f64, arrived: u64, left: f64) -> Passed {
    Passed {
        at: at(seconds),
        elapsed: Duration::from_secs_f64(elapsed),
        work: Work::default(),
        told: None,
        arrived,
        others: Some(0.5),
        stranger: P,
        among_ours: arrived == 0,
        left: P.times(left),
        ours: P.times(left),
        backlogged: left > 0.0,
    }
}

/// 0.2 s a prompt, learned from readings; gateways tell.
fn learned() -> Prefill {
    let mut prefill = Prefill::default();
    for tick in 1..6_u32 {
        let now = 0.2 * f64::from(tick);
        prefill.read(Passed { work: P, ..shown(now, 0.2, 0, 10.0) });
    }
    for _ in 0..8 {
        prefill.ended(true);
    }
    prefill
}

fn cost(prefill: &Prefill) -> f64 {
    prefill.time(P).unwrap().as_secs_f64()
}

#[test]
fn a_cost_is_still_known_after_half_an_hour_beside_strangers() {
    let mut prefill = learned();
    assert!((cost(&prefill) - 0.2).abs() < 0.01);
    // One stranger before each of ours, five of ours always wait: 0.4 s from one first token to the next.
    for tick in 3..4500_u32 {
        let now = 0.4 * f64::from(tick);
        prefill.read(shown(now, 0.4, 1, 10.0));
        prefill.pass(at(now), (at((now - 2.0).max(0.0)), Some(f64::from(tick))), P);
    }
    assert!((0.1..0.4).contains(&cost(&prefill)), "{}", cost(&prefill));
}

#[test]
fn a_cost_is_still_known_after_half_an_hour_without_strangers_where_ranks_are_not() {
    let mut prefill = learned();
    for tick in 6..9000_u32 {
        let now = 0.2 * f64::from(tick);
        prefill.read(shown(now, 0.2, 0, 10.0));
        prefill.pass(at(now), (at((now - 2.0).max(0.0)), None), P);
    }
    assert!((0.19..0.21).contains(&cost(&prefill)), "{}", cost(&prefill));
}

#[test]
fn prompts_of_one_step_behind_a_stranger_do_not_make_the_engine_look_fast() {
    let mut prefill = learned();
    // Every second a stranger comes, and then four of ours at once; each takes a fifth of a second.
    for second in 2..600_u32 {
        let now = f64::from(second);
        prefill.read(shown(now, 1.0, 1, 0.0));
        for one in 0..4_u32 {
            let told = now + 0.2 + 0.8 + 0.0005 * f64::from(one);
            prefill.pass(at(told), (at(now), Some(f64::from(second))), P);
        }
    }
    assert!((0.1..0.3).contains(&cost(&prefill)), "{}", cost(&prefill));
}
