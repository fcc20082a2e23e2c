//! The band around an estimate, learned from its own errors: how large they usually are of late, and how many times that
//! two quantiles of them are, so that the published band covers what it says it covers.

use std::time::Duration;

use crate::units::{Blocks, count_up};

/// Share of errors beyond each side of a 95 % band.
const TAIL: f64 = 0.025;
/// How far one error moves a quantile, in usual errors.
const STEP: f64 = 0.25;
/// What a quantile is before it was learned, in usual errors: between a normal and a Laplace distribution.
const USUAL: f64 = 2.75;
/// Weight of an error in the usual one: bursts come and go.
const PACE: f64 = 0.08;
/// Least error that is usual, blocks: of rounding.
const LEAST: f64 = 0.25;
/// Age that a fresh reading already has: an engine step and the way to us.
const SETTLING: Duration = Duration::from_millis(50);
/// Readings after which the learned quantiles are trusted alone.
const LEARNED: u32 = 30;

/// Learned error quantiles. Errors grow like the fourth root of age: faster at first than independent arrivals and ends
/// would let them, for a single large request is an error at once, and less later, for requests end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Band {
    /// Truth above the estimate: its upper quantile, in usual errors.
    above: f64,
    /// Truth below the estimate, likewise.
    below: f64,
    /// Usual error, blocks at an age of one second.
    usual: f64,
    errors: u32,
}

impl Default for Band {
    fn default() -> Self {
        Self { above: USUAL, below: USUAL, usual: 0.0, errors: 0 }
    }
}

impl Band {
    fn growth(age: Duration) -> f64 {
        (age + SETTLING).as_secs_f64().sqrt().sqrt()
    }

    /// An estimate of age `age` turned out to be `error` blocks too low (negative: too high).
    pub(crate) fn learn(&mut self, error: f64, age: Duration) {
        let error = error / Self::growth(age);
        if !error.is_finite() {
            return;
        }
        self.errors = self.errors.saturating_add(1);
        if self.errors > 1 {
            let usual = self.usual.max(LEAST);
            // Fixed point: exceeded with probability TAIL (stochastic approximation of a quantile, Robbins & Monro 1951).
            let step = |beyond: bool| STEP * if beyond { 1.0 - TAIL } else { -TAIL };
            self.above = (self.above + step(error > self.above * usual)).max(0.0);
            self.below = (self.below + step(-error > self.below * usual)).max(0.0);
        }
        let pace = (1.0 / f64::from(self.errors)).max(PACE);
        self.usual += (error.abs() - self.usual) * pace;
    }

    /// The moment of a step, 0 to 1 from its end, at which the next error is taken: they are spread evenly (Weyl, by the
    /// golden ratio).
    pub(crate) fn moment(&self) -> f64 {
        (f64::from(self.errors) * 0.618_034).fract()
    }

    /// Whether enough errors are known.
    pub(crate) const fn learned(&self) -> bool {
        self.errors >= LEARNED
    }

    /// How far the truth may be below and above an estimate of age `age`; until enough errors are known not less than
    /// `bound`, which is worked out from what can have changed.
    pub(crate) fn width(&self, age: Duration, bound: Blocks) -> (Blocks, Blocks) {
        let usual = self.usual.max(if self.errors > 0 { LEAST } else { 0.0 }) * Self::growth(age);
        let (below, above) = (count_up(self.below * usual), count_up(self.above * usual));
        if self.learned() {
            return (Blocks(below), Blocks(above));
        }
        (Blocks(below).max(bound), Blocks(above).max(bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A triangular error between -10 and 10 from a fixed linear congruence.
    fn errors() -> impl Iterator<Item = f64> {
        let mut state = 1_u64;
        std::iter::repeat_with(move || {
            let mut uniform = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                crate::units::real(state >> 40) / f64::from(1_u32 << 24)
            };
            (uniform() - uniform()) * 10.0
        })
    }

    #[test]
    fn the_band_comes_to_cover_95_in_100() {
        let (mut band, second) = (Band::default(), Duration::from_secs(1));
        let mut covered = 0;
        for (index, error) in errors().take(22_000).enumerate() {
            if index >= 2000 {
                let (below, above) = band.width(second, Blocks::ZERO);
                let (low, high) = (-crate::units::real(below.0), crate::units::real(above.0));
                covered += u32::from((low..=high).contains(&error));
            }
            band.learn(error, second);
        }
        assert!((18_800..=19_700).contains(&covered), "{covered} of 20,000");
    }

    #[test]
    fn errors_are_taken_at_all_moments_of_a_step() {
        let (mut band, mut tenths) = (Band::default(), [0; 10]);
        for error in errors().take(1000) {
            let tenth = (1..10).filter(|tenth| band.moment() * 10.0 >= f64::from(*tenth)).count();
            tenths[tenth] += 1;
            band.learn(error, Duration::from_secs(1));
        }
        assert!(tenths.iter().all(|count| (95..=105).contains(count)), "{tenths:?}");
    }

    #[test]
    fn it_widens_with_age() {
        let mut band = Band::default();
        for error in errors().take(500) {
            band.learn(error, Duration::from_secs(1));
        }
        let (_, young) = band.width(Duration::from_millis(100), Blocks::ZERO);
        let (_, old) = band.width(Duration::from_secs(9), Blocks::ZERO);
        assert!(old.0 >= young.0 * 2, "{young} {old}");
    }

    #[test]
    fn before_it_has_learned_the_bound_holds() {
        assert_eq!(Band::default().width(Duration::from_secs(1), Blocks(7)), (Blocks(7), Blocks(7)));
    }
}
