//! The clairvoyant rules beside the best of all subsets, in situations small enough to try every subset.

use std::thread;

use super::{Clairvoyant, ORDERS, PLANS, Planned};
use crate::{
    engine::{EngineSetup, RequestId, StepCost},
    policy::{Answer, Ask, Policy},
    random::Random,
    request::Request,
    run::play,
    situation::{Clients, Gateway, Limit, Objective, Situation, Telemetry},
    time::{MILLISECOND, Nanos, SECOND, nanos},
    trace::{Content, Kind, Source},
};

const INSTANCES: u64 = 200;
const MOST_REQUESTS: u64 = 10;

/// Lets in the requests whose bits are set.
struct Subset(u32);

impl Policy for Subset {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        Answer::plain(self.0 & (1 << ask.request.id) != 0)
    }
}

/// A small engine and a few requests, more than it can serve in time.
fn instance(seed: u64) -> (Situation, Vec<Request>) {
    let mut random = Random::new(seed, 900);
    let engine = EngineSetup {
        max_num_seqs: random.pick(&[2, 3, 4, 8]),
        max_num_batched_tokens: random.pick(&[64, 128, 256]),
        cost: StepCost { per_prefill_token: random.between(0.06, 1.0), ..StepCost::default() },
        ..EngineSetup::with_window(random.pick(&[40, 60, 90]), 16, false)
    };
    let limit = random.pick(&[300, 600, 1200]) * MILLISECOND;
    let situation = Situation {
        seed,
        source: Source::Synthetic(Kind::Chat),
        speed: 1.0,
        offered: None,
        length: 10 * SECOND,
        engine,
        telemetry: Telemetry::every(SECOND),
        gateway: Gateway::NEAR,
        clients: Clients::ORDERLY,
        restart: None,
        objective: Objective { limit: Limit::FirstTokenNs(limit), ..Objective::USUAL },
        tenant_share: None,
        spared: false,
    };
    let count = 5 + (random.bits() % (MOST_REQUESTS - 4)) as RequestId;
    let spread = random.between(0.2, 3.0);
    let mut arrivals: Vec<Nanos> = (0..count).map(|_| SECOND + nanos(random.between(0.0, spread))).collect();
    arrivals.sort_unstable();
    let requests = arrivals.into_iter().zip(0..).map(|(at, id)| Request {
        id,
        at,
        prompt: random.between(8.0, 300.0) as u64,
        length: random.between(4.0, 200.0) as u64,
        max_tokens: None,
        tenant: 0,
        content: Content::Own,
        delivery: 5 * MILLISECOND,
        bypass: false,
        lost: false,
        leaves_after: None,
    });
    let requests = requests.collect();
    (situation, requests)
}

/// Output tokens of good requests under `policy`; 0 where it lets anything be preempted, which the gates forbid.
fn tokens(situation: &Situation, requests: &[Request], policy: Box<dyn Policy>) -> u64 {
    let world = play(situation, requests.to_vec(), policy).expect("a run").world;
    if world.fates.iter().any(|fate| fate.preempted) {
        return 0;
    }
    let good = world.requests.iter().filter(|request| world.good(request.id));
    good.map(|request| request.length).sum()
}

/// What the best clairvoyant rule gets, and the best subset.
fn compare(seed: u64) -> (u64, u64) {
    let (situation, requests) = instance(seed);
    let of = |policy| tokens(&situation, &requests, policy);
    let rules = ORDERS.iter().map(|order| of(Box::new(Clairvoyant::new(*order))));
    let rules = rules.chain(PLANS.iter().map(|share| of(Box::new(Planned::within(*share))))).max();
    let subsets = (0..1 << requests.len()).map(|bits| of(Box::new(Subset(bits)))).max();
    (rules.unwrap_or(0), subsets.unwrap_or(0))
}

#[test]
fn the_best_clairvoyant_rule_is_within_three_percent_of_exhaustive_search() {
    let halves: Vec<_> = thread::scope(|scope| {
        let half =
            |first| scope.spawn(move || (first..INSTANCES).step_by(2).map(compare).collect::<Vec<_>>());
        let halves = [half(0), half(1)];
        halves.map(|half| half.join().expect("no panic")).concat()
    });
    let share = |(rule, best): &(u64, u64)| *rule as f64 / (*best).max(1) as f64;
    let mut shares: Vec<_> = halves.iter().map(share).collect();
    shares.sort_by(f64::total_cmp);
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    println!(
        "of exhaustive search: mean {mean:.4}, worst {:.3}, tenth {:.3}",
        shares[0],
        shares[shares.len() / 10]
    );
    assert!(mean >= 0.97, "{mean}: {shares:?}");
}
