//! One engine's task: who it is, how it does, and how asking it fares.

use std::{sync::Arc, time::Duration};

use gpuadmit_core::{
    observation::{
        EngineFacts, EngineProcess, Observation, Obstacle, ScrapeFailure, ServedModel, SourceHealth,
        SourceReport,
    },
    units::{Mono, Span, Tokens},
};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    address::Address,
    cmdline::Command,
    cost::Pace,
    http::{self, Client},
    identity::{self, Listing, version_known},
    reading::Body,
    scrape::{Failed, Scraper},
    settled::FirstLook,
};
use crate::{clock, source::Observe};

/// Time between two looks at the list of models: adapters come and go.
const IDENTIFY_EVERY: Duration = Duration::from_secs(30);
/// Time until an engine that does not answer who it is is asked again.
const IDENTIFY_RETRY: Duration = Duration::from_secs(2);
/// Time between two attempts while nothing listens: costs the engine nothing, and readiness is noticed soon.
const REFUSED_RETRY: Duration = Duration::from_millis(200);
/// Shortest time between two reports of unchanged health: at least one a second comes of it.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// What is known of an engine without asking it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    /// Where it listens.
    pub address: Address,
    /// Why it cannot be asked there.
    pub obstacle: Option<Obstacle>,
    /// What it was told, where its process is seen.
    pub command: Option<Command>,
    /// Its processes.
    pub processes: Vec<EngineProcess>,
    /// Models it is configured to serve.
    pub models: Vec<String>,
}

/// How to ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    /// How often.
    pub pace: Pace,
    /// How long an answer may take.
    pub deadline: Duration,
}

/// The task's state.
pub(super) struct Engine {
    id: Arc<str>,
    known: watch::Receiver<Known>,
    observe: Observe,
    asking: Asking,
    client: Client,
    scraper: Scraper,
    version: Option<String>,
    listing: Option<Listing>,
    identify_at: Mono,
    label_models: Vec<Arc<str>>,
    ranks: usize,
    told: Option<EngineFacts>,
    report: Report,
}

/// What was last said of the source.
struct Report {
    at: Option<Mono>,
    health: SourceHealth,
    cost: Duration,
    delivered: bool,
}

impl Engine {
    pub(super) fn new(
        id: Arc<str>,
        known: watch::Receiver<Known>,
        api_key: Option<&str>,
        asking: Asking,
        observe: Observe,
    ) -> Self {
        let address = known.borrow().address.clone();
        Self {
            id,
            known,
            observe,
            asking,
            client: Client::new(address, api_key),
            scraper: Scraper::new(asking.pace, asking.deadline),
            version: None,
            listing: None,
            identify_at: Mono(0),
            label_models: vec![],
            ranks: 0,
            told: None,
            report: Report { at: None, health: SourceHealth::Absent, cost: Duration::ZERO, delivered: false },
        }
    }

    /// Scrapes until it is dropped, or nobody is left who would tell it of changes.
    pub(super) async fn run(mut self, mut first_look: Option<FirstLook>) {
        loop {
            let started = Instant::now();
            self.tell_facts(Span::at(clock::now()));
            let interval = match self.ask().await {
                Ok(body) => self.delivered(body).await,
                Err(failed) => self.failed(failed),
            };
            drop(first_look.take());
            // A scrape slower than the interval is not followed by the next at once.
            let next = (started + interval).max(Instant::now() + self.asking.pace.min_interval);
            while let Ok(changed) = timeout_at(next, self.known.changed()).await {
                if changed.is_err() {
                    return;
                }
                self.tell_facts(Span::at(clock::now()));
            }
        }
    }

    /// Scrapes it; where something stands in the way, looks whether it listens.
    async fn ask(&mut self) -> Result<Body, Failed> {
        let obstacle = self.known.borrow().obstacle;
        let Some(obstacle) = obstacle else { return self.scraper.scrape(&mut self.client).await };
        let (address, not_before) = (self.known.borrow().address.clone(), clock::now());
        let has_address = matches!(obstacle, Obstacle::Tls | Obstacle::Grpc);
        let failure = if has_address && http::refuses(&address, self.asking.deadline).await {
            ScrapeFailure::Refused
        } else {
            ScrapeFailure::Connection(obstacle.as_str().into())
        };
        Err(Failed { span: Span { not_before, not_after: clock::now() }, failure })
    }

    async fn delivered(&mut self, body: Body) -> Duration {
        let Body { reading, models } = body;
        let (span, interval, malformed) = (reading.span, reading.interval, reading.malformed);
        self.report.cost = self.report.cost.saturating_add(reading.cpu_cost);
        self.report.delivered = true;
        self.ranks = reading.ranks.len();
        self.label_models = models;
        // Who it is comes first: a reading of an engine that nobody knows would be lost.
        if clock::now() >= self.identify_at {
            self.identify().await;
        }
        self.tell_facts(span);
        (self.observe)(Observation::Reading { engine: self.id.clone(), reading: Box::new(reading) });
        match malformed {
            0 => self.fares(span, SourceHealth::Ok, format!("every {} ms", interval.as_millis())),
            lines => self.fares(span, SourceHealth::Degraded, format!("{lines} lines were not understood")),
        }
        interval
    }

