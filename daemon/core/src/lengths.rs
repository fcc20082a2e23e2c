//! How long outputs get: a distribution that is learned from what really ended, forgets, and can be asked "given that it
//! has already generated so many tokens, will it generate so many more?"
//!
//! It is the product-limit estimator (Kaplan & Meier, 1958) on fixed buckets: for each bucket, how many outputs reached
//! it and how many ended in it. An output cut off at its max_tokens counts as having reached its length, never as having
//! ended there by itself, so that requests with different limits teach one distribution.

use libm::{exp, log};

use crate::units::{Tokens, count_up, real};

/// Lower edges of the buckets, in tokens; the last is open.
const EDGES: [u32; BUCKETS] = [
    0, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 32768, 65536,
];
const BUCKETS: usize = 28;
/// No output is foreseen beyond it.
const MAX_LENGTH: u64 = 1 << 20;
/// Outputs after which an older one weighs 1/e.
const MEMORY: f64 = 2000.0;
/// Weight of the engine's own history when we begin to watch it, in outputs.
const SEED_WEIGHT: f64 = 200.0;
/// Shares of outputs that end in a bucket of those that reach it, before anything is known: below 256 tokens, below
/// 1,024, and above. Half of all are then longer than 128 tokens, one in four than 1,024, one in fifty than 4,096.
const PRIOR_HAZARD: [f64; 3] = [0.06, 0.15, 0.4];
/// Weight of that assumption, in outputs.
const PRIOR_WEIGHT: f64 = 8.0;

/// An engine's cumulative histogram: upper bounds, tokens, and how many outputs were no longer.
pub(crate) type Histogram = [(f64, u64)];

/// Counts from which a distribution follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// Outputs that reached each bucket, forgetting.
    pub reached: [f64; BUCKETS],
    /// Outputs that ended by themselves in it, forgetting.
    pub ended: [f64; BUCKETS],
}

impl Default for Counts {
    fn default() -> Self {
        Self { reached: [0.0; BUCKETS], ended: [0.0; BUCKETS] }
    }
}

impl Counts {
    fn bucket(tokens: Tokens) -> usize {
        EDGES.iter().rposition(|edge| tokens.0 >= u64::from(*edge)).unwrap_or(0)
    }

    /// Takes in an output of `length` tokens, `cut` off by its max_tokens or ended by itself.
    pub(crate) fn take(&mut self, length: Tokens, cut: bool) {
        self.forget(1.0);
        let last = Self::bucket(length);
        for reached in self.reached.iter_mut().take(last) {
            *reached += 1.0;
        }
        // A cut output says nothing of where in its bucket it would have ended.
        if !cut {
            add(&mut self.reached, last, 1.0);
            add(&mut self.ended, last, 1.0);
        }
    }

    /// Takes in `weight` outputs of between `low` and `high` tokens, spread evenly, of which the share `cut` was cut off.
    fn take_spread(&mut self, low: f64, high: f64, weight: f64, cut: f64) {
        for bucket in 0..BUCKETS {
            let (from, to) = edges(bucket);
            let overlap = (to.min(high) - from.max(low)).max(0.0) / (high - low).max(1.0);
            if overlap > 0.0 {
                for reached in self.reached.iter_mut().take(bucket) {
                    *reached += overlap * weight;
                }
                add(&mut self.reached, bucket, overlap * weight * (1.0 - cut));
                add(&mut self.ended, bucket, overlap * weight * (1.0 - cut));
            }
        }
    }

    /// Takes in an engine's histogram of output lengths: what was added since the one before, at most `most` outputs'
    /// weight. It does not tell which of them were cut off: the share `cut` of those of every length is taken to have been.
    pub(crate) fn take_histogram(&mut self, (before, now): (&Histogram, &Histogram), most: f64, cut: f64) {
        let old = |index: usize| before.get(index).map_or(0, |(_, count)| *count);
        let added =
            now.last().map_or(0, |(_, count)| *count).saturating_sub(old(now.len().saturating_sub(1)));
        let scale = (most / real(added.max(1))).min(1.0);
        self.forget(real(added) * scale);
        let (mut low, mut below) = (0.0, 0);
        for (index, (high, count)) in now.iter().enumerate() {
            let cumulative = count.saturating_sub(old(index));
            let here = real(cumulative.saturating_sub(below)) * scale;
            let high = if high.is_finite() { *high } else { low * 2.0 };
            if here > 0.0 {
                self.take_spread(low, high, here, cut);
            }
            (low, below) = (high, cumulative.max(below));
        }
    }

    /// Whether counting can have given these figures.
    pub(crate) fn plausible(&self) -> bool {
        let pairs = self.reached.iter().zip(&self.ended);
        pairs.into_iter().all(|(reached, ended)| {
            reached.is_finite() && (0.0..=reached + 1e-6).contains(ended) && *reached <= 1e9
        })
    }

    fn forget(&mut self, outputs: f64) {
        let keep = exp(-outputs / MEMORY);
        for count in self.reached.iter_mut().chain(&mut self.ended) {
            *count *= keep;
        }
    }
}

