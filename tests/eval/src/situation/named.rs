//! Situations chosen by hand.

use super::{Clients, Gateway, Objective, Situation, Telemetry};
use crate::{
    engine::EngineSetup,
    time::{MILLISECOND, Nanos, SECOND},
    trace::{Kind, Source},
};

/// Share of the pool for each tenant, where there are shares.
const TENANT_SHARE: f64 = 0.2;

/// Shares of requests that bypass, that have no max_tokens, and whose end is lost, in what is called dirty.
pub(super) const DIRT: (f64, f64, f64) = (0.2, 0.5, 0.01);

impl Situation {
    fn new(source: Source, speed: f64, pool: u64, length: Nanos, seed: u64) -> Self {
        Self {
            seed,
            speed,
            offered: None,
            length,
            engine: EngineSetup::of_pool(pool, source.shares_prefixes()),
            source,
            telemetry: Telemetry::every(SECOND),
            gateway: Gateway::NEAR,
            clients: Clients::ORDERLY,
            restart: None,
            objective: Objective::USUAL,
            tenant_share: None,
            spared: false,
        }
    }

    fn dirty(self) -> Self {
        let (bypass, unlimited, lost_ends) = DIRT;
        Self {
            clients: Clients { bypass, unlimited, ..self.clients },
            gateway: Gateway { lost_ends, ..self.gateway },
            ..self
        }
    }

    fn every(self, interval: Nanos) -> Self {
        Self { telemetry: Telemetry::every(interval), ..self }
    }

    fn bypassed(self, bypass: f64) -> Self {
        Self { clients: Clients { bypass, ..self.clients }, ..self }
    }
}

const fn synthetic(kind: Kind) -> Source {
    Source::Synthetic(kind)
}

/// Some minutes on two cores, all rules; `files` are traces by path.
pub(crate) fn quick(files: &[Source], length: Nanos) -> Vec<Situation> {
    let situation = |source, speed, pool| Situation::new(source, speed, pool, length, 1);
    let chat = || synthetic(Kind::Chat);
    let mut situations = vec![
        situation(chat(), 1.5, 48_000),
        situation(chat(), 3.0, 48_000),
        situation(chat(), 1.5, 48_000).every(5 * SECOND),
        situation(chat(), 1.5, 48_000).dirty(),
        situation(chat(), 1.5, 48_000).dirty().every(5 * SECOND),
        situation(chat(), 0.5, 128_000),
        situation(chat(), 1.0, 16_000),
        situation(synthetic(Kind::Code), 3.0, 96_000),
        situation(synthetic(Kind::Documents), 1.0, 128_000),
        situation(synthetic(Kind::Turns), 1.5, 48_000),
        situation(synthetic(Kind::Hostile), 1.0, 96_000),
        storm(length),
    ];
    for source in files {
        let (speed, pool) = match source {
            Source::Mooncake(_) => (0.5, 300_000),
            _ if source.name().starts_with("code") => (3.0, 96_000),
            _ => (1.5, 48_000),
        };
        situations.push(situation(source.clone(), speed, pool));
        situations.push(situation(source.clone(), speed, pool).dirty().every(5 * SECOND));
    }
    situations
}

/// Every kind at every speed, from starved to ample, clean and dirty, then intervals and bypass shares.
pub(crate) fn full(files: &[Source], length: Nanos) -> Vec<Situation> {
    let mut sources: Vec<_> =
        [Kind::Chat, Kind::Code, Kind::Documents, Kind::Turns, Kind::Hostile].map(synthetic).into();
    sources.extend(files.iter().cloned());
    let mut situations = Vec::new();
    for source in &sources {
        let pools: [u64; 3] = match source {
            Source::Mooncake(_) => [160_000, 300_000, 600_000],
            Source::Synthetic(Kind::Documents) => [80_000, 128_000, 400_000],
            _ => [24_000, 48_000, 128_000],
        };
        for speed in [0.5, 1.0, 1.5, 3.0] {
            for pool in pools {
                let situation = Situation::new(source.clone(), speed, pool, length, 1);
                situations.push(situation.clone().dirty().every(5 * SECOND));
                situations.push(situation);
            }
        }
    }
    situations.extend(estimation(&sources, length));
    situations
}

/// For the estimator's error: intervals × bypass shares.
pub(crate) fn estimation(sources: &[Source], length: Nanos) -> Vec<Situation> {
    let mut situations = Vec::new();
    for source in sources {
        let (speed, pool) = match source {
            Source::Mooncake(_) => (0.5, 300_000),
            Source::Synthetic(Kind::Documents) => (1.0, 128_000),
            _ => (1.5, 48_000),
        };
        for interval in [50 * MILLISECOND, SECOND, 5 * SECOND, 15 * SECOND] {
            for bypass in [0.0, 0.2, 1.0] {
                let situation = Situation::new(source.clone(), speed, pool, length, 2);
                situations.push(situation.every(interval).bypassed(bypass));
            }
        }
    }
    situations
}

/// Lost ends, clients that leave, and an engine that dies on the way.
fn storm(length: Nanos) -> Situation {
    let situation = Situation::new(synthetic(Kind::Chat), 1.5, 48_000, length, 4);
    Situation {
        clients: Clients { leaving: 0.1, ..situation.clients },
        gateway: Gateway { lost_ends: 0.2, ..situation.gateway },
        restart: Some(length / 2),
        ..situation
    }
}

/// What others notice of a tenant that sends all at once: with and without shares of the pool, and without it.
pub(crate) fn tenants(length: Nanos) -> Vec<Situation> {
    let situation = || Situation::new(synthetic(Kind::Hostile), 1.0, 96_000, length, 1);
    let shared = Situation { tenant_share: Some(TENANT_SHARE), ..situation() };
    vec![situation(), shared, Situation { spared: true, ..situation() }]
}

/// How often a retry at the named time is let in.
pub(crate) fn retry(length: Nanos) -> Vec<Situation> {
    let gateway = Gateway { retry: true, ..Gateway::NEAR };
    let situation =
        |kind, speed, pool| Situation { gateway, ..Situation::new(synthetic(kind), speed, pool, length, 3) };
    vec![
        situation(Kind::Chat, 1.5, 48_000),
        situation(Kind::Code, 3.0, 96_000),
        situation(Kind::Documents, 1.0, 128_000),
    ]
}
