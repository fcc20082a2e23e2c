//! The ledger of one engine: what was promised and has not been seen to end.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    book::ClassKey,
    count::TextSize,
    forecast::{Footprint, Forecast, Outlook},
    prompts::Prompts,
    request::{Outcome, PromptCount, ReservationId, SessionId},
    tenants::{MAX_ACCOUNTS, Slot},
    units::{Blocks, Mono, Tokens, count_up, real},
};

/// Ended reservations remembered until a reading shows their end; older ones count as shown.
const ENDED_KEPT: usize = 4096;

/// One promise.
#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    pub(crate) admitted_at: Mono,
    /// Index of its pool; `None` while the engine has not shown which rank took it.
    pub(crate) rank: Option<usize>,
    pub(crate) prompts: Prompts,
    pub(crate) count: PromptCount,
    /// Its prompt's text and the model it was sent to, to learn from what the engine counts.
    pub(crate) text: Option<(Arc<str>, TextSize)>,
    /// Output tokens per sequence that room is kept for.
    pub(crate) output: Tokens,
    /// Output tokens per sequence that were granted.
    pub(crate) granted: Option<Tokens>,
    /// Sequences, of all prompts together.
    pub(crate) n: u32,
    /// It ends there at the latest, output tokens per sequence.
    pub(crate) most: Tokens,
    /// Class by which its output length is foreseen, and the forecast of it.
    pub(crate) class: ClassKey,
    pub(crate) footprint: Footprint,
    /// Prompt tokens that are to be computed: those that the prefix cache is not expected to hold.
    pub(crate) uncached: Tokens,
    /// Its prompt has been computed, as far as the counters tell.
    pub(crate) passed: bool,
    /// Whether its gateway told of its first token when that came; `None`: an earlier daemon may have been told.
    pub(crate) told: Option<bool>,
    /// Time to its first token that was foreseen when it was admitted.
    pub(crate) foreseen: Option<Duration>,
    /// Strangers that had come when it was admitted, where its rank was known.
    pub(crate) came: Option<f64>,
    /// From when to when its prompt is computed, by the best estimate.
    pub(crate) prefill: (Mono, Mono),
    /// Output tokens reported so far, all sequences together, and when.
    pub(crate) generated: Tokens,
    pub(crate) generated_at: Mono,
    /// When a reading first showed it.
    pub(crate) seen_at: Option<Mono>,
    /// The part of it in the last reading, by the best estimate.
    pub(crate) shown: Blocks,
    /// The part of it that is in the last reading for sure.
    pub(crate) sure: Blocks,
    /// What it may need at the end of its life.
    pub(crate) total: Blocks,
    pub(crate) lease_until: Mono,
    pub(crate) session: Option<SessionId>,
    /// Who pays.
    pub(crate) tenant: Slot,
    /// Since when its gateway is gone or silent.
    pub(crate) orphan_since: Option<Mono>,
}

impl Reservation {
    /// Output tokens per sequence at `at`: exact where progress is reported, else at `rate` tokens per second since
    /// `since`, but not before its prompt was computed.
    fn output_at(&self, at: Mono, since: Mono, rate: Option<f64>) -> Tokens {
        let reported = Tokens(self.generated.0.div_ceil(u64::from(self.n).max(1)));
        let elapsed = at.since(since.max(self.generated_at).max(self.prefill.1)).as_secs_f64();
        let most = if self.granted.is_some() { self.output } else { self.most.max(reported) };
        (reported + Tokens(count_up(rate.unwrap_or(0.0) * elapsed))).min(most)
    }

    /// Blocks it holds at `at`, by the best estimate.
    pub(crate) fn held(&self, at: Mono, rate: Option<f64>, block_size: u64) -> Blocks {
        self.held_since(self.admitted_at, at, rate, block_size)
    }

    /// The same, with generation counted only since a reading first showed it: a lower bound.
    pub(crate) fn surely_held(&self, at: Mono, rate: Option<f64>, block_size: u64) -> Blocks {
        self.held_since(self.seen_at.unwrap_or(at), at, rate, block_size)
    }

    fn held_since(&self, since: Mono, at: Mono, rate: Option<f64>, block_size: u64) -> Blocks {
        let (from, to) = self.prefill;
        if at >= to {
            return self.prompts.held(self.output_at(at, since, rate), self.n, block_size);
        }
        // The engine gives blocks to a prompt piece by piece, as it is computed.
        let share = at.since(from).as_secs_f64() / to.since(from).as_secs_f64();
        let part = |tokens: Tokens| Tokens(count_up(real(tokens.0) * share.clamp(0.0, 1.0)));
        let Prompts { count, total, longest } = self.prompts;
        Prompts { count, total: part(total), longest: part(longest) }.each(Tokens::ZERO, block_size)
    }

