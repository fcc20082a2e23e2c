//! What a node makes of prompts and of those who never asked, where figures are missing, late or beyond belief.

use std::time::Duration;

use crate::{
    affinity::Home,
    cost::Work,
    node::Node,
    observation::{EngineReading, Observation, RankReading, SumCount},
    request::{Completion, Outcome, Reference, Request, ReservationId, Verdict},
    settings::Settings,
    testing::{at, facts, request},
    units::{Mono, Span, Tokens},
};

fn raw(blocks: u64, used: u64, running: u64, waiting: u64, finished: u64) -> RankReading {
    RankReading {
        kv_usage: Some(crate::units::real(used) / crate::units::real(blocks)),
        num_gpu_blocks: Some(blocks + 1),
        ..crate::testing::rank(0, running, waiting, finished)
    }
}

fn observe(node: &mut Node, seconds: f64, ranks: Vec<RankReading>) {
    let reading = EngineReading {
        span: Span::at(at(seconds)),
        ranks,
        interval: Duration::from_millis(120),
        ..EngineReading::default()
    };
    node.observe(at(seconds), Observation::Reading { engine: "e".into(), reading: Box::new(reading) });
}

fn new_node() -> Node {
    let mut node = Node::new(Settings::default(), 1);
    let mut facts = facts(at(0.0));
    facts.models[0].max_model_len = Some(Tokens(1_000_000));
    node.observe(at(0.0), Observation::Engine(Box::new(facts)));
    node
}

fn admit(node: &mut Node, now: Mono, asked: &Request<'_>) -> Result<ReservationId, String> {
    match node.admit(now, asked).unwrap().verdict {
        Verdict::Admit(admit) => Ok(admit.reservation),
        Verdict::Deny(deny) => Err(format!("{:?}: {}", deny.reason, deny.message)),
    }
}

fn end(node: &mut Node, now: Mono, id: ReservationId, outcome: Outcome) {
    node.complete(
        now,
        Reference::Id(id),
        Completion { outcome, output_tokens: Some(Tokens(1)), prompt_tokens: None },
    );
}

#[test]
fn an_engine_that_did_all_it_was_given_takes_the_next() {
    for (outcome, told) in [
        (Outcome::Ok, true),
        (Outcome::Ok, false),
        (Outcome::Cancelled, false),
        (Outcome::EngineError, false),
        (Outcome::NotSent, false),
    ] {
        let mut node = new_node();
        observe(&mut node, 0.0, vec![raw(100_000, 0, 0, 0, 0)]);
        let id =
            admit(&mut node, at(0.01), &Request { max_tokens: Some(Tokens(1)), ..request(60_000) }).unwrap();
        if told {
            node.progress(at(0.3), Reference::Id(id), Tokens(1));
        }
        end(&mut node, at(0.3), id, outcome);
        let asked = Request {
            ttft_objective: Some(Duration::from_secs(2)),
            max_tokens: Some(Tokens(1)),
            ..request(10)
        };
        let answer = admit(&mut node, at(0.31), &asked);
        if outcome == Outcome::NotSent {
            assert!(answer.is_ok());
            continue;
        }
        assert!(answer.is_ok(), "{outcome:?}: {answer:?}");
    }
}

#[test]
fn eight_idle_ranks_take_eight_prompts_and_one_more() {
    let mut node = new_node();
    let ranks = (0..8).map(|rank| RankReading { rank, ..raw(100_000, 0, 0, 0, 0) }).collect();
    observe(&mut node, 0.0, ranks);
    let asked = Request {
        ttft_objective: Some(Duration::from_secs(2)),
        max_tokens: Some(Tokens(1)),
        ..request(6000)
    };
    for index in 0..10 {
        let answer = admit(&mut node, at(0.01), &asked);
        assert!(answer.is_ok(), "{index}: {answer:?}");
    }
}

#[test]
fn prompts_of_several_sequences_are_not_counted_as_strangers() {
    let mut node = new_node();
    let (mut prompts, mut finished) = (0, 0);
    observe(&mut node, 0.0, vec![raw(100_000, 0, 0, 0, 0)]);
    for second in 1..200_u32 {
        let now = f64::from(second);
        let asked = Request { n: 4, max_tokens: Some(Tokens(1)), ..request(1000) };
        let id = admit(&mut node, at(now), &asked).unwrap();
        // The engine computes each of its four sequences' prompts, and every tenth second one of a stranger.
        observe(
            &mut node,
            now + 0.1,
            vec![RankReading {
                prompt_tokens: Some(prompts),
                generation_tokens: Some(finished),
                ..raw(100_000, 63, 4, 0, finished)
            }],
        );
        (prompts, finished) = (prompts + 4000, finished + 4);
        node.progress(at(now + 0.2), Reference::Id(id), Tokens(4));
        end(&mut node, at(now + 0.2), id, Outcome::Ok);
        if second % 10 == 0 {
            (prompts, finished) = (prompts + 1000, finished + 1);
        }
        observe(
            &mut node,
            now + 0.5,
            vec![RankReading {
                prompt_tokens: Some(prompts),
                generation_tokens: Some(finished),
                ..raw(100_000, 0, 0, 0, finished)
            }],
        );
    }
    let prefill = &node.engines[0].pools[0].prefill;
    assert!(prefill.told());
    let prompt = prefill.strangers.prompt(1000.0);
    assert!((500.0..2000.0).contains(&prompt), "{prompt}");
}

