//! The situations in which rules are compared.

use std::time::Duration;

use anyhow::Result;

use crate::{
    engine::{EngineSetup, StepCost},
    random::Random,
    request::Request,
    time::{MILLISECOND, Nanos, SECOND, nanos},
    trace::{HOSTILE, Kind, Source},
};

/// One situation.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) source: Source,
    /// Times the trace's pace.
    pub(crate) speed: f64,
    /// Tokens that the pool holds.
    pub(crate) pool: u64,
    /// Time between scrapes, for rules that do not set their own.
    pub(crate) interval: Nanos,
    /// Share of requests that go to the engine without asking.
    pub(crate) bypass: f64,
    /// Share of requests without max_tokens.
    pub(crate) unlimited: f64,
    /// Share of admitted requests whose end is never reported.
    pub(crate) lost: f64,
    /// Share of requests whose client leaves early.
    pub(crate) leaving: f64,
    /// When the engine dies and is back at once, empty.
    pub(crate) restart: Option<Nanos>,
    /// Whether a denied request comes back once, at its Retry-After.
    pub(crate) retry: bool,
    /// Most of the pool that each tenant's requests may come to need, for rules that know of tenants.
    pub(crate) tenant_share: Option<f64>,
    /// Whether the hostile tenant stays away.
    pub(crate) spared: bool,
    /// How long requests arrive.
    pub(crate) length: Nanos,
    pub(crate) seed: u64,
}

/// vLLM's defaults for an API server on a GPU of the middle class.
const MAX_NUM_SEQS: u64 = 256;
const MAX_NUM_BATCHED_TOKENS: u64 = 2048;
const BLOCK_SIZE: u64 = 16;
/// Largest context window of the models that these traces are for.
const LARGEST_WINDOW: u64 = 131_072;

/// Mean time after which a client leaves that does, seconds.
const PATIENCE_S: f64 = 4.0;

/// Share of the pool for each tenant, where there are shares.
const TENANT_SHARE: f64 = 0.2;

/// DESIGN's dirt.
const DIRT: (f64, f64, f64) = (0.2, 0.5, 0.01);

impl Cell {
    fn new(source: Source, speed: f64, pool: u64, length: Nanos, seed: u64) -> Self {
        Self {
            source,
            speed,
            pool,
            interval: SECOND,
            bypass: 0.0,
            unlimited: 0.0,
            lost: 0.0,
            leaving: 0.0,
            restart: None,
            retry: false,
            tenant_share: None,
            spared: false,
            length,
            seed,
        }
    }

    fn dirty(self) -> Self {
        let (bypass, unlimited, lost) = DIRT;
        Self { bypass, unlimited, lost, ..self }
    }

    fn every(self, interval: Nanos) -> Self {
        Self { interval, ..self }
    }

    fn bypassed(self, bypass: f64) -> Self {
        Self { bypass, ..self }
    }

    /// One line that names it.
    pub(crate) fn name(&self) -> String {
        let interval = Duration::from_nanos(self.interval);
        let mut name = format!("{} ×{} {}k {interval:?}", self.source.name(), self.speed, self.pool / 1000);
        if (self.bypass, self.unlimited, self.lost) == DIRT {
            name += " dirty";
        } else {
            if self.bypass > 0.0 {
                name += &format!(" bypass {}%", self.bypass * 100.0);
            }
            if self.unlimited > 0.0 {
                name += &format!(" no-max {}%", self.unlimited * 100.0);
            }
            if self.lost > 0.0 {
                name += &format!(" lost {}%", self.lost * 100.0);
            }
        }
        if self.leaving > 0.0 {
            name += &format!(" leaving {}%", self.leaving * 100.0);
        }
        if self.restart.is_some() {
            name += " restart";
        }
        if self.retry {
            name += " retry";
        }
        if let Some(share) = self.tenant_share {
            name += &format!(" shares {}%", share * 100.0);
        }
        if self.spared {
            name += " spared";
        }
        name
    }

    /// Whether all that can be known is known in time.
    pub(crate) fn clean(&self) -> bool {
        self.bypass + self.unlimited + self.lost + self.leaving == 0.0 && self.restart.is_none()
    }

    /// The engine.
    pub(crate) fn setup(&self) -> EngineSetup {
        let blocks = self.pool / BLOCK_SIZE;
        EngineSetup {
            blocks,
            block_size: BLOCK_SIZE,
            max_num_seqs: MAX_NUM_SEQS,
            max_num_batched_tokens: MAX_NUM_BATCHED_TOKENS,
            // vLLM does not start with a window larger than the pool.
            max_model_len: LARGEST_WINDOW.min(blocks * BLOCK_SIZE),
            prefix_caching: self.source.shares_prefixes(),
            cost: StepCost::default(),
        }
    }

