//! The time series: what the daemon said, what vLLM said, and what the clients saw, ten times a second.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use gpuadmit_proto::v1::{EngineState, denied::Reason};
use tokio::{task::JoinHandle, time::interval};
use tonic::transport::Channel;

use crate::{
    daemon,
    engine::{self, Metrics},
    gate::Gate,
};

/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// vLLM itself is asked at every so many-th sample, so that asking costs it little.
const ASK_VLLM_EVERY: u32 = 10;
/// Most samples kept: half an hour.
const SAMPLES_MAX: usize = 18_000;

/// One moment. Missing is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Seconds since the record began.
    pub(crate) at: f64,
    /// The engine's state by the daemon.
    pub(crate) state: EngineState,
    /// Blocks in use as vLLM last reported.
    pub(crate) reported: Option<u32>,
    /// Blocks in use by the daemon's reckoning, and its band.
    pub(crate) corrected: Option<(u32, u32, u32)>,
    /// Blocks if every live reservation grows to all it may.
    pub(crate) committed: Option<u32>,
    /// Blocks filled by what was streamed to the clients, when the daemon put its figures together.
    pub(crate) streamed: u32,
    /// The same when vLLM's report was made.
    pub(crate) streamed_then: Option<u32>,
    /// Age of the daemon's reading, milliseconds.
    pub(crate) age_ms: Option<u32>,
    /// Requests admitted so far.
    pub(crate) admitted: u32,
    /// Requests denied for want of blocks so far.
    pub(crate) denied_kv: u32,
    /// Requests denied for the engine's state so far.
    pub(crate) denied_other: u32,
    /// What vLLM itself says; `None` while it does not answer.
    pub(crate) vllm: Option<Metrics>,
}

/// A running record. Dropping it ends it.
pub(crate) struct Record {
    samples: Arc<Mutex<Vec<Sample>>>,
    task: JoinHandle<()>,
}

impl Record {
    /// Begins to record the engine `id`, whose vLLM listens on `port`.
    pub(crate) fn begin(channel: Channel, gate: Gate, id: String, port: u16) -> Self {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn(run(channel, gate, id, port, Arc::clone(&samples)));
        Self { samples, task }
    }

    /// All samples so far.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(channel: Channel, gate: Gate, id: String, port: u16, samples: Arc<Mutex<Vec<Sample>>>) {
    let began = Instant::now();
    let mut ticks = interval(SAMPLE_EVERY);
    let mut vllm = None;
    let mut asked: u32 = 0;
    loop {
        ticks.tick().await;
        if asked.is_multiple_of(ASK_VLLM_EVERY) {
            vllm =
                tokio::time::timeout(SAMPLE_EVERY * 5, engine::metrics(port)).await.ok().and_then(Result::ok);
        }
        asked = asked.wrapping_add(1);
        let Ok(sample) = take(&channel, &gate, &id).await else { continue };
        let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() < SAMPLES_MAX {
            samples.push(Sample { at: began.elapsed().as_secs_f64(), vllm, ..sample });
        }
    }
}

async fn take(channel: &Channel, gate: &Gate, id: &str) -> Result<Sample> {
    let status = daemon::status(channel).await?;
    // It answers with the figures of a moment ago: the truth of that moment belongs to them.
    let as_of = Instant::now() - Duration::from_millis(status.snapshot_age_ms.unwrap_or(0));
    let seen = gate.seen();
    let denied_kv = seen.denials(Reason::KvFull);
    let clients = Sample {
        streamed: seen.blocks_at(as_of),
        admitted: seen.admitted,
        denied_kv,
        denied_other: seen.denials_all() - denied_kv,
        ..Sample::default()
    };
    let Some(engine) = status.engines.iter().find(|engine| engine.id == id) else { return Ok(clients) };
    let state = engine.state();
    let Some(pool) = engine.pools.first() else { return Ok(Sample { state, ..clients }) };
    let corrected = pool.blocks_corrected_low.zip(pool.blocks_corrected).zip(pool.blocks_corrected_high);
    Ok(Sample {
        state,
        reported: pool.blocks_reported.map(small),
        corrected: corrected.map(|((low, estimate), high)| (small(low), small(estimate), small(high))),
        committed: pool.blocks_committed.map(small),
        streamed_then: pool.age_ms.map(|age| seen.blocks_at(as_of - Duration::from_millis(age))),
        age_ms: pool.age_ms.map(small),
        ..clients
    })
}

fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// The samples as CSV, one line each; an empty field is an unknown value.
pub(crate) fn csv(samples: &[Sample]) -> String {
    let mut out = String::from(
        "seconds,state,blocks_reported,blocks_corrected_low,blocks_corrected,blocks_corrected_high,blocks_committed,\
         blocks_streamed,blocks_streamed_at_report,age_ms,admitted,denied_kv_full,denied_other,vllm_running,vllm_waiting,vllm_preemptions\n",
    );
    let field = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
    for sample in samples {
        let state = sample.state.as_str_name().trim_start_matches("ENGINE_STATE_");
        let fields = [
            field(sample.reported),
            field(sample.corrected.map(|(low, _, _)| low)),
            field(sample.corrected.map(|(_, estimate, _)| estimate)),
            field(sample.corrected.map(|(_, _, high)| high)),
            field(sample.committed),
            sample.streamed.to_string(),
            field(sample.streamed_then),
            field(sample.age_ms),
            sample.admitted.to_string(),
            sample.denied_kv.to_string(),
            sample.denied_other.to_string(),
            field(sample.vllm.map(|vllm| vllm.running)),
            field(sample.vllm.map(|vllm| vllm.waiting)),
            field(sample.vllm.map(|vllm| vllm.preemptions)),
        ];
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{:.2},{state},{}", sample.at, fields.join(","));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_empty_fields() {
        let sample =
            Sample { at: 1.5, state: EngineState::Ready, corrected: Some((1, 2, 3)), ..Sample::default() };
        let text = csv(&[sample]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "1.50,READY,,1,2,3,,0,,,0,0,0,,,");
        assert_eq!(lines[0].matches(',').count(), lines[1].matches(',').count());
    }
}
