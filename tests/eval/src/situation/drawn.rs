//! A situation drawn from its seed alone, over fixed ranges. Frozen: later changes only add, and a test pins the
//! situations of seeds 1 to 200.

use super::{
    Class, Clients, Gateway, Limit, Objective, Offered, Situation, Telemetry,
    capacity::{Capacity, Means, longest_step_s},
    families,
    ranges::{exact, log_uniform, short},
};
use crate::{
    engine::{EngineSetup, StepCost},
    random::Random,
    time::{Nanos, SECOND, nanos, seconds},
    trace::{Drawn, Family, Pattern, Source},
};

/// Offered load, those who ask nobody included, as a multiple of what the engine can do.
const LOAD: (f64, f64) = (0.5, 3.0);
const SLOTS: (f64, f64) = (4.0, 1024.0);
/// Tokens a step.
const CHUNKS: [u64; 6] = [512, 1024, 2048, 4096, 8192, 16_384];
const BLOCK_SIZES: [u64; 2] = [16, 32];
/// A pool holds at least so many mean requests …
const SMALLEST_POOL: f64 = 8.0;
/// … and at most this multiple of what all slots need, or so many tokens.
const AMPLE: f64 = 1.3;
const LARGEST_POOL: f64 = 2_000_000.0;
/// Step costs relative to the default, a factor of 20 from end to end.
const COSTS: (f64, f64) = (0.2236, 4.472);
/// A prompt token's cost relative to that.
const PREFILL_COST: (f64, f64) = (0.5, 2.0);
/// Seconds between readings.
const INTERVAL: (f64, f64) = (0.05, 15.0);
/// Seconds from admission to the engine: half of the situations are near …
const NEAR: (f64, f64) = (0.005, 0.02);
/// … and half are not; no request takes more than twice as long as another.
const FAR: (f64, f64) = (0.02, 2.5);
/// Seconds by which a lagging API server's counts are late.
const LAG: (f64, f64) = (0.5, 5.0);
/// A named objective, seconds.
const NAMED: (f64, f64) = (1.0, 20.0);

/// A situation lasts at least so long,
const SHORTEST_S: f64 = 120.0;
/// has at least so many requests,
const FEWEST: f64 = 1500.0;
/// so many times the time that a request takes,
const LIVES: f64 = 12.0;
/// and so many readings.
const READINGS: f64 = 12.0;

/// The situation of `seed`.
pub(crate) fn drawn(seed: u64) -> Situation {
    let random = |stream: u64| Random::new(seed, 400 + stream);
    let cost = cost(&mut random(0));
    let family = families::draw(&mut random(1), cost.base / 1e3);
    let engine = engine(&mut random(2), cost, &family);
    let means = Means::of(&family, engine.max_model_len);
    let capacity = Capacity::of(&engine, &means);
    let dirty = random(3).chance(0.5);
    let telemetry = telemetry(&mut random(4), dirty);
    let times = short(log_uniform(&mut random(5), LOAD));
    let per_s = capacity.per_s * times;
    let length = length(per_s, &capacity, &means, &telemetry);
    let gateway = gateway(&mut random(6), dirty);
    let longest_step = longest_step_s(&engine, &capacity, &means);
    Situation {
        seed,
        source: Source::Drawn(Box::new(Drawn {
            pattern: pattern(&mut random(7), seconds(length)),
            begin_per_s: short(per_s / means.turns),
            before_s: short(2.0 * means.lasts_s),
            family,
        })),
        speed: 1.0,
        offered: Some(Offered { times, of: capacity.tightest }),
        length,
        engine,
        telemetry,
        objective: objective(&mut random(8), &engine, &means, &gateway, longest_step),
        gateway,
        clients: if dirty { clients(&mut random(9)) } else { Clients::ORDERLY },
        restart: (dirty && random(10).chance(0.15)).then(|| {
            let share = random(11).between(0.3, 0.7);
            nanos(seconds(length) * share)
        }),
        tenant_share: None,
        spared: false,
    }
}

fn cost(random: &mut Random) -> StepCost {
    let (low, high) = COSTS;
    let all = log_uniform(random, COSTS);
    let prefill = (all * log_uniform(random, PREFILL_COST)).clamp(low, high);
    let usual = StepCost::default();
    StepCost {
        base: short(usual.base * all),
        per_sequence: short(usual.per_sequence * all),
        per_prefill_token: short(usual.per_prefill_token * prefill),
        per_context_token: short(usual.per_context_token * all),
        per_prefill_pair: short(usual.per_prefill_pair * prefill),
    }
}