    /// The requests. What exceeds the window is answered with 400 by the engine whatever admission says: left out.
    pub(crate) fn requests(&self) -> Result<Vec<Request>> {
        let window = self.setup().max_model_len;
        let mut random = Random::new(self.seed, 2);
        let arrivals = self.source.load(self.speed, self.length, self.seed)?;
        let fitting = arrivals
            .into_iter()
            .filter(|arrival| arrival.prompt + 1 < window && !(self.spared && arrival.tenant == HOSTILE));
        Ok(fitting
            .zip(0..)
            .map(|(mut arrival, id)| {
                let (bypass, unlimited) = (random.chance(self.bypass), random.chance(self.unlimited));
                let lost = random.chance(self.lost);
                let patience = nanos(random.exponential(PATIENCE_S));
                let leaves_after = random.chance(self.leaving).then_some(patience);
                arrival.max_tokens = arrival.max_tokens.filter(|_| !unlimited);
                let length = arrival.length().min(window - arrival.prompt);
                Request {
                    id,
                    at: arrival.at + SECOND,
                    prompt: arrival.prompt,
                    length,
                    max_tokens: arrival.max_tokens.map(|most| most.min(window - arrival.prompt)),
                    tenant: arrival.tenant,
                    content: arrival.content,
                    bypass,
                    lost,
                    leaves_after,
                }
            })
            .collect())
    }
}

const fn synthetic(kind: Kind) -> Source {
    Source::Synthetic(kind)
}

/// Some minutes on two cores, all rules; `files` are traces by path.
pub(crate) fn quick(files: &[Source], length: Nanos) -> Vec<Cell> {
    let cell = |source, speed, pool| Cell::new(source, speed, pool, length, 1);
    let chat = || synthetic(Kind::Chat);
    let mut cells = vec![
        cell(chat(), 1.5, 48_000),
        cell(chat(), 3.0, 48_000),
        cell(chat(), 1.5, 48_000).every(5 * SECOND),
        cell(chat(), 1.5, 48_000).dirty(),
        cell(chat(), 1.5, 48_000).dirty().every(5 * SECOND),
        cell(chat(), 0.5, 128_000),
        cell(chat(), 1.0, 16_000),
        cell(synthetic(Kind::Code), 3.0, 96_000),
        cell(synthetic(Kind::Documents), 1.0, 128_000),
        cell(synthetic(Kind::Turns), 1.5, 48_000),
        cell(synthetic(Kind::Hostile), 1.0, 96_000),
        storm(length),
    ];
    for source in files {
        let (speed, pool) = match source {
            Source::Mooncake(_) => (0.5, 300_000),
            _ if source.name().starts_with("code") => (3.0, 96_000),
            _ => (1.5, 48_000),
        };
        cells.push(cell(source.clone(), speed, pool));
        cells.push(cell(source.clone(), speed, pool).dirty().every(5 * SECOND));
    }
    cells
}

/// Every kind at every speed, from starved to ample, clean and dirty, then intervals and bypass shares.
pub(crate) fn full(files: &[Source], length: Nanos) -> Vec<Cell> {
    let mut sources: Vec<_> =
        [Kind::Chat, Kind::Code, Kind::Documents, Kind::Turns, Kind::Hostile].map(synthetic).into();
    sources.extend(files.iter().cloned());
    let mut cells = Vec::new();
    for source in &sources {
        let pools: [u64; 3] = match source {
            Source::Mooncake(_) => [160_000, 300_000, 600_000],
            Source::Synthetic(Kind::Documents) => [80_000, 128_000, 400_000],
            _ => [24_000, 48_000, 128_000],
        };
        for speed in [0.5, 1.0, 1.5, 3.0] {
            for pool in pools {
                let cell = Cell::new(source.clone(), speed, pool, length, 1);
                cells.push(cell.clone().dirty().every(5 * SECOND));
                cells.push(cell);
            }
        }
    }
    cells.extend(estimation(&sources, length));
    cells
}

/// For the estimator's error: intervals × bypass shares.
pub(crate) fn estimation(sources: &[Source], length: Nanos) -> Vec<Cell> {
    let mut cells = Vec::new();
    for source in sources {
        let (speed, pool) = match source {
            Source::Mooncake(_) => (0.5, 300_000),
            Source::Synthetic(Kind::Documents) => (1.0, 128_000),
            _ => (1.5, 48_000),
        };
        for interval in [50 * MILLISECOND, SECOND, 5 * SECOND, 15 * SECOND] {
            for bypass in [0.0, 0.2, 1.0] {
                let cell = Cell::new(source.clone(), speed, pool, length, 2);
                cells.push(cell.every(interval).bypassed(bypass));
            }
        }
    }
    cells
}

/// Lost ends, clients that leave, and an engine that dies on the way.
fn storm(length: Nanos) -> Cell {
    let cell = Cell::new(synthetic(Kind::Chat), 1.5, 48_000, length, 4);
    Cell { lost: 0.2, leaving: 0.1, restart: Some(length / 2), ..cell }
}

/// What others notice of a tenant that sends all at once: with and without shares of the pool, and without it.
pub(crate) fn tenants(length: Nanos) -> Vec<Cell> {
    let cell = || Cell::new(synthetic(Kind::Hostile), 1.0, 96_000, length, 1);
    let shared = Cell { tenant_share: Some(TENANT_SHARE), ..cell() };
    vec![cell(), shared, Cell { spared: true, ..cell() }]
}

/// How often a retry at the named time is let in.
pub(crate) fn retry(length: Nanos) -> Vec<Cell> {
    let cell = |kind, speed, pool| Cell { retry: true, ..Cell::new(synthetic(kind), speed, pool, length, 3) };
    vec![cell(Kind::Chat, 1.5, 48_000), cell(Kind::Code, 3.0, 96_000), cell(Kind::Documents, 1.0, 128_000)]
}
