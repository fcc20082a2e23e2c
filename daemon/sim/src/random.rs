//! Randomness with a seed: the same scenario gives the same requests.

use crate::number::{count, float};

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator whose sequence depends on `seed` alone.
    #[must_use]
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Next 64 bits.
    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        float(self.bits() >> 11) / float(1 << 53)
    }

    /// True with `probability`.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponential with mean 1: the gap between two arrivals of a Poisson process of rate 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Standard normal (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Log-normal length with the given median and 95th percentile, at least 1, at most `max`.
    pub(crate) fn length(&mut self, median: u64, p95: u64, max: u64) -> u64 {
        let sigma = (float(p95.max(1)) / float(median.max(1))).ln() / Z95;
        let length = float(median) * (sigma * self.normal()).exp();
        count(length).clamp(1, max.max(1))
    }
}

/// 95th percentile of the standard normal distribution.
const Z95: f64 = 1.644_853_626_951_472_2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_published_generator() {
        // First outputs of the reference implementation (Vigna, splitmix64.c) for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn lengths_have_the_median_and_p95_asked_for() {
        let mut random = Random::new(7);
        let mut lengths: Vec<u64> = (0..20_000).map(|_| random.length(400, 1600, 100_000)).collect();
        lengths.sort_unstable();
        // Standard errors of the order statistics here: about 4 and 30 tokens; allow five of them.
        assert!((380..=420).contains(&lengths[10_000]), "median {}", lengths[10_000]);
        assert!((1450..=1750).contains(&lengths[19_000]), "p95 {}", lengths[19_000]);
    }

    #[test]
    fn lengths_stay_in_their_range() {
        let mut random = Random::new(7);
        assert!((0..1000).map(|_| random.length(2, 100, 50)).all(|length| (1..=50).contains(&length)));
    }
}
