//! One engine's `/metrics`, in the cheapest form that works.
//!
//! The filtered form (`/metrics/?name[]=…`) costs the engine a fifth of the full one, but with several API servers or
//! data parallelism it answers 200 with an empty body, and the Rust front end answers 404. So it is believed only when
//! it shows series; otherwise the full form serves, and the filtered one is tried again rarely.

use std::time::Duration;

use gpuadmit_core::{
    observation::{RankReading, ScrapeFailure},
    units::{Mono, Span},
};

use super::{
    cost::{self, Pace},
    filter::{QUICK, SLOW, filtered_path},
    http::Client,
    reading::{self, Body, MAX_BODY_BYTES},
};
use crate::clock;

/// Time until the filtered form is tried again where it did not work.
const RECHECK: Duration = Duration::from_mins(10);
/// Time between two filtered scrapes that ask for histograms as well.
const SLOW_EVERY: Duration = Duration::from_secs(5);
/// Path of the full form.
const FULL_PATH: &str = "/metrics";

/// A scrape that delivered nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed {
    /// From the attempt to its failure.
    pub span: Span,
    /// How.
    pub failure: ScrapeFailure,
}

/// Scrapes one engine.
pub struct Scraper {
    pace: Pace,
    deadline: Duration,
    quick_path: String,
    slow_path: String,
    buffer: Vec<u8>,
    /// Until then, the full form.
    full_until: Option<Mono>,
    /// Histograms of the last reading that had them.
    slow: Option<Slow>,
}

/// What is read rarely: it changes slowly, and a count that is seconds old is still a count.
struct Slow {
    read_at: Mono,
    process_start: Option<f64>,
    ranks: Vec<RankReading>,
}

impl Scraper {
    /// A scraper that begins with the filtered form. A scrape that takes longer than `deadline` has timed out.
    #[must_use]
    pub fn new(pace: Pace, deadline: Duration) -> Self {
        let quick_path = filtered_path(QUICK);
        let slow_path = filtered_path(QUICK.iter().chain(SLOW));
        Self { pace, deadline, quick_path, slow_path, buffer: vec![], full_until: None, slow: None }
    }

    /// Scrapes once.
    ///
    /// # Errors
    /// [`Failed`]; a slow scrape is [`ScrapeFailure::TimedOut`] and says nothing of the engine.
    pub async fn scrape(&mut self, client: &mut Client) -> Result<Body, Failed> {
        let started = clock::now();
        let scraped = self.cheapest(client, started).await;
        if scraped == Err(ScrapeFailure::Refused) {
            // Another life of the engine may know another form.
            (self.full_until, self.slow) = (None, None);
        }
        scraped.map_err(|failure| {
            let span = Span { not_before: started, not_after: clock::now() };
            Failed { span, failure }
        })
    }

    /// Whether the filtered form serves.
    pub(super) const fn is_filtered(&self) -> bool {
        self.full_until.is_none()
    }

    async fn cheapest(&mut self, client: &mut Client, now: Mono) -> Result<Body, ScrapeFailure> {
        if self.full_until.is_none_or(|until| now >= until) {
            match self.filtered(client, now).await {
                Err(ScrapeFailure::NoSeries | ScrapeFailure::Status(404) | ScrapeFailure::Malformed(_)) => {}
                done => {
                    self.full_until = None;
                    return done;
                }
            }
            self.full_until = Some(now + RECHECK);
        }
        let span = self.get(client, FULL_PATH).await?;
        let mut body = reading::read(&self.buffer)?;
        self.price(&mut body, span, cost::full(self.buffer.len()));
        Ok(body)
    }

    async fn filtered(&mut self, client: &mut Client, now: Mono) -> Result<Body, ScrapeFailure> {
        let recent = |slow: &Slow| now.since(slow.read_at) < SLOW_EVERY;
        let quick = self.slow.as_ref().is_some_and(recent);
        let path = if quick { self.quick_path.clone() } else { self.slow_path.clone() };
        let span = self.get(client, &path).await?;
        let mut body = reading::read(&self.buffer)?;
        if !quick || !self.carry_slow(&mut body) {
            let (ranks, process_start) = (body.reading.ranks.clone(), body.reading.process_start);
            self.slow = (!quick).then_some(Slow { read_at: now, process_start, ranks });
        }
        self.price(&mut body, span, if quick { cost::FILTERED } else { cost::FILTERED_WITH_HISTOGRAMS });
        Ok(body)
    }

    /// Gets a body into the buffer; anything but 200 is a failure.
    async fn get(&mut self, client: &mut Client, path: &str) -> Result<Span, ScrapeFailure> {
        let answer = client.get(path, &mut self.buffer, MAX_BODY_BYTES, self.deadline).await?;
        match answer.status {
            200 => Ok(answer.span),
            status => Err(ScrapeFailure::Status(status)),
        }
    }

    fn price(&self, body: &mut Body, span: Span, cpu_cost: Duration) {
        body.reading.span = span;
        body.reading.cpu_cost = cpu_cost;
        body.reading.interval = self.pace.interval(cpu_cost);
    }

    /// Fills a quick reading's histograms in from the last that had them; false when they are of another life.
    fn carry_slow(&self, body: &mut Body) -> bool {
        let Some(slow) = &self.slow else { return false };
        if slow.process_start != body.reading.process_start {
            return false;
        }
        for rank in &mut body.reading.ranks {
            let Some(known) = slow.ranks.iter().find(|known| known.rank == rank.rank) else { continue };
            (rank.ttft, rank.inter_token) = (known.ttft, known.inter_token);
            (rank.queue_time, rank.prefill_time) = (known.queue_time, known.prefill_time);
            rank.generation_lengths.clone_from(&known.generation_lengths);
        }
        true
    }
}
