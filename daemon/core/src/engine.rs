//! One engine: what is known of it, its pools, its ledger, and how a reading is set against the ledger.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use crate::{
    cost::Work,
    demand::Asked,
    figures::{Change, Figures},
    guard::SizeClass,
    host::{ProcessState, Scheduled},
    inquest::Inquest,
    ledger::{Ledger, Reservation},
    liveness::{Liveness, Pulse},
    observation::{EngineFacts, EngineReading, ProcessRole, RankReading, SumCount},
    parts::Parts,
    pool::Pool,
    precursor::Followed,
    report::Seen,
    request::{Outcome, ReservationId},
    retry::ComeBack,
    settings::{Mode, Settings},
    snapshot::PoolSnapshot,
    units::{Bytes, Mono, Tokens, real},
};

/// One engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) facts: EngineFacts,
    pub(crate) pools: Vec<Pool>,
    pub(crate) ledger: Ledger,
    pub(crate) live: Liveness,
    pub(crate) interval: Option<Duration>,
    pub(crate) cpu_cost: Option<Duration>,
    process_start: Option<f64>,
    /// Outputs whose length was told since its own history of them was last read.
    pub(crate) told: u64,
    /// What is asked of it.
    pub(crate) asked: Asked,
    /// When those whom it denied should come back.
    pub(crate) come_back: ComeBack,
    /// Since when the engine shows fewer requests than the ledger.
    pub(crate) excess_since: Option<Mono>,
    /// Devices its processes hold.
    pub(crate) devices: Vec<Arc<str>>,
    /// What its readings foretell, by rank.
    pub(crate) followed: Vec<Followed>,
    /// What is known of the end of its processes.
    pub(crate) inquest: Inquest,
    /// The event that told the freeze it is in.
    pub(crate) suspected_by: Option<u64>,
    /// The event that told its end.
    pub(crate) down_event: Option<u64>,
    /// When a failed allocation of it was last told, and by which event.
    pub(crate) allocation_told: Option<Mono>,
    pub(crate) allocation_event: Option<u64>,
    /// The event of which it was told that the allocation then succeeded.
    pub(crate) allocation_over: Option<u64>,
    /// Co-tenants' growth on each of them: grown by, free, when.
    growth: BTreeMap<Arc<str>, (Bytes, Bytes, Mono)>,
    pub(crate) parts: Parts,
}

/// What a reading did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Effect {
    pub(crate) restarted: bool,
    pub(crate) state_changed: bool,
}

impl Engine {
    pub(crate) fn new(facts: EngineFacts, now: Mono) -> Self {
        Self {
            facts,
            pools: Vec::new(),
            ledger: Ledger::default(),
            live: Liveness::new(now),
            interval: None,
            cpu_cost: None,
            process_start: None,
            told: 0,
            asked: Asked::default(),
            come_back: ComeBack::default(),
            excess_since: None,
            devices: Vec::new(),
            followed: Vec::new(),
            inquest: Inquest::default(),
            suspected_by: None,
            down_event: None,
            allocation_told: None,
            allocation_event: None,
            allocation_over: None,
            growth: BTreeMap::new(),
            parts: Parts::default(),
        }
    }

    /// The same with these of its learned parts; nothing was learned yet.
    pub(crate) fn with(self, parts: Parts) -> Self {
        Self { parts, ..self }
    }

    /// Tokens that it has written to its pools in all, by the last reading.
    pub(crate) fn written(&self) -> Tokens {
        let figures = self.pools.iter().filter_map(|pool| pool.figures.as_ref());
        figures.map(Figures::written).sum()
    }

    /// Whether its prefix cache may still hold what it had written when it had written `then` in all: it uses the blocks again
    /// that were given back first (vLLM 0.32, v1/core/block_pool.py), and has used each once when it has written as much as
    /// its pools hold.
    pub(crate) fn keeps(&self, then: Tokens) -> bool {
        let room =
            |pool: &Pool| pool.total.map_or(Tokens(u64::MAX), |total| total.to_tokens(pool.block_size));
        let room = self.pools.iter().map(room).fold(Tokens::ZERO, |sum, room| sum + room);
        !self.parts.written_over || self.written().saturating_sub(then) <= room
    }

