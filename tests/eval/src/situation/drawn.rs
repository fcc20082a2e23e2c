//! A situation drawn from its seed alone, over fixed ranges. Frozen: later changes only add, and a test pins the
//! situations of seeds 1 to 200.

use super::{
    Class, Clients, Gateway, Limit, Objective, Situation, Telemetry,
    capacity::{Capacity, Means, longest_step_s},
    families,
    ranges::{log_uniform, short},
};
use crate::{
    engine::{EngineSetup, StepCost},
    random::Random,
    time::{MILLISECOND, Nanos, SECOND, nanos, seconds},
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
const SHORTEST_S: f64 = 60.0;
/// has at least so many requests,
const FEWEST: f64 = 400.0;
/// so many times the time that a request takes,
const LIVES: f64 = 8.0;
/// and so many readings.
const READINGS: f64 = 8.0;

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
    let per_s = capacity.per_s * log_uniform(&mut random(5), LOAD);
    let length = length(per_s, &capacity, &means, &telemetry);
    let gateway = gateway(&mut random(6), dirty);
    let longest_step = longest_step_s(&engine, &capacity, &means);
    Situation {
        seed,
        source: Source::Drawn(Drawn {
            pattern: pattern(&mut random(7), seconds(length)),
            begin_per_s: short(per_s / means.turns),
            before_s: short(2.0 * means.lasts_s),
            family,
        }),
        speed: 1.0,
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
    let interval = nanos(short(log_uniform(random, INTERVAL)));
    let healthy = Telemetry::every(interval);
    if !dirty || random.chance(0.6) {
        return healthy;
    }
    let lag = short(log_uniform(random, LAG));
    Telemetry {
        lag: nanos(lag),
        slow_scrapes: short(random.between(0.01, 0.2)),
        slowest_scrape: nanos(lag).max(healthy.slowest_scrape),
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
        delivery: (nanos(low), nanos(high)),
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
        Limit::FirstTokenNs(nanos(short(wanted.max(1.5 * alone))))
    } else {
        Limit::Class(random.pick(&[Class::Interactive, Class::Standard, Class::Standard, Class::Batch]))
    };
    let pace = nanos(short((1.5 * longest_step_s).max(1.0)));
    Objective { limit, pace: pace / MILLISECOND * MILLISECOND, named }
}
