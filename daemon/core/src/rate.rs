//! Rates measured from counters and completions, forgetting with time.

use std::time::Duration;

use libm::exp;

use crate::units::{Blocks, Mono, real};

/// Time over which a measured rate forgets where nothing else is said.
const MEMORY: Duration = Duration::from_secs(10);
/// A predicted wait is never shorter than this: one round trip and an engine step.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);
/// A predicted wait is never longer than this: beyond it the prediction says nothing.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A mean that gives each observation the weight of the time it covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean {
    value: Option<f64>,
    memory: Duration,
}

impl Default for Mean {
    fn default() -> Self {
        Self::over(MEMORY)
    }
}

impl Mean {
    /// A mean that forgets over `memory`.
    pub(crate) const fn over(memory: Duration) -> Self {
        Self { value: None, memory }
    }

    /// Takes in `value`, which held during `elapsed`.
    pub(crate) fn take(&mut self, value: f64, elapsed: Duration) {
        if !value.is_finite() {
            return;
        }
        let weight = 1.0 - exp(-elapsed.as_secs_f64() / self.memory.as_secs_f64());
        self.value = Some(match self.value {
            None => value,
            Some(old) => old + (value - old) * weight,
        });
    }

    pub(crate) const fn get(&self) -> Option<f64> {
        self.value
    }
}

/// How fast reservations give blocks back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drain {
    /// Blocks per second at `last`.
    rate: f64,
    last: Mono,
}

impl Drain {
    fn decay(&self, now: Mono) -> f64 {
        exp(-now.since(self.last).as_secs_f64() / MEMORY.as_secs_f64())
    }

    /// `blocks` were given back.
    pub(crate) fn release(&mut self, now: Mono, blocks: Blocks) {
        self.rate = self.rate * self.decay(now) + real(blocks.0) / MEMORY.as_secs_f64();
        self.last = now;
    }

    /// Blocks per second.
    pub(crate) fn rate(&self, now: Mono) -> f64 {
        self.rate * self.decay(now)
    }

    /// When `missing` blocks will have been given back; `None` when nothing has been for long.
    pub(crate) fn wait_for(&self, now: Mono, missing: Blocks) -> Option<Duration> {
        let seconds = real(missing.0.max(1)) / self.rate(now);
        if !seconds.is_finite() || seconds > 10.0 * LONGEST_WAIT.as_secs_f64() {
            return None;
        }
        Some(Duration::from_secs_f64(seconds).clamp(SHORTEST_WAIT, LONGEST_WAIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn a_steady_drain_predicts_the_time_for_the_missing_blocks() {
        let mut drain = Drain::default();
        for tick in 0..1000_u32 {
            drain.release(at(f64::from(tick) * 0.1), Blocks(4)); // 40 blocks a second
        }
        let wait = drain.wait_for(at(99.9), Blocks(80)).unwrap().as_secs_f64();
        assert!((wait - 2.0).abs() < 0.05, "{wait}");
    }

    #[test]
    fn a_drain_that_stopped_predicts_ever_longer_waits_and_then_nothing() {
        let mut drain = Drain::default();
        assert_eq!(drain.wait_for(at(0.0), Blocks(1)), None);
        drain.release(at(0.0), Blocks(100));
        let soon = drain.wait_for(at(1.0), Blocks(10)).unwrap();
        let later = drain.wait_for(at(10.0), Blocks(10)).unwrap();
        assert!(later > soon);
        assert_eq!(drain.wait_for(at(600.0), Blocks(10)), None);
    }

    #[test]
    fn a_mean_follows_within_its_memory() {
        let mut mean = Mean::default();
        assert_eq!(mean.get(), None);
        mean.take(f64::NAN, Duration::from_secs(1));
        assert_eq!(mean.get(), None);
        mean.take(10.0, Duration::from_secs(1));
        mean.take(20.0, MEMORY);
        let value = mean.get().unwrap();
        assert!((value - (20.0 - 10.0 / std::f64::consts::E)).abs() < 1e-9, "{value}");
    }
}
