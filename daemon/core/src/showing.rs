//! What our requests hold: in the last reading, now, and in the future.

use std::{ops::Bound, time::Duration};

use crate::{
    book::Book,
    cost::Work,
    engine::Engine,
    figures::{Change, Figures},
    forecast::Footprint,
    ledger::Reservation,
    pool::{Held, Pool, Queue},
    prefill::Prefill,
    request::ReservationId,
    units::{Blocks, Mono, Tokens, count_up, real},
};

/// Prompt tokens by which a count may be off: special tokens that a caller left out.
const PROMPT_SLACK: f64 = 8.0;
/// Prompt tokens that a step computes at most where the engine does not tell: vLLM's default (0.32, but for the largest
/// devices).
const CHUNK: u64 = 2048;
/// Share of a prompt that is left until the counters tell that it has passed.
const LEAST_LEFT: f64 = 0.1;
/// A prompt is not believed to be computed still when that takes so many times longer than foreseen,
const PATIENCE: u32 = 3;
/// A first report of no more output than this, tokens per sequence, comes with the first token.
const FIRST_TOKENS: Tokens = Tokens(4);
/// and a moment more.
const MOMENT: Duration = Duration::from_secs(1);

impl Engine {
    /// What was believed of each pool's use when the reading made at `at` was made, and in the step that it shows.
    pub(crate) fn believed(&self, at: Mono) -> Vec<Believed> {
        let chunk = Tokens(self.facts.max_num_batched_tokens.unwrap_or(CHUNK));
        // It shows what was held in that step until it ended; we are asked at any moment of it.
        let then = |pool: &Pool| at.before(pool.step_at(at, chunk).mul_f64(pool.band.moment()));
        let settled = self.held(|_| at);
        let shown = self.held(|pool| then(pool) + pool.step());
        let pools = self.pools.iter().zip(settled).zip(shown);
        pools
            .map(|((pool, settled), shown)| {
                let then = then(pool);
                Believed {
                    settled: pool.corrected(at, settled.all).zip(pool.age(at)),
                    shown: pool.corrected(then, shown.all).zip(pool.age(then).map(|age| age + pool.step())),
                }
            })
            .collect()
    }

    /// Learns from how far the readings are from what was believed. An idle pool teaches nothing.
    pub(crate) fn learn_errors(&mut self, believed: &[Believed]) {
        for (pool, Believed { settled, shown }) in self.pools.iter_mut().zip(believed) {
            let Some(figures) = pool.figures.as_ref().filter(|figures| !figures.idle()) else { continue };
            let Some(used) = figures.used.map(|used| real(used.0)) else { continue };
            for (band, believed) in [(&mut pool.doubt, settled), (&mut pool.band, shown)] {
                if let Some((believed, age)) = believed {
                    band.learn(used - believed, *age);
                }
            }
        }
    }

    /// What the reservations of each pool hold in the step that is under way at `now`. The engine tells of what they held
    /// when the step before had ended, and gives them the blocks of a step when it begins.
    pub(crate) fn held_now(&self, now: Mono) -> Vec<Held> {
        self.held(|pool| now + pool.step())
    }

    /// What the reservations of each pool hold at a moment of its own, as far as they were there by then.
    fn held(&self, when: impl Fn(&Pool) -> Mono) -> Vec<Held> {
        let mut sums = vec![Held::default(); self.pools.len()];
        let moments: Vec<Mono> = self.pools.iter().map(when).collect();
        for reservation in self.ledger.live.values() {
            let index = reservation.rank.unwrap_or(0);
            let (Some(pool), Some(moment)) = (self.pools.get(index), moments.get(index)) else { continue };
            let Some(sum) = sums.get_mut(index) else { continue };
            let holds = reservation.held(*moment, pool.token_rate.get(), pool.block_size);
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
        self.pass_prompts(at, changes);
        let shown = self.place(at);
        self.ledger.recount(self.pools.len());
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let shown = shown.get(index).copied().unwrap_or_default();
            pool.explain(shown, changes.get(index).map_or(Duration::ZERO, |change| change.elapsed));
        }
    }

