//! How far the daemon's figures were from what was streamed to the clients, while the engine was ready and busy.

use anyhow::{Result, ensure};
use gpuadmit_proto::v1::EngineState;

use crate::record::Sample;

/// Most that the daemon's reckoning may be off on average, share of the pool: twice what is promised, for these machines
/// have more to do than cores.
const MOST_OFF: f64 = 0.03;
/// Share of the time in which the 95 % band must hold what was streamed, likewise.
const LEAST_HELD: f64 = 0.85;
/// Bounds of the ages by which the figures are shown, milliseconds.
const AGES: [u32; 7] = [50, 100, 200, 500, 1000, 2000, u32::MAX];

/// Prints it by the age of vLLM's report, in shares of a pool of `pool` blocks, and holds it against the limits.
pub(crate) fn judged(samples: &[Sample], pool: u32) -> Result<()> {
    let busy: Vec<Sample> = samples
        .iter()
        .filter(|sample| sample.state == EngineState::Ready && sample.streamed > 0)
        .copied()
        .collect();
    println!("mean distance from what was streamed, of the pool:");
    let mut younger = 0;
    for oldest in AGES {
        let of_age = |sample: &&Sample| sample.age_ms.is_some_and(|age| (younger..oldest).contains(&age));
        let some: Vec<Sample> = busy.iter().filter(of_age).copied().collect();
        if !some.is_empty() {
            println!("  reports from {younger} ms on: {}", Distances::of(&some, pool));
        }
        younger = oldest;
    }
    let all = Distances::of(&busy, pool);
    println!("  all: {all}");
    ensure!(all.corrected <= MOST_OFF, "the corrected figure is off by {:.2} %", all.corrected * 100.0);
    ensure!(all.held >= LEAST_HELD, "the band held {:.1} % of the time", all.held * 100.0);
    Ok(())
}

/// Shares, 0 to 1.
struct Distances {
    samples: usize,
    /// vLLM's report from what was streamed when it was made: how good a truth that is.
    reported_then: f64,
    /// vLLM's report from what was streamed.
    reported: f64,
    /// The daemon's figure likewise.
    corrected: f64,
    /// Time in which its band held what was streamed.
    held: f64,
}

impl Distances {
    fn of(samples: &[Sample], pool: u32) -> Self {
        let off = |of: fn(&Sample) -> Option<(u32, u32)>| {
            let distances = samples.iter().filter_map(of).map(|(figure, truth)| figure.abs_diff(truth));
            mean(distances.map(|blocks| f64::from(blocks) / f64::from(pool)))
        };
        let held =
            |sample: &Sample| sample.corrected.map(|(low, _, high)| (low..=high).contains(&sample.streamed));
        Self {
            samples: samples.len(),
            reported_then: off(|sample| sample.reported.zip(sample.streamed_then)),
            reported: off(|sample| Some((sample.reported?, sample.streamed))),
            corrected: off(|sample| Some((sample.corrected?.1, sample.streamed))),
            held: mean(samples.iter().filter_map(held).map(|held| f64::from(u8::from(held)))),
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

impl std::fmt::Display for Distances {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { samples, reported_then, reported, corrected, held } = self;
        let percent = 100.0;
        write!(
            f,
            "reported {:.2} % (of its own moment {:.2} %), corrected {:.2} %; the band held {:.1} % of {samples} samples",
            reported * percent,
            reported_then * percent,
            corrected * percent,
            held * percent
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(reported: u32, corrected: (u32, u32, u32), streamed: u32) -> Sample {
        Sample {
            state: EngineState::Ready,
            reported: Some(reported),
            corrected: Some(corrected),
            streamed,
            streamed_then: Some(reported),
            age_ms: Some(10),
            ..Sample::default()
        }
    }

    #[test]
    fn distances_are_shares_of_the_pool_and_a_band_holds_or_does_not() {
        let samples = [sample(56, (58, 60, 62), 60), sample(56, (58, 60, 62), 64)];
        let all = Distances::of(&samples, 64);
        assert_eq!((all.reported, all.reported_then), (0.09375, 0.0));
        assert_eq!((all.corrected, all.held), (0.03125, 0.5));
        assert!(judged(&samples, 64).is_err());
        assert!(judged(&samples[..1], 64).is_ok());
    }
}