fn engine(random: &mut Random, cost: StepCost, family: &Family) -> EngineSetup {
    let slots = log_uniform(random, SLOTS).round();
    // vLLM refuses to start with fewer tokens a step than slots.
    let chunk = random.pick(&CHUNKS).max((slots as u64).next_power_of_two());
    let block_size = random.pick(&BLOCK_SIZES);
    let means = Means::of(family, u64::MAX);
    let smallest = means.whole * SMALLEST_POOL;
    let ample = (slots * means.own * AMPLE).min(LARGEST_POOL).max(2.0 * smallest);
    let pool = short(log_uniform(random, (smallest, ample)));
    let blocks = (pool / block_size as f64) as u64;
    EngineSetup {
        max_num_seqs: slots as u64,
        max_num_batched_tokens: chunk,
        cost,
        ..EngineSetup::with_window(blocks, block_size, family.shares_prefixes())
    }
}

fn telemetry(random: &mut Random, dirty: bool) -> Telemetry {
    let interval = exact(short(log_uniform(random, INTERVAL)));
    let healthy = Telemetry::every(interval);
    if !dirty || random.chance(0.6) {
        return healthy;
    }
    let lag = short(log_uniform(random, LAG));
    Telemetry {
        lag: exact(lag),
        slow_scrapes: short(random.between(0.01, 0.2)),
        slowest_scrape: exact(lag).max(healthy.slowest_scrape),
        ..healthy
    }
}

fn gateway(random: &mut Random, dirty: bool) -> Gateway {
    let range = if random.chance(0.5) { NEAR } else { FAR };
    let low = short(log_uniform(random, range));
    let high = short(low * random.between(1.0, 2.0)).max(low);
    let first_tokens = random.chance(0.6);
    let lost = if random.chance(0.5) { square(random) * 0.2 } else { 0.0 };
    Gateway {
        delivery: (exact(low), exact(high)),
        first_tokens,
        lost_ends: if dirty { short(lost) } else { 0.0 },
        retry: false,
    }
}

fn clients(random: &mut Random) -> Clients {
    Clients {
        bypass: short(square(random)),
        unlimited: short(random.unit()),
        leaving: short(if random.chance(0.5) { random.between(0.0, 0.2) } else { 0.0 }),
    }
}

/// 0 to 1, more often small.
fn square(random: &mut Random) -> f64 {
    let unit = random.unit();
    unit * unit
}

/// How long requests arrive: longer where few come.
fn length(per_s: f64, capacity: &Capacity, means: &Means, telemetry: &Telemetry) -> Nanos {
    let life = means.output * capacity.step_s;
    let readings = READINGS * seconds(telemetry.interval);
    let length = SHORTEST_S.max(FEWEST / per_s).max(LIVES * life).max(readings);
    length.ceil() as Nanos * SECOND
}

fn pattern(random: &mut Random, length_s: f64) -> Pattern {
    match random.bits() % 4 {
        0 => Pattern::Poisson,
        1 => {
            let cycle = length_s / random.between(3.0, 12.0);
            let share = random.between(0.1, 0.5);
            Pattern::Bursts {
                calm_s: short(cycle * (1.0 - share)),
                burst_s: short(cycle * share),
                ratio: short(random.between(2.0, 8.0)),
            }
        }
        2 => Pattern::Ramp { from: short(random.between(0.2, 1.8)) },
        _ => Pattern::Diurnal {
            period_s: short(length_s / random.between(1.0, 3.0)),
            depth: short(random.between(0.3, 0.9)),
        },
    }
}