/// Session `s` is sent with 30,000 tokens, and ends.
fn send_session(node: &mut Node, from: Mono, to: Mono) {
    let asked = Request { session_key: Some("s"), max_tokens: Some(Tokens(1)), ..request(30_000) };
    let id = admit(node, from, &asked).unwrap();
    end(node, to, id, Outcome::Ok);
}

#[test]
fn a_session_is_not_cached_in_an_engine_that_was_started_again() {
    let mut node = new_node();
    let figures = |tokens| RankReading {
        prompt_tokens: Some(tokens),
        generation_tokens: Some(0),
        finished: Some(0),
        steps: Some(tokens),
        ..raw(100_000, 0, 0, 0, 0)
    };
    observe(&mut node, 0.0, vec![figures(50_000)]);
    send_session(&mut node, at(0.1), at(3.0));
    observe(&mut node, 4.0, vec![figures(80_000)]);
    let home = node.affinity.home("s").unwrap();
    assert!(node.engines[0].keeps(home.written));
    observe(&mut node, 10.0, vec![figures(0)]);
    observe(&mut node, 20.0, vec![figures(60_000)]);
    assert!(node.affinity.home("s").is_none(), "it began anew, and never saw the session");
}

#[test]
fn a_session_keeps_its_engine_when_another_one_makes_room() {
    let mut node = Node::new(Settings::default(), 1);
    let found = |node: &mut Node, name: String, pid| {
        let mut facts = facts(at(0.0));
        facts.engine = name.into();
        facts.processes[0].pid = pid;
        node.observe(at(0.0), Observation::Engine(Box::new(facts)));
    };
    for index in 0..64 {
        found(&mut node, format!("e{index}"), 100 + index);
    }
    let home = |engine| Home { engine, prompt: Tokens(1), written: Tokens(0) };
    for (key, engine) in [("first", 3), ("gone", 5), ("later", 9)] {
        node.affinity.note(key, home(engine));
    }
    let gone =
        Observation::EngineGone { engine: "e5".into(), span: Span::at(at(1.0)), evidence: "gone".into() };
    node.observe(at(1.0), gone);
    found(&mut node, "new".into(), 900);
    let engine = |key| node.affinity.home(key).map(|home| &*node.engines[home.engine].facts.engine);
    assert_eq!(["first", "gone", "later"].map(engine), [Some("e3"), None, Some("e9")]);
}

#[test]
fn where_the_use_is_not_told_a_session_is_not_forgotten_at_once() {
    let mut node = new_node();
    let figures =
        |tokens| RankReading { kv_usage: None, prompt_tokens: Some(tokens), ..raw(100_000, 0, 0, 0, 0) };
    observe(&mut node, 0.0, vec![figures(0)]);
    send_session(&mut node, at(0.1), at(3.0));
    observe(&mut node, 4.0, vec![figures(30_000)]);
    let home = node.affinity.home("s").unwrap();
    assert!(node.engines[0].keeps(home.written));
}

#[test]
fn times_beyond_belief_do_not_end_the_daemon() {
    for seconds in [1e19, 1.5e19, 1.8e19, 1e300] {
        let mut node = new_node();
        let told = RankReading {
            prompt_tokens: Some(1),
            prefill_time: Some(SumCount { sum: seconds, count: 1 }),
            ..raw(100_000, 0, 0, 0, 0)
        };
        observe(&mut node, 0.0, vec![told]);
        let asked = Request {
            ttft_objective: Some(Duration::from_secs(2)),
            max_tokens: Some(Tokens(1)),
            ..request(1)
        };
        // An idle engine takes it whatever its figures say, or says why not.
        let _ = admit(&mut node, at(0.01), &asked);
    }
}

#[test]
fn a_pace_beyond_belief_does_not_end_the_daemon() {
    for running in [1 << 20, 1 << 45, 1 << 50, (1 << 53) - 1] {
        for pause in [100.0, 1000.0, 1100.0, 2000.0] {
            let mut node = new_node();
            let figures = |tokens| RankReading {
                prompt_tokens: Some(30_000),
                generation_tokens: Some(tokens),
                prefill_time: Some(SumCount { sum: 10.0, count: 1 }),
                num_gpu_blocks: None,
                ..raw(100_000, 0, running, 0, 1)
            };
            observe(&mut node, 0.0, vec![figures(0)]);
            observe(&mut node, pause, vec![figures(1)]);
            let objective = Some(Duration::from_secs(2));
            let asked = Request { ttft_objective: objective, pace_objective: objective, ..request(1) };
            // An engine that does not tell its pool is watched only.
            assert!(admit(&mut node, at(pause + 0.01), &asked).is_ok());
        }
    }
}

