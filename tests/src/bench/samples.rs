//! Durations of many calls.

use std::time::{Duration, Instant};

/// Durations in nanoseconds, in the order of the calls; one of more than four seconds counts as four.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<u32>);

impl Samples {
    /// None yet; room for `count`, so that collecting allocates nothing.
    #[must_use]
    pub fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    /// Adds the time since `start`.
    pub fn since(&mut self, start: Instant) {
        self.push(start.elapsed());
    }

    /// Adds one.
    pub fn push(&mut self, duration: Duration) {
        self.0.push(u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Adds all of another set.
    pub fn append(&mut self, other: &mut Self) {
        self.0.append(&mut other.0);
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Call by call the faster of two runs of the same calls: what is slow in both is the program's doing, what is slow
    /// in one is the machine's.
    #[must_use]
    pub fn faster_of(self, other: &Self) -> Self {
        Self(self.0.into_iter().zip(&other.0).map(|(one, other)| one.min(*other)).collect())
    }

    /// Mean; zero of none.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let sum: u64 = self.0.iter().map(|ns| u64::from(*ns)).sum();
        let count = u64::try_from(self.0.len()).unwrap_or(u64::MAX);
        Duration::from_nanos(sum.checked_div(count).unwrap_or(0))
    }

    /// The slowest; zero of none.
    #[must_use]
    pub fn worst(&self) -> Duration {
        Duration::from_nanos(self.0.iter().max().copied().unwrap_or(0).into())
    }

    /// Sorted, to ask for quantiles.
    #[must_use]
    pub fn sorted(mut self) -> Sorted {
        self.0.sort_unstable();
        Sorted(self.0)
    }
}

/// Sorted durations.
#[derive(Clone, Debug)]
pub struct Sorted(Vec<u32>);

impl Sorted {
    /// The smallest duration that `per_mille` thousandths of the calls do not exceed (nearest rank); zero of none.
    #[must_use]
    pub fn quantile(&self, per_mille: usize) -> Duration {
        let rank = (self.0.len() * per_mille).div_ceil(1_000).max(1);
        Duration::from_nanos(self.0.get(rank - 1).copied().unwrap_or(0).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ns: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::default();
        ns.into_iter().for_each(|ns| samples.push(Duration::from_nanos(ns)));
        samples
    }

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let sorted = of((1..=1_000).rev()).sorted();
        assert_eq!(sorted.quantile(500), Duration::from_nanos(500));
        assert_eq!(sorted.quantile(990), Duration::from_nanos(990));
        assert_eq!(sorted.quantile(999), Duration::from_nanos(999));
        assert_eq!(of([7]).sorted().quantile(999), Duration::from_nanos(7));
        assert_eq!(of([]).sorted().quantile(500), Duration::ZERO);
    }

    #[test]
    fn a_call_that_was_slow_only_once_is_forgiven() {
        let merged = of([10, 900, 30]).faster_of(&of([10, 20, 800]));
        assert_eq!((merged.worst(), merged.mean()), (Duration::from_nanos(30), Duration::from_nanos(20)));
    }
}