/// Named: no shorter than what a long prompt needs on the idle engine, and half as much again. A pause counts as one
/// only where the engine's own longest step does not explain it.
fn objective(
    random: &mut Random,
    engine: &EngineSetup,
    means: &Means,
    gateway: &Gateway,
    longest_step_s: f64,
) -> Objective {
    let named = random.chance(0.5);
    let wanted = log_uniform(random, NAMED);
    let alone = seconds(gateway.delivery.1 + engine.prefill_alone(means.long_prompt, 0));
    let limit = if named {
        Limit::FirstTokenNs(exact(short(wanted.max(1.5 * alone))))
    } else {
        Limit::Class(random.pick(&[Class::Interactive, Class::Standard, Class::Standard, Class::Batch]))
    };
    let pace = exact(short((1.5 * longest_step_s).max(1.0)));
    Objective { limit, pace, named }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{policy, random::hash, request::Phase, run::play};

    /// Requests a second that an overloaded engine completes in the second half of the time, relative to its capacity.
    fn completed(seed: u64) -> (Situation, f64) {
        let mut situation = Situation { gateway: Gateway::NEAR, clients: Clients::ORDERLY, ..drawn(seed) };
        let Source::Drawn(source) = &mut situation.source else { panic!("not drawn") };
        let times = situation.offered.unwrap().times;
        let means = Means::of(&source.family, situation.engine.max_model_len);
        let capacity = Capacity::of(&situation.engine, &means).per_s;
        source.pattern = Pattern::Poisson;
        source.begin_per_s *= 2.0 / times;
        situation.restart = None;
        let none = policy::family("none").unwrap().candidates(true)[0].build(&situation);
        let played = play(&situation, situation.requests().unwrap(), none).unwrap();
        let half = situation.length / 2;
        let late =
            played.world.fates.iter().filter(|fate| {
                fate.phase == Phase::Done && (half..situation.length).contains(&fate.last_token)
            });
        let ratio = late.count() as f64 / seconds(half) / capacity;
        (situation, ratio)
    }

    #[test]
    fn an_overloaded_engine_completes_what_its_capacity_says() {
        // Agents are left out: where the pool is small, the cache loses what capacity counts as cached.
        let runs = (1..=12).map(completed).filter(|(one, _)| !one.source.name().starts_with("agents"));
        let mut ratios: Vec<_> = runs.map(|(_, ratio)| ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let median = ratios[ratios.len() / 2];
        assert!((0.9..1.1).contains(&median) && ratios[0] > 0.7, "{ratios:?}");
        assert!(ratios[ratios.len() - 1] < 1.3, "{ratios:?}");
    }

    /// A number that stands for all bytes of `text`.
    fn digest(text: &str) -> u64 {
        text.bytes().fold(0, |sum, byte| hash(sum, byte.into()))
    }

    #[test]
    fn situations_are_frozen() {
        let situations: Vec<_> = (1..=200).map(drawn).collect();
        let requests = situations.iter().map(|one| format!("{:?}", one.requests().unwrap()));
        let requests = requests.fold(0, |sum, text| hash(sum, digest(&text)));
        let text = serde_json::to_string(&situations).unwrap();
        // Published results stand on these: what is added later must not change them.
        assert_eq!((digest(&text), requests), (4_427_080_853_220_922_350, 16_570_721_844_647_709_213));
    }

    #[test]
    fn a_situation_survives_its_file() {
        let situations: Vec<_> = (1..=200).map(drawn).collect();
        let text = serde_json::to_string_pretty(&situations).unwrap();
        let again: Vec<Situation> = serde_json::from_str(&text).unwrap();
        assert!(situations == again);
    }

    #[test]
    fn ranges_are_kept_and_filled() {
        let situations: Vec<_> = (1..=400).map(drawn).collect();
        let range = |of: &dyn Fn(&Situation) -> f64| {
            let values: Vec<_> = situations.iter().map(of).collect();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            (least, values.into_iter().fold(f64::NEG_INFINITY, f64::max))
        };
        let within = |of: &dyn Fn(&Situation) -> f64, (low, high): (f64, f64)| {
            let (least, most) = range(of);
            assert!(least >= low && most <= high, "{least} to {most}, not {low} to {high}");
            // Both ends are reached within a twentieth of the range, in the logarithm or not.
            let near = |value: f64, end: f64| {
                (value - end).abs() < (high - low) / 20.0 || (value / end - 1.0).abs() < 0.2
            };
            assert!(near(least, low) && near(most, high), "{least} to {most} of {low} to {high}");
        };
        within(&|one| one.offered.unwrap().times, LOAD);
        within(&|one| one.engine.max_num_seqs as f64, SLOTS);
        within(&|one| one.engine.max_num_batched_tokens as f64, (512.0, 16_384.0));
        within(&|one| one.engine.block_size as f64, (16.0, 32.0));
        within(&|one| one.engine.cost.base, (15.0 * COSTS.0 - 0.01, 15.0 * COSTS.1 + 0.1));
        within(&|one| seconds(one.telemetry.interval), INTERVAL);
        within(&|one| seconds(one.gateway.delivery.1), (0.005, 5.0));
        within(&|one| one.clients.bypass, (0.0, 1.0));
        within(&|one| one.clients.unlimited, (0.0, 1.0));
        assert!(situations.iter().all(|one| one.engine.max_num_batched_tokens >= one.engine.max_num_seqs));
        let clean = situations.iter().filter(|one| one.clean()).count();
        assert!((160..=240).contains(&clean), "{clean}");
        for part in
            ["lag", "restart", "ends-only", "interactive", "batch", "agents", "bimodal", "leaving", "lost"]
        {
            assert!(situations.iter().any(|one| one.name().contains(part)), "{part}");
        }
    }
}