    fn failed(&mut self, failed: Failed) -> Duration {
        let Failed { span, failure } = failed;
        let (health, detail) = self.verdict(&failure);
        let interval = match failure {
            ScrapeFailure::Refused => {
                self.identify_at = Mono(0);
                REFUSED_RETRY
            }
            _ => self.asking.pace.max_interval,
        };
        (self.observe)(Observation::ScrapeFailed { engine: self.id.clone(), span, failure });
        self.fares(span, health, detail);
        interval
    }

    fn verdict(&self, failure: &ScrapeFailure) -> (SourceHealth, String) {
        let failed = SourceHealth::Failed;
        if let Some(obstacle) = self.known.borrow().obstacle {
            return (SourceHealth::Absent, obstacle.as_str().into());
        }
        match failure {
            ScrapeFailure::Refused if !self.report.delivered => {
                (SourceHealth::Absent, "not listening yet".into())
            }
            ScrapeFailure::Refused => (failed, "nothing listens any more".into()),
            ScrapeFailure::TimedOut => {
                let seconds = self.asking.deadline.as_secs_f64();
                (SourceHealth::Degraded, format!("no answer within {seconds} s"))
            }
            ScrapeFailure::Status(status @ (401 | 403)) => {
                (failed, format!("HTTP {status}: set this engine's api_key"))
            }
            ScrapeFailure::Status(status) => (failed, format!("HTTP {status}")),
            ScrapeFailure::NoSeries => {
                (failed, "no vllm series: statistics are off, or this is another program".into())
            }
            ScrapeFailure::Malformed(why) | ScrapeFailure::Connection(why) => (failed, why.clone()),
        }
    }

    /// Asks who it is. What it does not answer stays as it was.
    async fn identify(&mut self) {
        let version = identity::version(&mut self.client, self.asking.deadline).await;
        let models = identity::models(&mut self.client, self.asking.deadline).await;
        let answered = version.is_ok() && models.is_ok();
        self.version = version.ok().flatten().or(self.version.take());
        self.listing = models.ok().flatten().or(self.listing.take());
        self.identify_at = clock::now() + if answered { IDENTIFY_EVERY } else { IDENTIFY_RETRY };
    }

    /// Says what is known if it is news.
    fn tell_facts(&mut self, span: Span) {
        let facts = self.facts(span);
        let news = self.told.as_ref().is_none_or(|told| EngineFacts { span, ..told.clone() } != facts);
        if news {
            (self.observe)(Observation::Engine(Box::new(facts.clone())));
            self.told = Some(facts);
        }
    }

    fn facts(&self, span: Span) -> EngineFacts {
        let known = self.known.borrow();
        let command = known.command.clone().unwrap_or_default();
        let told_ranks = command.data_parallel_size.unwrap_or(1);
        EngineFacts {
            engine: self.id.clone(),
            address: known.address.to_string().into(),
            obstacle: known.obstacle,
            span,
            version: self.version.as_ref().map(|version| format!("vllm {version}")),
            version_known: self.version.as_deref().is_some_and(version_known),
            models: self.models(&known, &command),
            adapters_at_runtime: command.adapters
                || self.listing.as_ref().is_some_and(|listing| listing.has_adapters),
            processes: known.processes.clone(),
            block_size: command.block_size,
            max_num_seqs: command.max_num_seqs,
            max_num_batched_tokens: command.max_num_batched_tokens,
            gpu_memory_utilization: command.gpu_memory_utilization,
            data_parallel_size: u32::try_from(self.ranks)
                .ok()
                .filter(|ranks| *ranks > 0)
                .unwrap_or(told_ranks),
            model_source: command.places.source(command.model.as_deref()).map(Arc::new),
            statistics_off: command.statistics_off,
            metrics_filtered: self.report.delivered.then(|| self.scraper.is_filtered()),
        }
    }

    /// The models as it lists them; else as configured, as its command line says, as its metrics are labelled.
    fn models(&self, known: &Known, command: &Command) -> Vec<ServedModel> {
        if let Some(listing) = &self.listing {
            return listing.models.clone();
        }
        let max_model_len = command.max_model_len.map(Tokens);
        let named = |name: &str| ServedModel { name: name.into(), max_model_len };
        if !known.models.is_empty() {
            return known.models.iter().map(|name| named(name)).collect();
        }
        let names = command.names();
        if !names.is_empty() {
            return names.into_iter().map(named).collect();
        }
        self.label_models.iter().map(|name| named(name)).collect()
    }

    fn fares(&mut self, span: Span, health: SourceHealth, detail: String) {
        let due = self.report.at.is_none_or(|at| span.not_after.since(at) >= REPORT_EVERY);
        if !due && health == self.report.health {
            return;
        }
        (self.report.at, self.report.health) = (Some(span.not_after), health);
        let source = format!("metrics/{}", self.id).into();
        let busy = Some(self.report.cost);
        (self.observe)(Observation::Source(SourceReport { source, span, health, detail, busy }));
    }
}
