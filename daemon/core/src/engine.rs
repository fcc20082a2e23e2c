//! One engine: what is known of it, its pools, its ledger, and how a reading is set against the ledger.

use std::{cmp::Reverse, collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use crate::{
    book::Book,
    figures::{Change, Figures},
    forecast::Footprint,
    ledger::{Ledger, Reservation},
    liveness::{Liveness, Pulse},
    observation::{EngineFacts, EngineReading},
    pool::{Held, Pool},
    request::{Outcome, ReservationId},
    settings::{Mode, Settings},
    snapshot::PoolSnapshot,
    units::{Blocks, Bytes, Mono, Tokens, real},
};

/// An engine that shows fewer requests than we believe it has must do so for this long before it is believed: a
/// completion may be on its way.
const EXCESS_PATIENCE: Duration = Duration::from_secs(1);

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
    /// Since when the engine shows fewer requests than the ledger.
    excess_since: Option<Mono>,
    /// Devices its processes hold.
    pub(crate) devices: Vec<Arc<str>>,
    /// Co-tenants' growth on each of them: grown by, free, when.
    growth: BTreeMap<Arc<str>, (Bytes, Bytes, Mono)>,
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
            excess_since: None,
            devices: Vec::new(),
            growth: BTreeMap::new(),
        }
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
        let expected = self.expected(span.not_before);
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
            self.learn_errors(&expected);
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

    /// What each pool's next reading is expected to show, and the age of the one that rests on.
    fn expected(&self, at: Mono) -> Vec<Option<(f64, Duration)>> {
        let held = self.held(at);
        let pools = self.pools.iter().zip(&held);
        pools.map(|(pool, held)| pool.corrected(held.all).zip(pool.age(at))).collect()
    }

    /// Learns from how far the readings are from what was expected. An idle pool teaches nothing.
    fn learn_errors(&mut self, expected: &[Option<(f64, Duration)>]) {
        for (pool, expected) in self.pools.iter_mut().zip(expected) {
            let Some(figures) = pool.figures.as_ref().filter(|figures| !figures.idle()) else { continue };
            if let (Some(used), Some((expected, age))) = (figures.used, expected) {
                pool.band.learn(real(used.0) - expected, *age);
            }
        }
    }

    /// What the reservations of each pool hold at `at`.
    fn held(&self, at: Mono) -> Vec<Held> {
        let mut sums = vec![Held::default(); self.pools.len()];
        for reservation in self.ledger.live.values() {
            let index = reservation.rank.unwrap_or(0);
            let (Some(pool), Some(sum)) = (self.pools.get(index), sums.get_mut(index)) else { continue };
            let holds = reservation.held(at, pool.token_rate.get(), pool.block_size);
            sum.all += holds;
            if reservation.seen_at.is_none() {
                sum.unseen += holds;
                sum.unseen_sequences = sum.unseen_sequences.saturating_add(u64::from(reservation.n));
            }
        }
        for ended in &self.ledger.ended {
            if let Some(sum) = sums.get_mut(ended.rank.unwrap_or(0)) {
                sum.unseen += ended.unshown;
            }
        }
        sums
    }

    /// Index of `rank`'s pool, made when new. Readings have at most `MAX_RANKS` ranks.
    fn pool_index(&mut self, rank: u32) -> usize {
        if let Some(index) = self.pools.iter().position(|pool| pool.rank == rank) {
            return index;
        }
        self.pools.push(Pool::new(rank, &self.facts));
        self.ledger.set_pools(self.pools.len());
        self.pools.len() - 1
    }

    /// The engine's process is gone: so is all it held.
    pub(crate) fn forget_all(&mut self) {
        self.ledger.clear();
        self.excess_since = None;
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

    fn busy(&self) -> bool {
        self.pools.iter().filter_map(|pool| pool.figures.as_ref()).any(Figures::busy)
    }

    /// Marks as seen those of ours that the reading shows for the first time. The engine exports counts, never
    /// requests: arrivals are given to those that ended unseen (they certainly arrived), then to the unseen in the
    /// order of admission. What arrived beyond them did not come through us.
    fn match_arrivals(
        &mut self,
        changes: &mut [Change],
        not_before: Mono,
        not_after: Mono,
        settings: &Settings,
    ) {
        for ended in self.ledger.ended.iter().filter(|ended| ended.at <= not_after) {
            match (ended.seen, ended.finished) {
                // It came and went between two readings.
                (false, true) => {
                    take_arrivals(changes, ended.rank, ended.sequences);
                }
                // It left the engine without being counted as finished: an arrival that took its place was not counted.
                (true, false) => add_arrivals(changes, ended.rank, ended.sequences),
                _ => {}
            }
        }
        let late = not_before.before(settings.delivery_grace);
        let unexplained = self.unexplained();
        let mut spare = unexplained;
        for reservation in self.ledger.live.values_mut() {
            if reservation.seen_at.is_some() || reservation.admitted_at > not_after {
                continue;
            }
            let sequences = u64::from(reservation.n);
            let taken = take_arrivals(changes, reservation.rank, sequences);
            // An arrival can be missed (lost counter, one taken for bypass traffic): what the engine holds beyond
            // those seen is then ours once delivery is overdue.
            let overdue = reservation.admitted_at <= late && spare >= sequences;
            if let Some(rank) = taken.or_else(|| overdue.then(|| reservation.rank.unwrap_or(0))) {
                reservation.rank = Some(rank);
                reservation.seen_at = Some(not_before.max(reservation.admitted_at));
                spare = spare.saturating_sub(sequences);
            }
        }
    }

    /// Requests in the engine beyond those of ours already seen there.
    fn unexplained(&self) -> u64 {
        let in_engine: u64 = self.in_engine().unwrap_or(0);
        in_engine.saturating_sub(self.seen_sequences())
    }

    fn in_engine(&self) -> Option<u64> {
        let counts = self.pools.iter().map(|pool| pool.figures.as_ref()?.in_engine());
        counts.sum()
    }

    fn seen_sequences(&self) -> u64 {
        let seen = self.ledger.live.values().filter(|reservation| reservation.seen_at.is_some());
        seen.map(|reservation| u64::from(reservation.n)).sum()
    }

    /// Where the engine holds fewer requests than we have seen arrive, some have ended without our being told: orphans,
    /// and once the shortfall has lasted, others. Which ones is not known, so the smallest go: what is left is then at
    /// least what is there.
    fn drop_excess(&mut self, not_before: Mono, settings: &Settings) {
        let Some(in_engine) = self.in_engine() else { return };
        let mut excess = self.seen_sequences().saturating_sub(in_engine);
        if excess == 0 {
            self.excess_since = None;
            return;
        }
        let since = *self.excess_since.get_or_insert(not_before);
        let lasting = not_before.since(since) >= EXCESS_PATIENCE;
        let seen = self.ledger.live.iter().filter(|(_, one)| one.seen_at.is_some());
        let mut gone: Vec<(bool, Blocks, ReservationId)> = seen
            .filter(|(_, one)| lasting || one.orphan_since.is_some())
            .map(|(id, one)| (one.orphan_since.is_none(), one.total, *id))
            .collect();
        gone.sort_unstable();
        // One that may still be on its way was taken for another that arrived: wait until that is clear.
        let late = not_before.before(settings.delivery_grace);
        for (_, _, id) in gone {
            let Some(one) = self.ledger.live.get(&id).filter(|one| one.admitted_at <= late) else { return };
            let sequences = u64::from(one.n);
            if sequences <= excess {
                excess -= sequences;
                self.release(id, not_before);
            }
        }
    }

    /// An orphan that should long have arrived, and of which the engine shows nothing, is not there.
    fn drop_vanished_orphans(&mut self, not_before: Mono, settings: &Settings) {
        if self.ledger.orphans == 0 || self.in_engine().is_none() || self.unexplained() > 0 {
            return;
        }
        let late = not_before.before(settings.delivery_grace);
        let vanished = |reservation: &Reservation| {
            reservation.orphan_since.is_some()
                && reservation.seen_at.is_none()
                && reservation.admitted_at <= late
        };
        let live = self.ledger.live.iter();
        let gone: Vec<_> = live.filter(|(_, one)| vanished(one)).map(|(id, _)| *id).collect();
        for id in gone {
            self.release(id, not_before);
        }
    }

    /// A reading with nothing running and nothing waiting empties the ledger of all it could have shown. Returns
    /// whether one was among them that had never been seen though its gateway lives.
    fn idle_rule(&mut self, now: Mono, not_before: Mono, settings: &Settings) -> bool {
        if self.in_engine() != Some(0) {
            return false;
        }
        let late = not_before.before(settings.delivery_grace);
        let could_show =
            |reservation: &Reservation| reservation.seen_at.is_some() || reservation.admitted_at <= late;
        let live = &self.ledger.live;
        let gone: Vec<(ReservationId, bool)> = live
            .iter()
            .filter(|(_, reservation)| could_show(reservation))
            .map(|(id, one)| (*id, one.seen_at.is_none() && one.orphan_since.is_none()))
            .collect();
        let lost = gone.iter().any(|(_, lost)| *lost);
        for (id, _) in gone {
            self.release(id, now);
        }
        lost
    }

    /// Takes a reservation out that the engine shows to have ended.
    fn release(&mut self, id: ReservationId, at: Mono) {
        self.live.probe_ended(id);
        if let Some(reservation) = self.ledger.remove(id) {
            self.gave_back(&reservation, at);
        }
    }

    fn gave_back(&mut self, reservation: &Reservation, at: Mono) {
        let Some(pool) = self.pools.get_mut(reservation.rank.unwrap_or(0)) else { return };
        pool.drain.release(at, reservation.held(at, pool.token_rate.get(), pool.block_size));
        pool.promised_drain.release(at, reservation.total);
        if at < reservation.prefill.1 && reservation.generated == Tokens::ZERO {
            pool.prefill.withdraw(reservation.prompt);
        }
    }

    /// Works out what the reading shows of each reservation: nothing of those that wait in the engine (the youngest,
    /// for it takes them in order), part of those whose prompt is being computed, else what it held then.
    fn show(&mut self, at: Mono, changes: &[Change]) {
        let mut left = self.follow_prefill(at, changes);
        let mut shown = vec![Blocks::ZERO; self.pools.len()];
        for reservation in self.ledger.live.values_mut().rev() {
            let index = reservation.rank.unwrap_or(0);
            let (Some(pool), Some(left)) = (self.pools.get(index), left.get_mut(index)) else { continue };
            reservation.place_prefill(at, left, pool.prefill.rate());
            if reservation.seen_at.is_none() {
                continue;
            }
            if left.waiting > 0 {
                left.waiting = left.waiting.saturating_sub(u64::from(reservation.n));
                (reservation.shown, reservation.sure) = (Blocks::ZERO, Blocks::ZERO);
                continue;
            }
            let rate = pool.token_rate.get();
            reservation.shown = reservation.held(at, rate, pool.block_size);
            reservation.sure = reservation.surely_held(at, rate, pool.block_size);
            reservation.total = reservation.total.max(reservation.shown);
            if let Some(sum) = shown.get_mut(index) {
                *sum += reservation.shown;
            }
        }
        self.ledger.recount(self.pools.len());
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let ended = self.ledger.sums.get(index).map_or(Blocks::ZERO, |sums| sums.ended);
            let shown = shown.get(index).copied().unwrap_or_default() + ended;
            pool.explain(shown, changes.get(index).map_or(Duration::ZERO, |change| change.elapsed));
        }
    }

    /// Follows each pool's queue of prompts; returns what of it is left to be found among our reservations.
    fn follow_prefill(&mut self, at: Mono, changes: &[Change]) -> Vec<Left> {
        let mut unseen = vec![Tokens::ZERO; self.pools.len()];
        for reservation in self.ledger.live.values().filter(|one| one.seen_at.is_none()) {
            if let Some(sum) = unseen.get_mut(reservation.rank.unwrap_or(0)) {
                *sum += reservation.prompt;
            }
        }
        let mut left = Vec::with_capacity(self.pools.len());
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let change = changes.get(index).copied().unwrap_or_default();
            let unseen = unseen.get(index).copied().unwrap_or_default();
            // What is left of the arrivals after ours were taken off came in by other ways.
            pool.follow_prefill(&change, change.arrivals.unwrap_or(0), unseen);
            let waiting = pool.figures.as_ref().and_then(|figures| figures.raw.waiting).unwrap_or(0);
            left.push(Left { waiting, prefill: pool.prefill.queued(at) });
        }
        left
    }

    fn count_bypass(&mut self) {
        let mut ours = vec![0_u64; self.pools.len()];
        for one in self.ledger.live.values().filter(|one| one.seen_at.is_some()) {
            if let Some(ours) = ours.get_mut(one.rank.unwrap_or(0)) {
                *ours = ours.saturating_add(u64::from(one.n));
            }
        }
        for (pool, ours) in self.pools.iter_mut().zip(ours) {
            let there = pool.figures.as_ref().and_then(Figures::in_engine).unwrap_or(0);
            pool.bypass = there.saturating_sub(ours);
        }
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
        self.gave_back(&reservation, now);
        Some(reservation)
    }

    /// A prompt joins the queue of `rank`: when it will be computed.
    pub(crate) fn begin_prefill(&mut self, rank: Option<usize>, now: Mono, prompt: Tokens) -> (Mono, Mono) {
        let Some(pool) = self.pools.get_mut(rank.unwrap_or(0)) else { return (now, now) };
        let wait = |prompt| pool.prefill.time_for(now, prompt).unwrap_or_default();
        let times = (now + wait(Tokens::ZERO), now + wait(prompt));
        pool.prefill.add(prompt);
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

    /// Foresees anew up to `most` reservations behind `after`; returns where to go on.
    pub(crate) fn foresee(
        &mut self,
        now: Mono,
        after: Option<ReservationId>,
        most: usize,
        book: &Book,
    ) -> Option<ReservationId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let model = self.model();
        let range = self.ledger.live.range((from, Bound::Unbounded)).take(most);
        let foreseen: Vec<(ReservationId, Footprint)> = range
            .filter_map(|(id, one)| {
                let pool = self.pools.get(one.rank.unwrap_or(0))?;
                let outlook = one.outlook(now, pool.token_rate.get());
                Some((*id, Footprint::of(&outlook, book.survival(&model, one.class), pool.block_size)))
            })
            .collect();
        let last = foreseen.last().map(|(id, _)| *id).filter(|_| foreseen.len() >= most);
        for (id, footprint) in foreseen {
            self.ledger.set_footprint(id, footprint);
        }
        last
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

    /// Name under which its output lengths are learned: its first model, for adapters share it.
    pub(crate) fn model(&self) -> Arc<str> {
        self.facts
            .models
            .first()
            .map_or_else(|| Arc::clone(&self.facts.engine), |model| Arc::clone(&model.name))
    }

    /// Its pools for those who look.
    pub(crate) fn pool_snapshots(&self, now: Mono, settings: &Settings) -> Vec<PoolSnapshot> {
        let held = self.held(now);
        let pools = self.pools.iter().enumerate().zip(held);
        pools
            .map(|((index, pool), held)| {
                let terms = pool.terms(now, self.ledger.sums(index), None, settings);
                pool.snapshot(now, &terms, &held)
            })
            .collect()
    }
}

