//! Numbers from fixed ranges.

use crate::{
    random::Random,
    time::{Nanos, SECOND},
};

/// `seconds` as virtual time, to the nearest nanosecond.
pub(super) fn exact(seconds: f64) -> Nanos {
    (seconds * SECOND as f64).round() as Nanos
}

/// Uniform in the logarithm.
pub(super) fn log_uniform(random: &mut Random, (low, high): (f64, f64)) -> f64 {
    libm::exp(random.between(libm::log(low), libm::log(high))).clamp(low, high)
}

/// To three significant digits: a figure that a person can read.
pub(super) fn short(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let digits = 2 - libm::floor(libm::log10(value)) as i32;
    let (scale, up) = (10_f64.powi(digits.abs()), digits >= 0);
    if up { (value * scale).round() / scale } else { (value / scale).round() * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_stay() {
        assert_eq!([0.012_345, 1.2345, 999.6, 123_456.0].map(short), [0.0123, 1.23, 1000.0, 123_000.0]);
    }

    #[test]
    fn a_range_is_filled_evenly_in_the_logarithm() {
        let mut random = Random::new(1, 1);
        let draws: Vec<_> = (0..4000).map(|_| log_uniform(&mut random, (4.0, 1024.0))).collect();
        let below = draws.iter().filter(|draw| **draw < 64.0).count();
        assert!((1850..2150).contains(&below), "{below}");
        assert!(draws.iter().all(|draw| (4.0..=1024.0).contains(draw)));
    }
}