    /// A request has told of its first output: its prompt has been computed.
    pub(crate) fn first_output(&mut self, id: ReservationId, now: Mono) {
        let Some(one) = self.ledger.live.get_mut(&id) else { return };
        let Some(pool) = self.pools.get_mut(one.rank.unwrap_or(0)) else { return };
        let (work, prompt) = (one.work(), one.counted());
        let just_now = one.generated <= FIRST_TOKENS.times(u64::from(one.n));
        one.told = one.told.map(|_| just_now);
        if let Some(foreseen) = one.foreseen.filter(|_| just_now && pool.parts.ttft_margin) {
            pool.prefill.margin.learn(foreseen, now.since(one.admitted_at));
        }
        if just_now {
            one.prefill = (one.prefill.0.min(now), now);
        } else {
            one.prefill = (one.prefill.0.min(now), one.prefill.1.min(now));
        }
        if std::mem::replace(&mut one.passed, true) {
            return;
        }
        pool.prefill.note_passed(prompt, work);
        if just_now {
            pool.prefill.pass(now, (one.admitted_at, one.came), work);
        } else {
            pool.prefill.leave(work);
        }
    }

    /// Finds which of our prompts have been computed. Where gateways tell of first tokens: those they told of. Elsewhere the
    /// oldest, as far as the counter of prompt tokens goes (by the proportion in which the engine's requests are ours), none
    /// of those that wait (the youngest), and all of the others but one that may be in the middle of its own.
    fn pass_prompts(&mut self, at: Mono, changes: &[Change]) {
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let change = changes.get(index).copied().unwrap_or_default();
            let waiting = pool.figures.as_ref().and_then(|figures| figures.raw.waiting).unwrap_or(0);
            let in_engine = pool.figures.as_ref().and_then(Figures::in_engine).unwrap_or(0).max(1);
            let ours = in_engine.saturating_sub(pool.bypass);
            let here = |one: &Reservation| one.rank.unwrap_or(0) == index;
            let others = if pool.prefill.told() {
                let silent = || self.ledger.live.values().filter(|one| here(one) && one.silent(at));
                let ours: u64 = silent().map(|one| u64::from(one.n)).sum();
                // Those who came after the first of ours that has not told are behind it, computed though it may be.
                let came = real(change.arrivals.unwrap_or(0)) + pool.prefill.strangers.seen();
                let behind = silent().next().and_then(|first| Some(count_up(came - first.came?)));
                waiting.saturating_sub(ours).max(behind.unwrap_or(0)).min(waiting).min(pool.bypass)
            } else {
                waiting.saturating_sub(waiting.saturating_mul(ours).div_ceil(in_engine))
            };
            let mut queued = waiting.saturating_sub(others);
            let mut credit = pool.prefill.credit + real(change.prompt_tokens) * real(ours) / real(in_engine);

            let mut queue = Queue {
                // What is left of the arrivals after ours were taken off came in by other ways.
                others_arrived: change.arrivals.unwrap_or(0),
                others_waiting: others,
                ..Queue::default()
            };
            let mut computing: Vec<&mut Reservation> = Vec::new();
            for one in self.ledger.live.values_mut().rev().filter(|one| here(one)) {
                // What has told of its output does not wait.
                let waits = one.seen_at.is_some() && queued > 0 && one.generated == Tokens::ZERO;
                if waits {
                    queued = queued.saturating_sub(u64::from(one.n));
                }
                if waits || (one.seen_at.is_none() && one.generated == Tokens::ZERO) {
                    one.passed = false;
                    queue.left.add(one.work());
                    queue.ours.add(one.work());
                } else if !one.passed {
                    computing.push(one);
                }
            }
            (queue.passed, queue.passed_prompts) = pool.prefill.take_passed(at);
            let told = pool.prefill.told();
            if let Some(first) = computing.last_mut().filter(|_| told) {
                first.prefill = pool.prefill.begun(first.admitted_at, first.work()).unwrap_or(first.prefill);
            }
            // The oldest comes last here.
            while let Some(one) = computing.pop() {
                let paid = credit + PROMPT_SLACK >= one.counted();
                one.passed = one.overdue(at) || (!told && (paid || !computing.is_empty()));
                if one.passed {
                    credit = (credit - one.counted()).max(0.0);
                    queue.passed.add(one.work());
                    queue.passed_prompts += one.counted();
                } else {
                    queue.ours.add(one.work());
                    queue.left.add(one.work().times(one.prompt_left(at)));
                }
            }
            pool.prefill.credit = if queue.left.tokens > 0.0 { credit } else { 0.0 };
            pool.read_prefill(&change, &queue);
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
            reservation.place_prefill(at, left, &pool.prefill);
            if reservation.seen_at.is_none() {
                continue;
            }
            if left.waiting > 0 && reservation.generated == Tokens::ZERO {
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

/// Blocks in use as we believed, and the age of what that rested on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Believed {
    /// Between two steps: what the forecast starts from.
    settled: Option<(f64, Duration)>,
    /// In the middle of a step: what is published.
    shown: Option<(f64, Duration)>,
}

/// What of a pool's last reading is still to be found among our reservations, from the youngest on.
struct Left {
    /// Sequences that wait in the engine.
    waiting: u64,
    /// Time until all prompts will have been computed.
    prefill: Duration,
}

impl Left {
    fn of(pool: &Pool, at: Mono) -> Self {
        let waiting = pool.figures.as_ref().and_then(|figures| figures.raw.waiting).unwrap_or(0);
        Self { waiting, prefill: pool.prefill.time_for(at, Work::default()).unwrap_or_default() }
    }
}

impl Reservation {
    /// Share of its prompt that is still to be computed at `at`, by the best estimate; something, until it has passed.
    fn prompt_left(&self, at: Mono) -> f64 {
        let (from, to) = self.prefill;
        let share = at.since(from).as_secs_f64() / to.since(from).as_secs_f64();
        if share.is_finite() { (1.0 - share).clamp(LEAST_LEFT, 1.0) } else { LEAST_LEFT }
    }

    /// Whether it was seen, and had not told of its first token by `at`.
    fn silent(&self, at: Mono) -> bool {
        let told = if self.passed { self.prefill.1 <= at } else { self.generated > Tokens::ZERO };
        self.seen_at.is_some() && !told
    }

    /// Whether its prompt should long have been computed.
    fn overdue(&self, at: Mono) -> bool {
        let (from, to) = self.prefill;
        at > to + to.since(from) * PATIENCE + MOMENT
    }

    /// Prompt tokens that the engine counts for it: each sequence's (vLLM 0.32, v1/engine/parallel_sampling.py).
    fn counted(&self) -> f64 {
        real(self.prompts.total.0) * f64::from(self.prompts.samples(self.n))
    }

    /// What its prompt costs.
    pub(crate) fn work(&self) -> Work {
        Work::of_all(self.prompts, self.uncached)
    }

    /// Places the time in which its prompt is computed, by its part in what is left to compute: the youngest come last.
    fn place_prefill(&mut self, at: Mono, left: &mut Left, prefill: &Prefill) {
        let Some(time) = prefill.time(self.work()) else { return };
        if self.passed || left.prefill.is_zero() {
            let (from, to) = self.prefill;
            self.prefill = (from.min(at), to.min(at));
            return;
        }
        let behind = left.prefill;
        left.prefill = left.prefill.saturating_sub(time);
        self.prefill = (at.before(time.saturating_sub(behind)) + left.prefill, at + behind);
    }
}