/// What of a pool's last reading is still to be found among our reservations, from the youngest on.
struct Left {
    /// Sequences that wait in the engine.
    waiting: u64,
    /// Prompt tokens still to be computed.
    prefill: Tokens,
}

impl Reservation {
    /// Places the time in which its prompt is computed, by its part in what is left to compute: the youngest come last.
    fn place_prefill(&mut self, at: Mono, left: &mut Left, rate: Option<f64>) {
        let Some(rate) = rate.filter(|rate| *rate > 0.0) else { return };
        let time =
            |tokens: Tokens| Duration::try_from_secs_f64(real(tokens.0) / rate).unwrap_or(Duration::ZERO);
        if left.prefill == Tokens::ZERO {
            let (from, to) = self.prefill;
            self.prefill = (from.min(at), to.min(at));
            return;
        }
        let behind = left.prefill;
        left.prefill = left.prefill.saturating_sub(self.prompt);
        let done = self.prompt.saturating_sub(behind);
        self.prefill = (at.before(time(done)) + time(left.prefill), at + time(behind));
    }
}

/// Takes up to `wanted` arrivals off `rank`'s count, or off the rank with most of them; returns the rank they were at.
fn take_arrivals(changes: &mut [Change], rank: Option<usize>, wanted: u64) -> Option<usize> {
    let most = || {
        let counted =
            changes.iter().enumerate().filter_map(|(index, change)| Some((index, change.arrivals?)));
        counted.max_by_key(|(index, count)| (*count, Reverse(*index))).map(|(index, _)| index)
    };
    let index = rank.or_else(most)?;
    let count = changes.get_mut(index)?.arrivals.as_mut().filter(|count| **count > 0)?;
    *count = count.saturating_sub(wanted);
    Some(index)
}

/// Adds arrivals that the counters missed at `rank`.
fn add_arrivals(changes: &mut [Change], rank: Option<usize>, missed: u64) {
    if let Some(Some(count)) = rank.and_then(|rank| changes.get_mut(rank)).map(|change| &mut change.arrivals)
    {
        *count = count.saturating_add(missed);
    }
}