fn add(counts: &mut [f64; BUCKETS], bucket: usize, weight: f64) {
    if let Some(count) = counts.get_mut(bucket) {
        *count += weight;
    }
}

/// Lower and upper edge of a bucket; the open one is taken to be as wide as all before it.
fn edges(bucket: usize) -> (f64, f64) {
    let from = EDGES.get(bucket).copied().map_or(0.0, f64::from);
    let to = EDGES.get(bucket + 1).copied().map_or(from * 2.0, f64::from);
    (from, to)
}

fn prior_hazard(bucket: usize) -> f64 {
    let [short, middle, long] = PRIOR_HAZARD;
    match EDGES.get(bucket) {
        Some(0..256) => short,
        Some(256..1024) => middle,
        _ => long,
    }
}

/// Survival as cumulative hazard at the buckets' lower edges: P(length ≥ x) = exp(−hazard(x)), linear in between.
#[derive(Clone, Debug)]
pub(crate) struct Survival {
    hazard: [f64; BUCKETS],
    /// Per token beyond the last edge.
    tail: f64,
}

impl Survival {
    /// From `counts`, leaning on `base` where they are few: `weight` outputs' worth.
    pub(crate) fn of(counts: &Counts, base: Option<&Self>, weight: f64) -> Self {
        let mut hazard = [0.0; BUCKETS];
        let (mut sum, mut tail) = (0.0, 0.0);
        for bucket in 0..BUCKETS {
            let count = |of: &[f64; BUCKETS]| of.get(bucket).copied().unwrap_or(0.0);
            let prior = base.map_or_else(|| prior_hazard(bucket), |base| base.share_ending(bucket));
            let ending = (count(&counts.ended) + weight * prior) / (count(&counts.reached) + weight);
            if let Some(slot) = hazard.get_mut(bucket) {
                *slot = sum;
            }
            let step = -log(1.0 - ending.clamp(0.0, 0.999));
            sum += step;
            let (from, to) = edges(bucket);
            tail = step / (to - from).max(1.0);
        }
        Self { hazard, tail }
    }

    /// Before anything is known.
    pub(crate) fn prior() -> Self {
        Self::of(&Counts::default(), None, PRIOR_WEIGHT)
    }

    /// From an engine's or model's own counts.
    pub(crate) fn of_model(counts: &Counts) -> Self {
        Self::of(counts, None, PRIOR_WEIGHT)
    }

    /// Share of outputs reaching `bucket` that end in it.
    fn share_ending(&self, bucket: usize) -> f64 {
        let (from, to) = edges(bucket);
        1.0 - exp(self.at(from) - self.at(to))
    }

    /// Cumulative hazard at `tokens`.
    pub(crate) fn at(&self, tokens: f64) -> f64 {
        let bucket = EDGES.iter().rposition(|edge| tokens >= f64::from(*edge)).unwrap_or(0);
        self.within(bucket, tokens)
    }

    fn within(&self, bucket: usize, tokens: f64) -> f64 {
        let low = self.hazard.get(bucket).copied().unwrap_or(0.0);
        let (from, to) = edges(bucket);
        match self.hazard.get(bucket + 1) {
            Some(high) => low + (high - low) * (tokens - from) / (to - from),
            None => low + self.tail * (tokens - from),
        }
    }

    /// Length that an output exceeds with probability `chance`.
    pub(crate) fn exceeded_by(&self, chance: f64) -> Tokens {
        let wanted = -log(chance.max(1e-9));
        let bucket = self.hazard.iter().rposition(|hazard| *hazard <= wanted).unwrap_or(0);
        let (from, to) = edges(bucket);
        let low = self.hazard.get(bucket).copied().unwrap_or(0.0);
        let slope = self.hazard.get(bucket + 1).map_or(self.tail, |high| (high - low) / (to - from));
        Tokens(count_up(from + (wanted - low) / slope.max(1e-12)).min(MAX_LENGTH))
    }

    /// Walks upwards: cumulative hazard at ascending points, without a search each.
    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk { survival: self, bucket: 0 }
    }

    /// Mean of what is still to come after `generated` tokens, up to `most` in all.
    pub(crate) fn mean_left(&self, generated: f64, most: f64) -> f64 {
        let start = self.at(generated);
        let (mut mean, mut from, mut alive) = (0.0, generated, 1.0);
        for bucket in 0..BUCKETS {
            let (_, to) = edges(bucket);
            let to = to.min(most);
            if to <= from {
                continue;
            }
            let next = exp(start - self.at(to));
            mean += (to - from) * f64::midpoint(alive, next);
            (from, alive) = (to, next);
        }
        mean
    }
}

/// See [`Survival::walk`].
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    survival: &'a Survival,
    bucket: usize,
}

impl Walk<'_> {
    /// Cumulative hazard at `tokens`, which must not be less than at the call before.
    pub(crate) fn at(&mut self, tokens: f64) -> f64 {
        while EDGES.get(self.bucket + 1).is_some_and(|edge| tokens >= f64::from(*edge)) {
            self.bucket += 1;
        }
        self.survival.within(self.bucket, tokens)
    }
}

