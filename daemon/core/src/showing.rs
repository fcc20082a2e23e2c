//! What our requests hold: in the last reading, now, and in the future.

use std::{ops::Bound, time::Duration};

use crate::{
    book::Book,
    engine::Engine,
    figures::Change,
    forecast::Footprint,
    ledger::Reservation,
    pool::{Held, Pool},
    request::ReservationId,
    units::{Blocks, Mono, Tokens, real},
};

impl Engine {
    /// What each pool's next reading is expected to show, and the age of the one that rests on.
    pub(crate) fn expected(&self, at: Mono) -> Vec<Option<(f64, Duration)>> {
        let held = self.held(at);
        let pools = self.pools.iter().zip(&held);
        pools.map(|(pool, held)| pool.corrected(held.all).zip(pool.age(at))).collect()
    }

    /// Learns from how far the readings are from what was expected. An idle pool teaches nothing.
    pub(crate) fn learn_errors(&mut self, expected: &[Option<(f64, Duration)>]) {
        for (pool, expected) in self.pools.iter_mut().zip(expected) {
            let Some(figures) = pool.figures.as_ref().filter(|figures| !figures.idle()) else { continue };
            if let (Some(used), Some((expected, age))) = (figures.used, expected) {
                pool.band.learn(real(used.0) - expected, *age);
            }
        }
    }

    /// What the reservations of each pool hold at `at`.
    pub(crate) fn held(&self, at: Mono) -> Vec<Held> {
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

    /// Works out what the reading shows of each reservation.
    pub(crate) fn show(&mut self, at: Mono, changes: &[Change]) {
        self.follow_prefill(changes);
        let mut shown = self.place(at);
        let settled = self.pools.iter_mut().zip(&shown).map(|(pool, shown)| pool.settle_prefill(*shown));
        // No short-circuit: each pool is to be settled.
        if settled.fold(false, |any, one| any | one) {
            shown = self.place(at);
        }
        self.ledger.recount(self.pools.len());
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let shown = shown.get(index).copied().unwrap_or_default();
            pool.explain(shown, changes.get(index).map_or(Duration::ZERO, |change| change.elapsed));
        }
    }

    /// Places our reservations in the reading: it has nothing of those that wait in the engine (the youngest, for it
    /// takes them in order), part of those whose prompt is being computed, else what they held then. Returns what it has
    /// of all of them, those included that ended since.
    fn place(&mut self, at: Mono) -> Vec<Blocks> {
        let mut left: Vec<Left> = self.pools.iter().map(|pool| Left::of(pool, at)).collect();
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
        for ended in &self.ledger.ended {
            if let Some(sum) = shown.get_mut(ended.rank.unwrap_or(0)) {
                *sum += ended.shown;
            }
        }
        shown
    }

    /// Follows each pool's queue of prompts.
    fn follow_prefill(&mut self, changes: &[Change]) {
        let mut unseen = vec![Tokens::ZERO; self.pools.len()];
        for reservation in self.ledger.live.values().filter(|one| one.seen_at.is_none()) {
            if let Some(sum) = unseen.get_mut(reservation.rank.unwrap_or(0)) {
                *sum += reservation.prompt;
            }
        }
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let change = changes.get(index).copied().unwrap_or_default();
            let unseen = unseen.get(index).copied().unwrap_or_default();
            // What is left of the arrivals after ours were taken off came in by other ways.
            pool.follow_prefill(&change, change.arrivals.unwrap_or(0), unseen);
        }
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
}

/// What of a pool's last reading is still to be found among our reservations, from the youngest on.
struct Left {
    /// Sequences that wait in the engine.
    waiting: u64,
    /// Prompt tokens still to be computed.
    prefill: Tokens,
}

impl Left {
    fn of(pool: &Pool, at: Mono) -> Self {
        let waiting = pool.figures.as_ref().and_then(|figures| figures.raw.waiting).unwrap_or(0);
        Self { waiting, prefill: pool.prefill.queued(at) }
    }
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
