//! A situation: what arrives, the engine that serves it, what is known of both, and by what a request is judged.
//!
//! `named`: the situations chosen by hand. `drawn`: situations drawn from a seed. `capacity`: what an engine can do.
//! `file`: situations as JSON.

mod capacity;
mod drawn;
mod families;
mod file;
mod named;
mod objective;
mod ranges;

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{
    engine::{EngineSetup, RequestId},
    random::{Random, hash},
    request::Request,
    time::{MILLISECOND, Nanos, SECOND, nanos, seconds},
    trace::{HOSTILE, Source},
};

use capacity::Tightest;
pub(crate) use drawn::drawn;
pub(crate) use file::{read, write};
pub(crate) use named::{estimation, full, quick, retry, tenants};
pub(crate) use objective::{Class, Limit, Objective};

/// One situation. Times are nanoseconds, shares 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Situation {
    /// Of everything that is left to chance.
    pub(crate) seed: u64,
    /// What arrives.
    pub(crate) source: Source,
    /// Times the source's own pace.
    pub(crate) speed: f64,
    /// Of a drawn situation: how much is asked.
    pub(crate) offered: Option<Offered>,
    /// How long requests arrive.
    #[serde(rename = "length_ns")]
    pub(crate) length: Nanos,
    /// Slots, pool, block size, tokens a step, window, and what a step costs.
    pub(crate) engine: EngineSetup,
    pub(crate) telemetry: Telemetry,
    pub(crate) gateway: Gateway,
    /// What clients do.
    pub(crate) clients: Clients,
    /// When the engine dies and is back at once, empty.
    #[serde(rename = "restart_ns")]
    pub(crate) restart: Option<Nanos>,
    pub(crate) objective: Objective,
    /// Most of the pool that each tenant's requests may come to need, for rules that know of tenants.
    pub(crate) tenant_share: Option<f64>,
    /// Whether the hostile tenant stays away.
    pub(crate) spared: bool,
}

/// How much is asked of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Offered {
    /// Times what the engine can do …
    pub(crate) times: f64,
    /// … by this resource.
    pub(crate) of: Tightest,
}

/// How late the engine's figures are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Telemetry {
    /// Time between scrapes, for rules that do not set their own.
    #[serde(rename = "interval_ns")]
    pub(crate) interval: Nanos,
    /// Share of scrapes that the API server answers late.
    pub(crate) slow_scrapes: f64,
    /// The longest time such a scrape takes.
    #[serde(rename = "slowest_scrape_ns")]
    pub(crate) slowest_scrape: Nanos,
    /// While the API server lags, gauges and counters show the engine as it was this long ago. It lags half of the
    /// time, in spells; 0: never.
    #[serde(rename = "lag_ns")]
    pub(crate) lag: Nanos,
}

/// What lies between callers and the engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gateway {
    /// From admission to the engine's queue: network, HTTP, tokenizer. Uniform between these, for each request.
    #[serde(rename = "delivery_ns")]
    pub(crate) delivery: (Nanos, Nanos),
    /// Whether it reports first tokens and progress; otherwise only ends.
    pub(crate) first_tokens: bool,
    /// Share of admitted requests whose end it never reports.
    pub(crate) lost_ends: f64,
    /// Whether a denied request comes back once, at its Retry-After.
    pub(crate) retry: bool,
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Clients {
    /// Share of requests that go to the engine without asking.
    pub(crate) bypass: f64,
    /// Share of requests without max_tokens.
    pub(crate) unlimited: f64,
    /// Share of requests whose client leaves early.
    pub(crate) leaving: f64,
}

/// Mean time after which a client leaves that does, seconds.
const PATIENCE_S: f64 = 4.0;
/// Before the first request: the rule meets an idle engine.
pub(crate) const LEAD: Nanos = SECOND;

impl Telemetry {
    /// A healthy API server, scraped every `interval`.
    pub(crate) const fn every(interval: Nanos) -> Self {
        Self { interval, slow_scrapes: 0.01, slowest_scrape: 1500 * MILLISECOND, lag: 0 }
    }
}