#[test]
fn strangers_that_wait_behind_ours_are_all_counted() {
    let mut node = new_node();
    let (mut prompts, mut finished) = (0_u64, 0_u64);
    let figures = |prompts: u64, running: u64, waiting: u64, finished: u64| RankReading {
        prompt_tokens: Some(prompts),
        generation_tokens: Some(finished),
        steps: Some(finished + running + waiting),
        ..raw(100_000, 10, running, waiting, finished)
    };
    observe(&mut node, 0.0, vec![figures(0, 0, 0, 0)]);
    let asked = Request { max_tokens: Some(Tokens(1)), ..request(2000) };
    for second in 1..30_u32 {
        let now = f64::from(second);
        let ids: Vec<_> = (0..3).map(|_| admit(&mut node, at(now), &asked).unwrap()).collect();
        observe(&mut node, now + 0.05, vec![figures(prompts, 3, 0, finished)]);
        for (index, id) in ids.into_iter().enumerate() {
            let now = now + 0.2 * f64::from(u32::try_from(index).unwrap() + 1);
            (prompts, finished) = (prompts + 2000, finished + 1);
            node.progress(at(now), Reference::Id(id), Tokens(1));
            end(&mut node, at(now), id, Outcome::Ok);
        }
        observe(&mut node, now + 0.8, vec![figures(prompts, 0, 0, finished)]);
    }
    // Three of ours are in one step; six strangers wait behind them.
    for _ in 0..3 {
        admit(&mut node, at(40.0), &asked).unwrap();
    }
    observe(&mut node, 40.01, vec![figures(prompts, 3, 0, finished)]);
    observe(&mut node, 40.1, vec![figures(prompts, 3, 3, finished)]);
    let pool = &node.engines[0].pools[0];
    assert!(pool.prefill.told());
    let queued = pool.prefill.time_for(at(40.1), Work::default()).unwrap().as_secs_f64();
    // Three of ours, of which one may be half done, and three strangers: 1.1 s.
    assert!(queued > 0.8, "{queued}");
}

#[test]
fn a_session_that_has_just_ended_is_cached_however_long_it_ran() {
    let mut node = new_node();
    // 128,000 tokens, of which others keep 60 % in use; 1,500 tokens are written in a second.
    let figures = |second: u64, running: u64| RankReading {
        prompt_tokens: Some(0),
        generation_tokens: Some(1500 * second),
        finished: Some(second),
        steps: Some(100 * second),
        ..raw(8000, 4800, running, 0, second)
    };
    observe(&mut node, 0.0, vec![figures(0, 30)]);
    let id = admit(
        &mut node,
        at(0.1),
        &Request { session_key: Some("s"), max_tokens: Some(Tokens(2000)), ..request(4000) },
    )
    .unwrap();
    for second in 1..60_u32 {
        observe(&mut node, f64::from(second), vec![figures(second.into(), 31)]);
    }
    end(&mut node, at(59.5), id, Outcome::Ok);
    observe(&mut node, 60.0, vec![figures(60, 30)]);
    let home = node.affinity.home("s").unwrap();
    assert!(node.engines[0].keeps(home.written), "its blocks were in use until half a second ago");
}

#[test]
fn without_a_counter_of_prompt_tokens_nobody_is_denied_for_ever() {
    for counter in [true, false] {
        let mut node = new_node();
        let (mut denied, mut admitted) = (0, 0);
        // 200,000 prompt tokens a second; a hundred strangers of 512 always wait, 0.26 s.
        for tick in 0..3_000_u64 {
            let now = 0.12 * f64::from(u32::try_from(tick).unwrap());
            let finished = tick * 46;
            let told = RankReading {
                prompt_tokens: counter.then_some(finished * 512),
                generation_tokens: Some(finished),
                finished: Some(finished),
                steps: Some(tick),
                ..raw(100_000, 4000, 10, 100, finished)
            };
            observe(&mut node, now, vec![told]);
            if tick % 100 == 99 {
                let asked = Request {
                    ttft_objective: Some(Duration::from_secs(2)),
                    max_tokens: Some(Tokens(1)),
                    ..request(10)
                };
                match admit(&mut node, at(now), &asked) {
                    Ok(id) => {
                        admitted += 1;
                        end(&mut node, at(now + 0.05), id, Outcome::NotSent);
                    }
                    Err(_) => denied += 1,
                }
            }
        }
        assert!(admitted > 0, "counter {counter}: {denied} denied");
    }
}
