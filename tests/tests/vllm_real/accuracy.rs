//! How far the daemon's figures were from what was streamed to the clients, while the engine was ready and busy.

use gpuadmit_proto::v1::EngineState;

use crate::record::Sample;

/// Prints it, in shares of a pool of `pool` blocks.
pub(crate) fn report(samples: &[Sample], pool: u32) {
    let busy: Vec<&Sample> =
        samples.iter().filter(|sample| sample.state == EngineState::Ready && sample.streamed > 0).collect();
    let mean = |values: Vec<f64>| {
        let count = u32::try_from(values.len()).unwrap_or(u32::MAX).max(1);
        values.iter().sum::<f64>() / f64::from(count) * 100.0
    };
    let error = |figure: fn(&Sample) -> Option<u32>| {
        let distances = busy.iter().filter_map(|sample| Some(figure(sample)?.abs_diff(sample.streamed)));
        mean(distances.map(|blocks| f64::from(blocks) / f64::from(pool)).collect())
    };
    let bands = busy.iter().filter_map(|sample| Some((sample.corrected?, sample.streamed)));
    let held = bands.map(|((low, _, high), streamed)| f64::from(u8::from((low..=high).contains(&streamed))));
    println!(
        "mean distance from what was streamed, of the pool: reported {:.2} %, corrected {:.2} %; the band held {:.1} % of the time",
        error(|sample| sample.reported),
        error(|sample| sample.corrected.map(|(_, now, _)| now)),
        mean(held.collect()),
    );
}
