//! Setting a reading against the ledger: which of our requests does it show, and which have ended without our being told?
//! The engine exports counts, never requests.

use std::{cmp::Reverse, time::Duration};

use crate::{
    engine::Engine,
    figures::{Change, Figures},
    ledger::Reservation,
    request::ReservationId,
    settings::{Risk, Settings},
    units::{Blocks, Mono},
};

/// An engine that shows fewer requests than we believe it has must do so for this long before it is believed: a
/// completion may be on its way.
const EXCESS_PATIENCE: Duration = Duration::from_secs(1);

/// A gateway has nearly always delivered an admitted request by then (measured on vLLM 0.32: 25 ms, at most 95).
const DELIVERY: Duration = Duration::from_millis(200);

impl Engine {
    /// Marks as seen those of ours that the reading shows for the first time. The engine exports counts, never
    /// requests: arrivals are given to those that ended unseen (they certainly arrived), then to the unseen in the
    /// order of admission. What arrived beyond them did not come through us.
    pub(crate) fn match_arrivals(
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
    pub(crate) fn unexplained(&self) -> u64 {
        let in_engine: u64 = self.in_engine().unwrap_or(0);
        in_engine.saturating_sub(self.seen_sequences())
    }

    pub(crate) fn in_engine(&self) -> Option<u64> {
        let counts = self.pools.iter().map(|pool| pool.figures.as_ref()?.in_engine());
        counts.sum()
    }

    pub(crate) fn seen_sequences(&self) -> u64 {
        let seen = self.ledger.live.values().filter(|reservation| reservation.seen_at.is_some());
        seen.map(|reservation| u64::from(reservation.n)).sum()
    }

    /// Where the engine holds fewer requests than we have seen arrive, some have ended without our being told: orphans,
    /// and once the shortfall has lasted, others. Which ones is not known. Most likely they are those not heard of for
    /// longest; where the operator accepts no risk the smallest go, so that what is left is at least what is there.
    pub(crate) fn drop_excess(&mut self, not_before: Mono, settings: &Settings) {
        let Some(in_engine) = self.in_engine() else { return };
        // One that is still on its way may have been taken for another that arrived: it is not what is missing.
        let late = not_before.before(DELIVERY);
        let seen = self.ledger.live.values().filter(|one| one.seen_at.is_some() && one.admitted_at <= late);
        let seen: u64 = seen.map(|one| u64::from(one.n)).sum();
        let mut excess = seen.saturating_sub(in_engine);
        if excess == 0 {
            self.excess_since = None;
            return;
        }
        let since = *self.excess_since.get_or_insert(not_before);
        let lasting = not_before.since(since) >= EXCESS_PATIENCE;
        let candidates = self.ledger.live.iter().filter(|(_, one)| one.seen_at.is_some());
        let smallest_first = settings.risk == Risk::NONE;
        let mut gone: Vec<(bool, Blocks, Mono, ReservationId, u64)> = candidates
            .filter(|(_, one)| one.admitted_at <= late && (lasting || one.orphan_since.is_some()))
            .map(|(id, one)| {
                let size = if smallest_first { one.total } else { Blocks::ZERO };
                (one.orphan_since.is_none(), size, one.generated_at, *id, u64::from(one.n))
            })
            .collect();
        gone.sort_unstable();
        for (.., id, sequences) in gone {
            if sequences <= excess {
                excess -= sequences;
                self.release(id, not_before);
            }
        }
    }

    /// An orphan that should long have arrived, and of which the engine shows nothing, is not there.
    pub(crate) fn drop_vanished_orphans(&mut self, not_before: Mono, settings: &Settings) {
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
    pub(crate) fn idle_rule(&mut self, now: Mono, not_before: Mono, settings: &Settings) -> bool {
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

    pub(crate) fn count_bypass(&mut self) {
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