    /// Whether it serves `model`; `None` when it may but does not say.
    pub(crate) fn serves(&self, model: &str) -> Option<bool> {
        if self.facts.models.iter().any(|served| &*served.name == model) {
            return Some(true);
        }
        if self.facts.models.is_empty() || self.facts.adapters_at_runtime { None } else { Some(false) }
    }

    /// Context window for `model`; an adapter has that of its base.
    pub(crate) fn window(&self, model: &str) -> Option<Tokens> {
        let named = self.facts.models.iter().find(|served| &*served.name == model);
        named.or_else(|| self.facts.models.first()).and_then(|served| served.max_model_len)
    }

    /// Whether its denials by figures bind: an unknown version, or a pool of unknown size, is only observed.
    pub(crate) fn mode(&self, settings: &Settings) -> Mode {
        let known = self.facts.version_known && self.pools.iter().all(|pool| pool.total.is_some());
        let set = settings.engine_modes.get(&*self.facts.engine).copied().unwrap_or(settings.mode);
        if known { set } else { Mode::Observe }
    }

    /// Takes in a scrape: sets it against the ledger and judges liveness.
    pub(crate) fn read(&mut self, now: Mono, reading: EngineReading, settings: &Settings) -> Effect {
        let EngineReading { span, ranks, asleep, process_start, interval, cpu_cost, .. } = reading;
        (self.interval, self.cpu_cost) = (Some(interval), Some(cpu_cost));
        let lives = self.process_start.zip(process_start);
        let mut restarted = lives.is_some_and(|(old, new)| (new - old).abs() > 1.0);
        self.process_start = process_start.or(self.process_start);
        let believed = self.believed(span.not_before);
        let mut changes: Vec<Change> = Vec::new();
        for raw in ranks {
            let index = self.pool_index(raw.rank);
            changes.resize_with(changes.len().max(index + 1), Change::default);
            if let (Some(pool), Some(change)) = (self.pools.get_mut(index), changes.get_mut(index)) {
                *change = pool.read(span, interval, raw);
                restarted |= change.restarted;
            }
        }
        if restarted {
            self.forget_all();
        } else {
            self.learn_errors(&believed);
            self.match_arrivals(&mut changes, span.not_before, span.not_after, settings);
        }
        self.ledger.forget_ended_by(span.not_after);
        self.drop_excess(span.not_before, settings);
        self.drop_vanished_orphans(span.not_before, settings);
        let lost = self.idle_rule(now, span.not_before, settings);
        self.count_bypass();
        self.show(span.not_before, &changes);
        let moved = changes.iter().any(|change| change.moved);
        let pulse = Pulse { moved, busy: self.busy(), asleep: asleep == Some(true), lost };
        Effect { restarted, state_changed: self.live.pulse(now, span.not_before, pulse) }
    }

    /// Makes the pools that a reading shows, with their sizes.
    pub(crate) fn know_pools(&mut self, ranks: &[RankReading]) {
        for raw in ranks {
            let index = self.pool_index(raw.rank);
            if let Some(pool) = self.pools.get_mut(index) {
                pool.learn_size(raw);
            }
        }
    }

    /// Index of `rank`'s pool, made when new. Readings have at most `MAX_RANKS` ranks.
    fn pool_index(&mut self, rank: u32) -> usize {
        if let Some(index) = self.pools.iter().position(|pool| pool.rank == rank) {
            return index;
        }
        self.pools.push(Pool::new(rank, &self.facts).with(self.parts));
        self.ledger.set_pools(self.pools.len());
        self.pools.len() - 1
    }

    /// The engine's process is gone: so is all it held.
    pub(crate) fn forget_all(&mut self) {
        self.ledger.clear();
        self.excess_since = None;
        self.come_back.expecting.clear();
        for pool in &mut self.pools {
            pool.forget_use();
        }
    }

    /// Other processes have taken its place: nothing that was read of it holds any more.
    pub(crate) fn begin_anew(&mut self) {
        self.forget_all();
        self.pools.clear();
        self.ledger = Ledger::default();
        self.process_start = None;
    }

