//! When requests arrive: a Poisson process whose rate changes with time.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// How the rate of arrivals changes; its mean stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pattern {
    /// It does not.
    Poisson,
    /// Calm and burst alternate, each exponentially distributed in length; a burst has `ratio` times the rate of calm.
    Bursts { calm_s: f64, burst_s: f64, ratio: f64 },
    /// From this share of the mean at the start to as much above it at the end, or the other way round.
    Ramp { from: f64 },
    /// A wave between 1 − `depth` and 1 + `depth`.
    Diurnal { period_s: f64, depth: f64 },
}

impl Pattern {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Poisson => "steady",
            Self::Bursts { .. } => "bursts",
            Self::Ramp { .. } => "ramp",
            Self::Diurnal { .. } => "wave",
        }
    }

    /// Arrivals in [`from`, `to`), seconds, `rate` a second on average.
    pub(crate) fn times(self, (from, to): (f64, f64), rate: f64, random: &mut Random) -> Vec<f64> {
        // Its first spell is calm.
        let mut bursts = Bursts { burst: true, until: from };
        let peak = rate * self.highest();
        let (mut times, mut at) = (Vec::new(), from);
        loop {
            at += random.exponential(1.0 / peak);
            if at >= to {
                return times;
            }
            let relative = match self {
                Self::Bursts { calm_s, burst_s, ratio } => {
                    let calm = (calm_s + burst_s) / (calm_s + ratio * burst_s);
                    if bursts.at(at, calm_s, burst_s, random) { ratio * calm } else { calm }
                }
                _ => self.relative((at - from) / (to - from), at),
            };
            // Thinning: an arrival of the highest rate stays with the share that the rate has of it.
            if random.unit() * self.highest() < relative {
                times.push(at);
            }
        }
    }

    /// The rate relative to its mean after the share `passed` of the time.
    fn relative(self, passed: f64, at: f64) -> f64 {
        match self {
            Self::Poisson | Self::Bursts { .. } => 1.0,
            Self::Ramp { from } => from + (2.0 - 2.0 * from) * passed,
            Self::Diurnal { period_s, depth } => {
                1.0 + depth * libm::sin(std::f64::consts::TAU * at / period_s)
            }
        }
    }

    /// The highest rate relative to its mean.
    fn highest(self) -> f64 {
        match self {
            Self::Poisson => 1.0,
            Self::Bursts { calm_s, burst_s, ratio } => {
                ratio * (calm_s + burst_s) / (calm_s + ratio * burst_s)
            }
            Self::Ramp { from } => from.max(2.0 - from),
            Self::Diurnal { depth, .. } => 1.0 + depth,
        }
    }
}

/// Calm and burst in turn.
struct Bursts {
    burst: bool,
    until: f64,
}

impl Bursts {
    /// Whether there is a burst at `at`, which never goes back.
    fn at(&mut self, at: f64, calm_s: f64, burst_s: f64, random: &mut Random) -> bool {
        while self.until <= at {
            self.burst = !self.burst;
            self.until += random.exponential(if self.burst { burst_s } else { calm_s });
        }
        self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_keeps_its_mean_rate() {
        let patterns = [
            Pattern::Poisson,
            Pattern::Bursts { calm_s: 20.0, burst_s: 5.0, ratio: 6.0 },
            Pattern::Ramp { from: 0.2 },
            Pattern::Ramp { from: 1.7 },
            Pattern::Diurnal { period_s: 100.0, depth: 0.8 },
        ];
        for pattern in patterns {
            let times = pattern.times((0.0, 10_000.0), 2.0, &mut Random::new(1, 1));
            let rate = times.len() as f64 / 10_000.0;
            assert!((1.85..2.15).contains(&rate), "{pattern:?}: {rate}");
            assert!(times.is_sorted() && times.iter().all(|at| (0.0..10_000.0).contains(at)));
        }
    }

    #[test]
    fn a_ramp_rises_and_a_wave_ebbs() {
        let count = |pattern: Pattern, from: f64, to: f64| {
            let times = pattern.times((0.0, 1000.0), 10.0, &mut Random::new(2, 1));
            times.iter().filter(|at| (from..to).contains(*at)).count() as f64
        };
        let ramp = Pattern::Ramp { from: 0.2 };
        let rise = count(ramp, 900.0, 1000.0) / count(ramp, 0.0, 100.0);
        // 1.72 of the mean in the last tenth against 0.28 in the first.
        assert!((4.8..7.8).contains(&rise), "{rise}");
        let wave = Pattern::Diurnal { period_s: 1000.0, depth: 0.8 };
        let ebb = count(wave, 0.0, 500.0) / count(wave, 500.0, 1000.0);
        // 1 + 0.8 × 2/π against 1 − 0.8 × 2/π.
        assert!((2.7..3.5).contains(&ebb), "{ebb}");
    }
}
