//! The load that is offered: the same requests at the same times, whoever decides on them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::{
    task::JoinSet,
    time::{sleep_until, timeout},
};

use crate::{
    engine::Vllm,
    gate::{Gate, Seen, Work},
};

/// Requests under way are finished within this time.
pub(crate) const DRAIN: Duration = Duration::from_mins(8);

/// Requests offered, more of them than a pool can take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Time between two requests.
    pub(crate) apart: Duration,
    /// For how long.
    pub(crate) offered: Duration,
}

/// What a load came to.
pub(crate) struct Outcome {
    /// What the clients saw.
    pub(crate) seen: Seen,
    /// Requests that vLLM preempted meanwhile.
    pub(crate) preempted: u32,
}

impl Outcome {
    /// Preempted share of what was admitted.
    pub(crate) fn preempted_share(&self) -> f64 {
        f64::from(self.preempted) / f64::from(self.seen.admitted.max(1))
    }
}

/// Offers `load` through `gate`, waits for the last request to end, and tells what vLLM did.
pub(crate) async fn offer(gate: &Gate, vllm: &Vllm, load: Load, name: &str) -> Result<Outcome> {
    let before = vllm.metrics().await?.preemptions;
    let started = Instant::now();
    drive(gate, load).await?;
    // The counter tells of a preemption when the request goes on: all have ended, so it has told of all.
    let preempted = vllm.metrics().await?.preemptions - before;
    let outcome = Outcome { seen: gate.seen(), preempted };
    let seen = &outcome.seen;
    println!(
        "{name}: {} forwarded, {} finished, {:?} denied; vLLM preempted {preempted} ({:.1} %) in {:.0} s",
        seen.admitted,
        seen.finished,
        seen.denied,
        outcome.preempted_share() * 100.0,
        started.elapsed().as_secs_f64(),
    );
    ensure!(seen.failures.is_empty(), "requests failed: {:?}", seen.failures);
    ensure!(seen.finished > 0 && seen.finished == seen.admitted, "not all that was admitted finished");
    Ok(outcome)
}

async fn drive(gate: &Gate, load: Load) -> Result<()> {
    let mut clients = JoinSet::new();
    let started = tokio::time::Instant::now();
    let mut due = started;
    for id in 0.. {
        if due - started > load.offered {
            break;
        }
        clients.spawn(gate.clone().serve(work(id)));
        due += load.apart;
        sleep_until(due).await;
    }
    timeout(DRAIN, async { while clients.join_next().await.is_some() {} })
        .await
        .context("requests did not end")
}

/// The `id`-th request: sizes scattered by a fixed rule, every second one free to end before its max_tokens.
fn work(id: u64) -> Work {
    let scattered = u32::try_from(id.wrapping_mul(0x9E37_79B1) >> 8 & 0xFFFF).unwrap_or(0);
    Work {
        id,
        prompt: 32 + scattered % 160,
        max_tokens: 64 + scattered % 320,
        may_stop: id.is_multiple_of(2),
    }
}