    pub(crate) fn busy(&self) -> bool {
        self.pools.iter().filter_map(|pool| pool.figures.as_ref()).any(Figures::busy)
    }

    /// Takes a reservation out that the engine shows to have ended.
    pub(crate) fn release(&mut self, id: ReservationId, at: Mono) {
        self.live.probe_ended(id);
        if let Some(reservation) = self.ledger.remove(id) {
            self.gave_back(&reservation, at, Outcome::Ok);
        }
    }

    fn gave_back(&mut self, reservation: &Reservation, at: Mono, outcome: Outcome) {
        let Some(pool) = self.pools.get_mut(reservation.rank.unwrap_or(0)) else { return };
        pool.drain.release(at, reservation.held(at, pool.token_rate.get(), pool.block_size));
        pool.promised_drain.release(at, reservation.total);
        if outcome == Outcome::NotSent && reservation.seen_at.is_none() {
            pool.prefill.withdraw(reservation.work());
        }
        if !reservation.passed {
            pool.prefill.leave(reservation.work());
        }
        if outcome == Outcome::Ok
            && let Some(told) = reservation.told
        {
            pool.prefill.ended(told);
        }
    }

    /// Times to the first token as it measured them, all ranks together; `None`: it does not tell.
    pub(crate) fn ttft(&self) -> Option<SumCount> {
        let told = self.pools.iter().filter_map(|pool| pool.figures.as_ref()?.raw.ttft);
        told.reduce(|one, other| SumCount {
            sum: one.sum + other.sum,
            count: one.count.saturating_add(other.count),
        })
    }

    /// Requests there that are not ours; `None` before the first reading.
    pub(crate) fn bypass(&self) -> Option<u64> {
        self.in_engine()?;
        (!self.pools.is_empty()).then(|| self.pools.iter().map(|pool| pool.bypass).sum())
    }

    /// Notes how co-tenants of a device it holds have grown.
    pub(crate) fn note_growth(&mut self, device: &Arc<str>, now: Mono, grown: Bytes, free: Bytes) {
        self.growth.insert(Arc::clone(device), (grown, free, now));
        let devices = &self.devices;
        self.growth.retain(|device, _| devices.contains(device));
    }

    /// By how much co-tenants have grown where that endangers it: only growth does, never a low level alone.
    pub(crate) fn squeezed(&self, now: Mono, settings: &Settings) -> Option<Bytes> {
        let danger = |(grown, free, at): &&(Bytes, Bytes, Mono)| {
            *grown >= settings.co_tenant_growth
                && *free < settings.device_floor
                && now.since(*at) <= settings.device_stale
        };
        self.growth.values().filter(danger).map(|(grown, ..)| *grown).max()
    }

    /// A reservation ended by its gateway's word.
    pub(crate) fn end(&mut self, id: ReservationId, now: Mono, outcome: Outcome) -> Option<Reservation> {
        self.live.probe_ended(id);
        let reservation = self.ledger.end(id, now, outcome)?;
        self.gave_back(&reservation, now, outcome);
        Some(reservation)
    }

    /// A prompt joins the queue of `rank`: when it will be computed.
    pub(crate) fn begin_prefill(&mut self, rank: Option<usize>, now: Mono, work: Work) -> (Mono, Mono) {
        let Some(pool) = self.pools.get_mut(rank.unwrap_or(0)) else { return (now, now) };
        let wait = |work| pool.prefill.time_for(now, work).unwrap_or_default();
        let times = (now + wait(Work::default()), now + wait(work));
        pool.prefill.add(work);
        times
    }