    /// What the forecast needs to know of it at `at`.
    pub(crate) fn outlook(&self, at: Mono, rate: Option<f64>) -> Outlook {
        let generated = self.output_at(at, self.admitted_at, rate);
        Outlook { prompts: self.prompts, generated, most: self.most, n: self.n }
    }
}

/// A reservation that ended after the last reading: still in the gauge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) at: Mono,
    pub(crate) rank: Option<usize>,
    pub(crate) shown: Blocks,
    /// What it held where no reading was seen to show it, though one may have.
    pub(crate) unshown: Blocks,
    /// Whether a reading had shown it; otherwise its arrival is still to be accounted for.
    pub(crate) seen: bool,
    /// Finished by the engine, which counts those alone and not the aborted (vLLM 0.32 v1/metrics/stats.py).
    pub(crate) finished: bool,
    /// Sequences, as the engine counts requests.
    pub(crate) sequences: u64,
}

/// What the reservations of one pool add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// What those seen may need in all.
    pub(crate) seen: Blocks,
    /// What of them is surely in the last reading.
    pub(crate) sure: Blocks,
    /// All that those unseen may need.
    pub(crate) unseen: Blocks,
    /// Held in the last reading by those that have ended since.
    pub(crate) ended: Blocks,
    /// Reservations.
    pub(crate) count: u64,
}

/// The reservations of one engine. Ids ascend with time, so their order is the order of admission.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) live: BTreeMap<ReservationId, Reservation>,
    pub(crate) ended: VecDeque<Ended>,
    /// One per pool.
    pub(crate) sums: Vec<Sums>,
    /// One per pool.
    pub(crate) forecasts: Vec<Forecast>,
    /// Unseen reservations whose rank is unknown weigh on every pool.
    pub(crate) unassigned: Sums,
    unassigned_forecast: Forecast,
    pub(crate) orphans: u64,
    /// What the reservations of each tenant may need, and how many they are; by account.
    tenants: Vec<(Blocks, u64)>,
}

impl Ledger {
    /// What the reservations of the tenant with account `slot` may come to need, and how many they are.
    pub(crate) fn of_tenant(&self, slot: Slot) -> (Blocks, u64) {
        self.tenants.get(slot.0).copied().unwrap_or_default()
    }

    fn account_tenant(&mut self, reservation: &Reservation, add: bool) {
        let slot = reservation.tenant.0.min(MAX_ACCOUNTS - 1);
        if self.tenants.len() <= slot {
            self.tenants.resize(slot + 1, Default::default());
        }
        let Some((blocks, count)) = self.tenants.get_mut(slot) else { return };
        (*blocks, *count) = if add {
            (*blocks + reservation.total, count.saturating_add(1))
        } else {
            (blocks.saturating_sub(reservation.total), count.saturating_sub(1))
        };
    }

    /// Sums of the pool at `index`, what may land on any pool included.
    pub(crate) fn sums(&self, index: usize) -> Sums {
        let own = self.sums.get(index).copied().unwrap_or_default();
        Sums {
            unseen: own.unseen + self.unassigned.unseen,
            count: own.count.saturating_add(self.unassigned.count),
            ..own
        }
    }

    /// Makes room for the sums of so many pools.
    pub(crate) fn set_pools(&mut self, pools: usize) {
        self.sums.resize_with(pools, Sums::default);
        self.forecasts.resize_with(pools, Forecast::default);
    }

    /// Forecast of the pool at `index`, what may land on any pool included.
    pub(crate) fn forecast(&self, index: usize) -> Forecast {
        let mut forecast = self.forecasts.get(index).cloned().unwrap_or_default();
        forecast.join(&self.unassigned_forecast);
        forecast
    }

    pub(crate) fn insert(&mut self, id: ReservationId, reservation: Reservation) {
        self.account(&reservation, true);
        // The sums are those of what is held, whatever was inserted before.
        if let Some(replaced) = self.live.insert(id, reservation) {
            self.account(&replaced, false);
        }
    }

    /// Takes a reservation out that the next reading will not show.
    pub(crate) fn remove(&mut self, id: ReservationId) -> Option<Reservation> {
        let reservation = self.live.remove(&id)?;
        self.account(&reservation, false);
        Some(reservation)
    }

    /// Takes a reservation out that ended now. What the last reading shows of it is remembered until the next one,
    /// and so is its arrival, unless it never reached the engine.
    pub(crate) fn end(&mut self, id: ReservationId, now: Mono, outcome: Outcome) -> Option<Reservation> {
        let reservation = self.remove(id)?;
        if reservation.seen_at.is_some() || outcome != Outcome::NotSent {
            self.remember_end(&reservation, now, outcome);
        }
        Some(reservation)
    }

