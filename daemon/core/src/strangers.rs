//! How many requests come to an engine by other ways than ours: so many per second, and so many per request that asks us,
//! for what makes ours come makes others come as well. Both are learned by least squares from what readings showed to have
//! come; where the two do not go together, the second is found to be nothing.

use std::time::Duration;

use crate::units::real;

/// Time after which an older reading weighs 1/e.
const MEMORY: Duration = Duration::from_mins(5);
/// Readings are of one kind when their determinant is below this share of what it could be; then only the number per
/// second follows from them.
const ALIKE: f64 = 1e-3;

/// The two numbers, as weighted sums of what came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Strangers {
    time_time: f64,
    time_asks: f64,
    asks_asks: f64,
    time_came: f64,
    asks_came: f64,
}

impl Strangers {
    /// `came` of them in `elapsed`, in which `asks` asked us.
    pub(crate) fn learn(&mut self, elapsed: Duration, asks: u64, came: u64) {
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let (asks, came) = (real(asks), real(came));
        let keep = (-seconds / MEMORY.as_secs_f64()).exp();
        // Numbers vary as their expectations, and those go with time.
        let weight = 1.0 / seconds;
        for (sum, value) in [
            (&mut self.time_time, seconds * seconds),
            (&mut self.time_asks, seconds * asks),
            (&mut self.asks_asks, asks * asks),
            (&mut self.time_came, seconds * came),
            (&mut self.asks_came, asks * came),
        ] {
            *sum = *sum * keep + weight * value;
        }
    }

    /// Per second, and per ask.
    fn both(&self) -> (f64, f64) {
        if self.time_time <= 0.0 {
            return (0.0, 0.0);
        }
        let per_second = (self.time_came / self.time_time, 0.0);
        let most = self.time_time * self.asks_asks;
        let determinant = most - self.time_asks * self.time_asks;
        if determinant <= most * ALIKE {
            return per_second;
        }
        let of_time = self.time_came * self.asks_asks - self.asks_came * self.time_asks;
        let of_asks = self.asks_came * self.time_time - self.time_came * self.time_asks;
        if of_asks < 0.0 {
            return per_second;
        }
        if of_time < 0.0 {
            return (0.0, self.asks_came / self.asks_asks);
        }
        (of_time / determinant, of_asks / determinant)
    }

    /// How many are expected in `elapsed`, in which `asks` asked us.
    pub(crate) fn expected(&self, elapsed: Duration, asks: u64) -> f64 {
        let (per_second, per_ask) = self.both();
        per_second * elapsed.as_secs_f64() + per_ask * real(asks)
    }

    /// How many come in `time` on the average.
    pub(crate) fn usual(&self, time: Duration) -> f64 {
        if self.time_time > 0.0 { self.time_came / self.time_time * time.as_secs_f64() } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn those_who_come_when_ours_do_are_told_from_those_who_come_anyway() {
        let mut strangers = Strangers::default();
        for second in 0..300_u64 {
            let asks = second * 7 % 12;
            // Two a second, and one for each three of ours.
            strangers.learn(SECOND, asks, 2 + (asks + second / 12 % 3) / 3);
        }
        assert!((strangers.expected(SECOND * 10, 0) - 20.0).abs() < 2.0);
        assert!((strangers.expected(Duration::ZERO, 30) - 10.0).abs() < 2.0);
    }

    #[test]
    fn at_a_steady_pace_time_alone_tells() {
        let mut strangers = Strangers::default();
        for _ in 0..100 {
            strangers.learn(SECOND, 5, 3);
        }
        assert!((strangers.expected(SECOND * 2, 50) - 6.0).abs() < 1e-6);
        assert!((strangers.usual(SECOND) - 3.0).abs() < 1e-6);
        assert_eq!(Strangers::default().usual(SECOND), 0.0);
        assert_eq!(Strangers::default().expected(SECOND, 9), 0.0);
    }
}