    /// Time passes: overdue leases make orphans, and orphans are forgotten at their cap. Looks at up to `most`
    /// reservations behind `after`; returns where to go on.
    pub(crate) fn sweep(
        &mut self,
        now: Mono,
        after: Option<ReservationId>,
        most: usize,
        settings: &Settings,
    ) -> Option<ReservationId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.ledger.live.range((from, Bound::Unbounded)).take(most);
        let looked_at: Vec<(ReservationId, Mono, Option<Mono>)> =
            range.map(|(id, reservation)| (*id, reservation.lease_until, reservation.orphan_since)).collect();
        for (id, lease_until, orphan_since) in &looked_at {
            match orphan_since {
                Some(since) if now.since(*since) > settings.orphan_cap => {
                    self.end(*id, now, Outcome::Cancelled);
                }
                None if now > *lease_until => self.ledger.make_orphan(*id, now),
                _ => {}
            }
        }
        if looked_at.len() < most { None } else { looked_at.last().map(|(id, ..)| *id) }
    }

    /// Notes which of its own processes are stopped, or in a call that cannot be interrupted.
    pub(crate) fn note_states(&mut self, states: &[ProcessState]) {
        let own = self.facts.processes.iter().filter(|process| process.role != ProcessRole::Helper);
        let odd = own.filter_map(|process| {
            let state = states
                .iter()
                .find(|state| state.pid == process.pid && state.start_ticks == process.start_ticks)?;
            let (role, pid) = (process.role.as_str(), process.pid);
            match state.state {
                Scheduled::Stopped => Some(format!("its {role} (pid {pid}) is stopped (T)")),
                Scheduled::Uninterruptible => {
                    Some(format!("its {role} (pid {pid}) is in a call that cannot be interrupted (D)"))
                }
                Scheduled::Normal | Scheduled::Ending => None,
            }
        });
        self.live.evidence = odd.collect::<Vec<_>>().join(", ");
    }

    /// Size classes of the prompts it was promised, one bit each.
    pub(crate) fn sizes_in_flight(&self) -> u64 {
        let live = self.ledger.live.values();
        live.fold(0, |classes, reservation| classes | SizeClass::of(reservation.prompts.longest).bit())
    }

    /// Its own history of output lengths, over all ranks.
    pub(crate) fn lengths(&self) -> Vec<(f64, u64)> {
        let mut all: Vec<(f64, u64)> = Vec::new();
        for figures in self.pools.iter().filter_map(|pool| pool.figures.as_ref()) {
            let buckets = &figures.raw.generation_lengths;
            all.resize_with(all.len().max(buckets.len()), Default::default);
            for (sum, (edge, count)) in all.iter_mut().zip(buckets) {
                *sum = (*edge, sum.1.saturating_add(*count));
            }
        }
        all
    }

    /// Share of its requests that were cut off at a limit, 0 to 1; 0 where it does not tell.
    pub(crate) fn cut_share(&self) -> f64 {
        let told = self.pools.iter().filter_map(|pool| {
            let raw = &pool.figures.as_ref()?.raw;
            Some((real(raw.cut?), real(raw.finished?)))
        });
        let (cut, finished) = told.fold((0.0, 0.0), |sums, told| (sums.0 + told.0, sums.1 + told.1));
        (cut / finished.max(1.0)).clamp(0.0, 1.0)
    }

    /// What its last reading says of how it fares; `None` before the first.
    pub(crate) fn seen(&self) -> Option<Seen> {
        let figures = || self.pools.iter().filter_map(|pool| pool.figures.as_ref());
        let at = figures().map(|figures| figures.span.not_before).max()?;
        let preemptions = figures().filter_map(|figures| figures.raw.preemptions).reduce(u64::saturating_add);
        Some(Seen { at, preemptions, queued: figures().any(|figures| figures.raw.waiting > Some(0)) })
    }

    /// Name under which its output lengths are learned: its first model, for adapters share it.
    pub(crate) fn model(&self) -> Arc<str> {
        self.facts
            .models
            .first()
            .map_or_else(|| Arc::clone(&self.facts.engine), |model| Arc::clone(&model.name))
    }

    /// Its pools for those who look.
    pub(crate) fn pool_snapshots(&self, now: Mono, settings: &Settings) -> Vec<PoolSnapshot> {
        let held = self.held_now(now);
        let pools = self.pools.iter().enumerate().zip(held);
        pools
            .map(|((index, pool), held)| {
                let terms = pool.terms(now, self.ledger.sums(index), None, settings);
                pool.snapshot(now, &terms, &held)
            })
            .collect()
    }
}
