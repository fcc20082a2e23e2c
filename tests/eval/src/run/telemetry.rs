//! Scrapes on their way to the rule, and looks at what it makes of them.

use std::time::Duration;

use gpuadmit_core::{observation::EngineReading, units::Span};

use super::{JITTER, LAG_SPELL_S, LOOK_S, Next, Run, SCRAPE_MS, SLOW_SCRAPE_MS, Sampled, Unseen};
use crate::{
    engine::Step,
    estimation::{Look, raw_gauge},
    policy::{Stream, mono},
    time::{MILLISECOND, Nanos, nanos, seconds},
};

impl Run {
    pub(super) fn scrape(&mut self) {
        let slow = (SLOW_SCRAPE_MS, self.telemetry.slowest_scrape as f64 / MILLISECOND as f64);
        let range = if self.scraping.chance(self.telemetry.slow_scrapes) { slow } else { SCRAPE_MS };
        let takes = nanos(self.scraping.between(range.0, range.1) / 1e3);
        let sample = self.at + nanos(seconds(takes) * self.scraping.between(0.2, 0.9));
        let deliver = self.at + takes;
        self.plan(sample, Next::Sample { sent: self.at, deliver });
        let pause = seconds(self.interval) * self.scraping.between(1.0 - JITTER, 1.0 + JITTER);
        self.plan((self.at + nanos(pause)).max(deliver + MILLISECOND), Next::Scrape);
    }

    pub(super) fn deliver(&mut self, sent: Nanos, Sampled { reading, life, idle }: Sampled) {
        self.idle_readings = if idle { self.idle_readings + 1 } else { 0 };
        self.scraped_at = sent;
        self.gauge = raw_gauge(&reading, &self.world.setup);
        let reading = EngineReading {
            span: Span { not_before: mono(sent), not_after: mono(self.at) },
            ranks: vec![reading],
            asleep: Some(false),
            process_start: Some(f64::from(life)),
            interval: Duration::from_nanos(self.interval),
            cpu_cost: Duration::from_millis(1),
            malformed: 0,
        };
        self.policy.scraped(self.at, &reading);
    }

    /// A step that began at `began` ended now: the API server counts it, at once or when it no longer lags.
    pub(super) fn counted(&mut self, began: Nanos, step: Step) {
        let shown = self.at + self.lag();
        self.unseen.push_back(Unseen { shown, began, ended: self.at, step });
        self.show();
    }

    /// Shows what the API server has counted by now.
    pub(super) fn show(&mut self) {
        let at = self.at;
        while let Some(unseen) = self.unseen.pop_front_if(|unseen| unseen.shown <= at) {
            self.exposition.stepped(unseen.began, unseen.ended, &unseen.step);
        }
    }

    /// By how much the API server lags now.
    fn lag(&mut self) -> Nanos {
        if self.telemetry.lag == 0 {
            return 0;
        }
        while self.lags.1 <= self.at {
            self.lags = (!self.lags.0, self.lags.1 + nanos(self.lagging.exponential(LAG_SPELL_S)));
        }
        if self.lags.0 { self.telemetry.lag } else { 0 }
    }

    pub(super) fn look(&mut self) {
        let ledger: u64 = {
            let held = |stream: &Stream| self.world.blocks(stream.prompt + stream.generated);
            self.streams.values().map(held).sum()
        };
        if let Some(estimate) = self.policy.estimate(self.at) {
            self.looks.push(Look {
                at: self.at,
                scraped_at: self.scraped_at,
                truth: self.world.used.blocks,
                estimate,
                gauge: self.gauge,
                ledger,
            });
        }
        let pause = nanos(self.looking.exponential(LOOK_S));
        self.plan(self.at + pause.max(MILLISECOND), Next::Look);
    }
}