impl Gateway {
    /// Close to the engine, and reports everything.
    pub(crate) const NEAR: Self = Self {
        delivery: (5 * MILLISECOND, 20 * MILLISECOND),
        first_tokens: true,
        lost_ends: 0.0,
        retry: false,
    };
}

impl Clients {
    /// All ask, name max_tokens and stay.
    pub(crate) const ORDERLY: Self = Self { bypass: 0.0, unlimited: 0.0, leaving: 0.0 };
}

impl Situation {
    /// One line that names it.
    pub(crate) fn name(&self) -> String {
        let interval = Duration::from_nanos(self.telemetry.interval);
        let (source, pool) = (self.source.name(), self.engine.pool_tokens() / 1000);
        let mut name = match self.offered {
            Some(Offered { times, of }) => {
                let (slots, of) = (self.engine.max_num_seqs, of.name());
                format!("{} {source} ×{times} of {of}, {slots} slots {pool}k {interval:?}", self.seed)
            }
            None => format!("{source} ×{} {pool}k {interval:?}", self.speed),
        };
        name += &self.dirt();
        if self.restart.is_some() {
            name += " restart";
        }
        if self.telemetry.lag > 0 {
            name += " lag";
        }
        if !self.gateway.first_tokens {
            name += " ends-only";
        }
        if !self.objective.named {
            name = name + " " + self.objective.class().name();
        }
        if self.gateway.retry {
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

    fn dirt(&self) -> String {
        let Clients { bypass, unlimited, leaving } = self.clients;
        let lost = self.gateway.lost_ends;
        let part = |name: &str, share: f64| {
            if share > 0.0 { format!(" {name} {}%", (share * 1000.0).round() / 10.0) } else { String::new() }
        };
        let dirt = if (bypass, unlimited, lost) == named::DIRT {
            " dirty".into()
        } else {
            part("bypass", bypass) + &part("no-max", unlimited) + &part("lost", lost)
        };
        dirt + &part("leaving", leaving)
    }

    /// Whether all that can be known is known in time.
    pub(crate) fn clean(&self) -> bool {
        self.clients == Clients::ORDERLY
            && self.gateway.lost_ends == 0.0
            && self.restart.is_none()
            && self.telemetry.lag == 0
    }

    /// The requests. What exceeds the window is answered with 400 by the engine whatever admission says: left out.
    pub(crate) fn requests(&self) -> Result<Vec<Request>> {
        let window = self.engine.max_model_len;
        let mut random = Random::new(self.seed, 2);
        let arrivals = self.source.load(self.speed, self.length, self.seed)?;
        let fitting = arrivals
            .into_iter()
            .filter(|arrival| arrival.prompt + 1 < window && !(self.spared && arrival.tenant == HOSTILE));
        Ok(fitting
            .zip(0..)
            .map(|(mut arrival, id)| {
                let (bypass, unlimited) =
                    (random.chance(self.clients.bypass), random.chance(self.clients.unlimited));
                let lost = random.chance(self.gateway.lost_ends);
                let patience = nanos(random.exponential(PATIENCE_S));
                let leaves_after = random.chance(self.clients.leaving).then_some(patience);
                arrival.max_tokens = arrival.max_tokens.filter(|_| !unlimited);
                let length = arrival.length().min(window - arrival.prompt);
                Request {
                    id,
                    at: arrival.at + LEAD,
                    prompt: arrival.prompt,
                    length,
                    max_tokens: arrival.max_tokens.map(|most| most.min(window - arrival.prompt)),
                    tenant: arrival.tenant,
                    content: arrival.content,
                    delivery: self.delivery(id),
                    bypass,
                    lost,
                    leaves_after,
                }
            })
            .collect())
    }

    /// How long request `id` travels to the engine, whatever the rule.
    fn delivery(&self, id: RequestId) -> Nanos {
        let (low, high) = self.gateway.delivery;
        nanos(Random::new(self.seed, hash(5, u64::from(id))).between(seconds(low), seconds(high)))
    }
}