    fn remember_end(&mut self, reservation: &Reservation, now: Mono, outcome: Outcome) {
        if self.ended.len() >= ENDED_KEPT
            && let Some(oldest) = self.ended.pop_front()
        {
            self.forget(oldest);
        }
        let Reservation { rank, shown, n, .. } = *reservation;
        if let Some(sums) = rank.and_then(|rank| self.sums.get_mut(rank)) {
            sums.ended += shown;
        }
        let seen = reservation.seen_at.is_some();
        let unshown = if seen { Blocks::ZERO } else { reservation.total };
        let (finished, sequences) = (outcome == Outcome::Ok, u64::from(n));
        self.ended.push_back(Ended { at: now, rank, shown, unshown, seen, finished, sequences });
    }

    fn forget(&mut self, ended: Ended) {
        if let Some(sums) = ended.rank.and_then(|rank| self.sums.get_mut(rank)) {
            sums.ended = sums.ended.saturating_sub(ended.shown);
        }
    }

    /// Forgets those that had ended by `at`, for a reading made then shows their end.
    pub(crate) fn forget_ended_by(&mut self, at: Mono) {
        while let Some(front) = self.ended.front().copied()
            && front.at <= at
        {
            self.ended.pop_front();
            self.forget(front);
        }
    }

    /// Forgets everything: the engine's process is gone, and all it held.
    pub(crate) fn clear(&mut self) {
        let pools = self.sums.len();
        *self = Self::default();
        self.set_pools(pools);
    }

    pub(crate) fn make_orphan(&mut self, id: ReservationId, now: Mono) {
        if let Some(reservation) = self.live.get_mut(&id)
            && reservation.orphan_since.is_none()
        {
            reservation.orphan_since = Some(now);
            reservation.session = None;
            self.orphans = self.orphans.saturating_add(1);
        }
    }

    /// An orphan shows that its gateway lives.
    pub(crate) fn adopt(&mut self, id: ReservationId, session: Option<SessionId>, lease_until: Mono) {
        if let Some(reservation) = self.live.get_mut(&id) {
            if reservation.orphan_since.take().is_some() {
                self.orphans = self.orphans.saturating_sub(1);
            }
            reservation.session = session;
            reservation.lease_until = lease_until;
        }
    }

    /// Adds a reservation to the sums, or takes it off.
    fn account(&mut self, reservation: &Reservation, add: bool) {
        if reservation.orphan_since.is_some() && !add {
            self.orphans = self.orphans.saturating_sub(1);
        }
        self.account_tenant(reservation, add);
        if let Some((sums, forecast)) = self.of_rank(reservation.rank) {
            sums.change(reservation, add);
            forecast.change(&reservation.footprint, add);
        }
    }

    fn of_rank(&mut self, rank: Option<usize>) -> Option<(&mut Sums, &mut Forecast)> {
        match rank {
            Some(rank) => self.sums.get_mut(rank).zip(self.forecasts.get_mut(rank)),
            None => Some((&mut self.unassigned, &mut self.unassigned_forecast)),
        }
    }

    /// Replaces a reservation's forecast.
    pub(crate) fn set_footprint(&mut self, id: ReservationId, footprint: Footprint) {
        let Some(reservation) = self.live.get_mut(&id) else { return };
        let (rank, old) = (reservation.rank, std::mem::replace(&mut reservation.footprint, footprint));
        let new = reservation.footprint.clone();
        if let Some((_, forecast)) = self.of_rank(rank) {
            forecast.change(&old, false);
            forecast.change(&new, true);
        }
    }

    /// Adds everything up anew after a reading has changed what is shown.
    pub(crate) fn recount(&mut self, pools: usize) {
        (self.sums, self.forecasts) = (Vec::new(), Vec::new());
        (self.unassigned, self.unassigned_forecast) = (Sums::default(), Forecast::default());
        self.set_pools(pools);
        self.tenants.fill(Default::default());
        let live = std::mem::take(&mut self.live);
        for reservation in live.values() {
            self.account_tenant(reservation, true);
            if let Some((sums, forecast)) = self.of_rank(reservation.rank) {
                sums.change(reservation, true);
                forecast.change(&reservation.footprint, true);
            }
        }
        self.live = live;
        for ended in &self.ended {
            if let Some(sums) = ended.rank.and_then(|rank| self.sums.get_mut(rank)) {
                sums.ended += ended.shown;
            }
        }
    }
}

impl Sums {
    fn change(&mut self, reservation: &Reservation, add: bool) {
        let step = |sum: &mut u64, by: u64| {
            *sum = if add { sum.saturating_add(by) } else { sum.saturating_sub(by) };
        };
        step(&mut self.count, 1);
        if reservation.seen_at.is_some() {
            step(&mut self.seen.0, reservation.total.0);
            step(&mut self.sure.0, reservation.sure.0);
        } else {
            step(&mut self.unseen.0, reservation.total.0);
        }
    }
}
