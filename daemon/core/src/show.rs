//! The node for those who look.

use std::sync::Arc;

use crate::{
    counts::Answered,
    decision,
    engine::Engine,
    node::Node,
    request::Class,
    snapshot::{
        DeviceSnapshot, EngineSettings, EngineSnapshot, Headrooms, Room, Snapshot, SourceSnapshot, Touched,
    },
    units::{Mono, Tokens},
};

/// Newest events in a snapshot.
const EVENTS_SHOWN: u64 = 256;

impl Node {
    /// The node as it stands.
    pub fn snapshot(&mut self, now: Mono) -> Snapshot {
        self.generation = self.generation.saturating_add(1);
        let mut engines: Vec<_> = self.engines.iter().map(|engine| self.show_engine(engine, now)).collect();
        engines.sort_by(|one, other| one.engine.cmp(&other.engine));
        let newest = self.history.newest();
        let (events, _) = self.history.after(newest.saturating_sub(EVENTS_SHOWN), usize::MAX);
        Snapshot {
            at: now,
            generation: self.generation,
            epoch: self.epoch,
            engines,
            devices: self.show_devices(now),
            sources: self.show_sources(now),
            events,
            warnings: self.alarms.raised().collect(),
            decisions: self.counts.clone(),
            reservations: u64::try_from(self.reservations()).unwrap_or(u64::MAX),
            reservations_limit: u64::try_from(self.settings.reservations).unwrap_or(u64::MAX),
        }
    }

    fn show_engine(&self, engine: &Engine, now: Mono) -> EngineSnapshot {
        let rates = engine.pools.iter().filter_map(|pool| pool.token_rate.get());
        let share = engine
            .cpu_cost
            .zip(engine.interval)
            .map(|(cost, interval)| cost.as_secs_f64() / interval.as_secs_f64().max(f64::MIN_POSITIVE));
        let headrooms = self.headrooms(engine, now);
        let (pressed, calm) = self.reports.fared(&engine.facts.engine);
        let windows = engine.facts.models.iter().filter_map(|model| model.max_model_len);
        EngineSnapshot {
            engine: Arc::clone(&engine.facts.engine),
            address: Arc::clone(&engine.facts.address),
            version: engine.facts.version.clone(),
            models: engine.facts.models.iter().map(|model| Arc::clone(&model.name)).collect(),
            state: engine.live.state,
            state_reason: engine.live.why.clone(),
            state_since: engine.live.since,
            mode: engine.mode(&self.settings),
            headroom: headrooms.standard,
            headrooms,
            demand: engine.demand(now, &self.settings),
            rejections: engine.asked.rejections(now),
            pools: engine.pool_snapshots(now, &self.settings),
            max_model_len: windows.max().filter(|window| *window > Tokens::ZERO),
            devices: engine.devices.clone(),
            processes: engine.facts.processes.clone(),
            reservations: u64::try_from(engine.ledger.live.len()).unwrap_or(u64::MAX),
            orphans: engine.ledger.orphans,
            token_rate: rates.reduce(f64::min),
            scrape_interval: engine.interval,
            scrape_cpu_share: share.filter(|share| share.is_finite()),
            bypass_requests: engine.bypass(),
            guards: self.guard.of(now, &engine.facts.engine),
            queued: u64::try_from(self.queue.at(&engine.facts.engine).0).unwrap_or(u64::MAX),
            answered: Answered { admitted: engine.asked.admitted, denied: engine.asked.denied },
            ttft_predicted: engine.asked.ttft,
            ttft_measured: engine.ttft(),
            pressed,
            calm,
            model_source: engine.facts.model_source.clone(),
            settings: EngineSettings {
                version_known: engine.facts.version_known,
                gpu_memory_utilization: engine.facts.gpu_memory_utilization,
                max_num_seqs: engine.facts.max_num_seqs,
                max_num_batched_tokens: engine.facts.max_num_batched_tokens,
                statistics_off: engine.facts.statistics_off,
                metrics_filtered: engine.facts.metrics_filtered,
                obstacle: engine.facts.obstacle,
            },
        }
    }

    fn headrooms(&self, engine: &Engine, now: Mono) -> Headrooms {
        let classes = [Class::Interactive, Class::Standard, Class::Batch];
        let [interactive, standard, batch] = decision::headrooms(engine, now, &self.settings, classes);
        Headrooms { interactive, standard, batch }
    }

    /// What the engine at `index` can take now; `None`: there is none.
    #[must_use]
    pub fn room(&self, now: Mono, index: usize) -> Option<Room<'_>> {
        let engine = self.engines.get(index)?;
        Some(Room {
            engine: &engine.facts.engine,
            state: engine.live.state,
            headrooms: self.headrooms(engine, now),
            reservations: u64::try_from(engine.ledger.live.len()).unwrap_or(u64::MAX),
            admitted: engine.asked.admitted,
            denied: engine.asked.denied,
            demand: engine.demand(now, &self.settings).ratio,
        })
    }

    /// Engines that [`Self::room`] knows.
    #[must_use]
    pub fn rooms(&self) -> usize {
        self.engines.len()
    }

    /// Which engines' room the calls since the last time may have changed.
    pub fn take_touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }

    pub(crate) fn touch(&mut self, index: usize) {
        self.touched = match self.touched {
            Touched::None => Touched::One(index),
            Touched::One(one) if one == index => Touched::One(one),
            Touched::One(_) | Touched::All => Touched::All,
        };
    }

    fn show_devices(&self, now: Mono) -> Vec<DeviceSnapshot> {
        let shown = self.devices.iter().filter_map(|(uuid, device)| {
            let on_it = self.engines.iter().filter(|engine| engine.devices.contains(uuid));
            let engines = on_it.map(|engine| Arc::clone(&engine.facts.engine)).collect();
            device.snapshot(now, &self.settings, engines, |pid| self.engine_pids.contains(&pid))
        });
        let mut devices: Vec<_> = shown.collect();
        devices.sort_by(|one, other| (one.index, &one.uuid).cmp(&(other.index, &other.uuid)));
        devices
    }

    fn show_sources(&self, now: Mono) -> Vec<SourceSnapshot> {
        let shown = self.sources.values().map(|report| SourceSnapshot {
            source: Arc::clone(&report.source),
            health: report.health,
            detail: report.detail.clone(),
            age: now.since(report.span.not_after),
            busy: report.busy,
        });
        shown.collect()
    }
}
