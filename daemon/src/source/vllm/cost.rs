//! What a scrape costs the engine, and how often it may cost that.
//!
//! The cost is known, not measured: elapsed time is the engine's event loop being busy, not CPU spent on us. Of vLLM
//! 0.32 on a 2-core machine: a filtered `/metrics` takes 1.2 ms of the API server's CPU, with histograms 1.8 ms, a full
//! one of 50 KB 5 to 8 ms.

use std::time::Duration;

/// CPU time of a filtered scrape.
pub const FILTERED: Duration = Duration::from_micros(1200);
/// CPU time of a filtered scrape that has the histograms in it.
pub const FILTERED_WITH_HISTOGRAMS: Duration = Duration::from_micros(2000);
/// CPU time of a full scrape of [`FULL_BYTES`].
pub const FULL: Duration = Duration::from_millis(6);
/// Body that [`FULL`] was measured with.
pub const FULL_BYTES: u32 = 50 * 1024;

/// CPU time of a full scrape with a body of `bytes`; at least that of [`FULL_BYTES`].
#[must_use]
pub fn full(bytes: usize) -> Duration {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(FULL_BYTES);
    FULL.mul_f64(f64::from(bytes) / f64::from(FULL_BYTES))
}

/// How often to scrape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Most of one core that scraping may cost the engine, share above 0 up to 1.
    pub cpu_share: f64,
    /// Shortest interval.
    pub min_interval: Duration,
    /// Longest interval.
    pub max_interval: Duration,
}

impl Pace {
    /// The interval at which scrapes of `cost` take at most the share, within the bounds.
    #[must_use]
    pub fn interval(&self, cost: Duration) -> Duration {
        let share = if self.cpu_share > 0.0 { self.cpu_share } else { f64::MIN_POSITIVE };
        let interval = Duration::try_from_secs_f64(cost.as_secs_f64() / share).unwrap_or(Duration::MAX);
        interval.min(self.max_interval).max(self.min_interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Pace = Pace {
        cpu_share: 0.01,
        min_interval: Duration::from_millis(50),
        max_interval: Duration::from_secs(1),
    };

    #[test]
    fn a_scrape_costs_its_share_of_a_core_at_most() {
        assert_eq!(DEFAULT.interval(FILTERED), Duration::from_millis(120));
        assert_eq!(DEFAULT.interval(full(50 * 1024)), Duration::from_millis(600));
        assert_eq!(DEFAULT.interval(full(75 * 1024)), Duration::from_millis(900));
    }

    #[test]
    fn the_interval_stays_within_its_bounds() {
        assert_eq!(DEFAULT.interval(Duration::ZERO), DEFAULT.min_interval);
        assert_eq!(DEFAULT.interval(full(usize::MAX)), DEFAULT.max_interval);
        for cpu_share in [0.0, -1.0, f64::NAN] {
            assert_eq!(Pace { cpu_share, ..DEFAULT }.interval(FILTERED), DEFAULT.max_interval);
        }
    }

    #[test]
    fn a_small_full_body_is_not_believed_to_be_cheap() {
        assert_eq!(full(510), FULL);
    }
}