/// Weight with which an engine's history of `outputs` enters when it is first seen.
pub(crate) const fn seed_weight() -> f64 {
    SEED_WEIGHT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(survival: &Survival, tokens: f64) -> f64 {
        exp(-survival.at(tokens))
    }

    fn learned(lengths: impl Iterator<Item = (u64, bool)>) -> Survival {
        let mut counts = Counts::default();
        for (length, cut) in lengths {
            counts.take(Tokens(length), cut);
        }
        Survival::of_model(&counts)
    }

    #[test]
    fn it_learns_what_share_reaches_a_length() {
        // Nine of ten end at 100 tokens, one at 1,000.
        let survival = learned((0..1000).map(|index| (if index % 10 == 0 { 1000 } else { 100 }, false)));
        assert!((alive(&survival, 64.0) - 0.98).abs() < 0.03, "{}", alive(&survival, 64.0));
        assert!((alive(&survival, 256.0) - 0.1).abs() < 0.02, "{}", alive(&survival, 256.0));
        assert!(alive(&survival, 2048.0) < 0.01);
    }

    #[test]
    fn one_that_has_outlived_the_short_ones_is_expected_to_go_on() {
        let survival = learned((0..1000).map(|index| (if index % 10 == 0 { 1000 } else { 100 }, false)));
        let given = |generated: f64, at: f64| exp(survival.at(generated) - survival.at(at));
        assert!(given(0.0, 500.0) < 0.13);
        assert!(given(256.0, 500.0) > 0.85);
    }

    #[test]
    fn outputs_that_were_cut_off_do_not_count_as_having_ended() {
        // All would reach 1,000; half are cut at 100.
        let survival =
            learned((0..1000).map(|index| if index % 2 == 0 { (100, true) } else { (1000, false) }));
        assert!(alive(&survival, 500.0) > 0.9, "{}", alive(&survival, 500.0));
    }

    #[test]
    fn it_forgets() {
        let mut counts = Counts::default();
        for _ in 0..5000 {
            counts.take(Tokens(1000), false);
        }
        for _ in 0..10_000 {
            counts.take(Tokens(50), false);
        }
        assert!(alive(&Survival::of_model(&counts), 500.0) < 0.02);
    }

    #[test]
    fn an_engines_histogram_is_a_good_start() {
        let buckets = [(50.0, 0), (100.0, 900), (500.0, 900), (1000.0, 1000), (f64::INFINITY, 1000)];
        let mut counts = Counts::default();
        counts.take_histogram((&[], &buckets), SEED_WEIGHT, 0.0);
        let survival = Survival::of_model(&counts);
        assert!((alive(&survival, 256.0) - 0.1).abs() < 0.03, "{}", alive(&survival, 256.0));
        // Nothing new: nothing changes.
        let before = counts.clone();
        counts.take_histogram((&buckets, &buckets), SEED_WEIGHT, 0.0);
        assert_eq!(counts, before);
    }

    /// Limits spread evenly from 1 to 400, every second output cut off at its own, the others ended halfway to it: of those
    /// that reach 200 tokens few end there by themselves, though half of all outputs are shorter.
    #[test]
    fn outputs_that_were_cut_off_are_not_taken_to_have_ended() {
        let lengths = (1..=400_u64).map(|limit| if limit % 2 == 0 { limit } else { limit / 2 });
        let lengths: Vec<u64> = lengths.collect();
        let shorter = |than: u64| lengths.iter().filter(|length| **length <= than).count() as u64;
        let edges = [10, 20, 50, 100, 200, 500];
        let buckets: Vec<_> = edges.iter().map(|edge| (real(*edge), shorter(*edge))).collect();
        let survival = |cut| {
            let mut counts = Counts::default();
            counts.take_histogram((&[], &buckets), SEED_WEIGHT, cut);
            alive(&Survival::of_model(&counts), 200.0)
        };
        let exact = learned(
            (1..=400_u64).map(|limit| if limit % 2 == 0 { (limit, true) } else { (limit / 2, false) }),
        );
        let exact = alive(&exact, 200.0);
        assert!((survival(0.5) - exact).abs() < 0.1, "{} and exactly {exact}", survival(0.5));
        assert!(survival(0.0) < exact - 0.1, "{}", survival(0.0));
    }

    #[test]
    fn the_mean_of_what_is_left_is_the_area_under_survival() {
        let survival = learned((0..3000).map(|_| (100, false)));
        // All end in 96..128, on the average at 112 by the even spread within a bucket.
        let mean = survival.mean_left(0.0, 1e6);
        assert!((mean - 112.0).abs() < 12.0, "{mean}");
        assert!(survival.mean_left(0.0, 50.0) <= 50.0);
        assert!((96..=128).contains(&survival.exceeded_by(0.5).0));
    }

    #[test]
    fn walking_finds_what_searching_finds() {
        let survival = learned((1..3000).map(|index| (index, index % 3 == 0)));
        let mut walk = survival.walk();
        for point in [0.0, 1.0, 7.5, 8.0, 300.0, 300.0, 5000.0, 200_000.0] {
            assert!((walk.at(point) - survival.at(point)).abs() < 1e-12);
        }
    }
}
