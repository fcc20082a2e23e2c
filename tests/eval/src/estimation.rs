//! How far off an estimate of the blocks in use is, beside the raw gauge and beside the ledger alone.

use gpuadmit_core::observation::RankReading;

use crate::{engine::EngineSetup, policy::Estimate, time::Nanos};

/// One look at a random moment, in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) at: Nanos,
    /// When the figures of the last scrape that has come were taken, at the earliest.
    pub(crate) scraped_at: Nanos,
    pub(crate) truth: u64,
    pub(crate) estimate: Estimate,
    /// The last scrape's gauge.
    pub(crate) gauge: Option<u64>,
    /// What the gateway's own streams hold, each token known.
    pub(crate) ledger: u64,
}

/// The gauge in blocks.
pub(crate) fn raw_gauge(reading: &RankReading, setup: &EngineSetup) -> Option<u64> {
    reading.kv_usage.map(|usage| (usage * setup.blocks as f64).round() as u64)
}

/// Mean and 99th percentile of the absolute error, in percent of the pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Error {
    pub(crate) mean: f64,
    pub(crate) p99: f64,
}

impl Error {
    fn of(mut errors: Vec<f64>) -> Self {
        errors.sort_by(f64::total_cmp);
        let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        Self { mean, p99: quantile(&errors, 0.99) }
    }
}

/// Of ascending values; 0 of none.
pub(crate) fn quantile(ascending: &[f64], share: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    ascending.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
}

/// All looks of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimation {
    pub(crate) corrected: Error,
    /// Mean signed error of the corrected use, percent of the pool: positive is too high.
    pub(crate) bias: f64,
    pub(crate) gauge: Error,
    pub(crate) ledger: Error,
    /// Share of looks in which the truth lay within the band.
    pub(crate) coverage: f64,
    /// Mean width of the band, percent of the pool.
    pub(crate) width: f64,
}

impl Estimation {
    pub(crate) fn of(looks: &[Look], blocks: u64) -> Self {
        let percent = |one: u64, other: u64| (one as f64 - other as f64) / blocks as f64 * 100.0;
        let errors = |value: &dyn Fn(&Look) -> u64| {
            Error::of(looks.iter().map(|look| percent(value(look), look.truth).abs()).collect())
        };
        let share = |sum: f64| sum / looks.len().max(1) as f64;
        let within = |look: &&Look| (look.estimate.low..=look.estimate.high).contains(&look.truth);
        Self {
            corrected: errors(&|look| look.estimate.middle),
            bias: share(looks.iter().map(|look| percent(look.estimate.middle, look.truth)).sum()),
            gauge: errors(&|look| look.gauge.unwrap_or(0)),
            ledger: errors(&|look| look.ledger),
            coverage: share(looks.iter().filter(within).count() as f64),
            width: share(looks.iter().map(|look| percent(look.estimate.high, look.estimate.low)).sum()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_in_percent_of_the_pool() {
        let look = |truth, low, middle, high| Look {
            at: 0,
            scraped_at: 0,
            truth,
            estimate: Estimate { low, middle, high },
            gauge: Some(10),
            ledger: 0,
        };
        let estimation = Estimation::of(&[look(20, 15, 22, 30), look(40, 41, 44, 50)], 200);
        // Errors of 2 and 4 blocks of 200.
        assert!((estimation.corrected.mean - 1.5).abs() < 1e-9);
        assert!((estimation.gauge.mean - 10.0).abs() < 1e-9);
        assert!((estimation.ledger.p99 - 20.0).abs() < 1e-9);
        assert!((estimation.coverage - 0.5).abs() < 1e-9);
    }
}
