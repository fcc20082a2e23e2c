//! An engine is found with nothing configured, and kept from overflowing.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use gpuadmit_proto::v1::{Engine, EngineState, Mode, denied::Reason};

use crate::{
    accuracy,
    daemon::{Daemon, engine_when},
    engine::Vllm,
    gate::{BLOCK_SIZE, Gate},
    load::{self, Load, Outcome},
    record::Record,
};

/// Requests that vLLM preempts of a load at least if all are forwarded; else the load shows nothing.
const LEAST_PREEMPTED: u32 = 20;
/// Share of what is admitted as installed that may come to be preempted (`risk_standard`),
const ACCEPTED_RISK: f64 = 0.06;
/// and of what is preempted of the same load with nobody asked.
const MOST_LEFT: f64 = 0.1;
/// Every request counts with all that it may generate. Nothing is learned for the daemon that comes after.
const NO_RISK: &str = "[admission]\nrisk_standard = 0.0\n[state]\nenabled = false\n";

/// A pool and a load that is too much for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bout {
    /// Blocks that can hold tokens: vLLM's null block left out.
    pub(crate) pool: u32,
    /// The load.
    pub(crate) load: Load,
}

/// Whether an engine is ready, with a known pool.
pub(crate) fn ready(engine: &Engine) -> bool {
    let pool_known = engine.pools.first().is_some_and(|pool| pool.blocks_total.is_some());
    engine.state() == EngineState::Ready && engine.headroom.is_some() && pool_known
}

/// Discovery finds the engine and all that is known of it, with nothing configured.
pub(crate) async fn found(daemon: &Daemon, id: &str, vllm: &Vllm, pool_blocks: u32) -> Result<()> {
    let engine =
        engine_when(&daemon.channel(), id, Duration::from_secs(20), "ready with a known pool", ready).await?;
    println!("found: {engine:#?}");
    ensure!(engine.models == [vllm.model.clone()], "models {:?}", engine.models);
    ensure!(engine.address == format!("http://127.0.0.1:{}", vllm.port), "address {}", engine.address);
    ensure!(engine.max_model_len == Some(2048), "max_model_len {:?}", engine.max_model_len);
    ensure!(engine.mode() == Mode::Enforce, "mode {:?}: its version is not known", engine.mode());
    ensure!(
        engine.version.as_deref().is_some_and(|version| version.contains("0.32.0")),
        "version {:?}",
        engine.version
    );
    ensure!(engine.pools.len() == 1, "{} pools", engine.pools.len());
    let pool = engine.pools.first().context("no pool")?;
    ensure!(pool.blocks_total == Some(pool_blocks.into()), "blocks {:?}", pool.blocks_total);
    ensure!(pool.block_size == Some(BLOCK_SIZE.into()), "block size {:?}", pool.block_size);
    Ok(())
}

/// With nobody asked, the load overflows the pool over and over; with no risk accepted, never.
pub(crate) async fn compared(folder: &Path, vllm: &Vllm, id: &str, bout: Bout) -> Result<Outcome> {
    let open = load::offer(&Gate::open(vllm.port, &vllm.model), vllm, bout.load, "nobody asked").await?;
    ensure!(open.preempted >= LEAST_PREEMPTED, "only {} preempted: the load shows nothing", open.preempted);
    let daemon = Daemon::configured(folder, "no-risk", NO_RISK).await?;
    engine_when(&daemon.channel(), id, Duration::from_secs(20), "ready", ready).await?;
    let gate = Gate::new(daemon.channel(), vllm.port, &vllm.model);
    let worst_case = load::offer(&gate, vllm, bout.load, "no risk accepted").await?;
    ensure!(worst_case.preempted == 0, "{} preempted though no risk is accepted", worst_case.preempted);
    daemon.stop().await?;
    Ok(open)
}

/// The same load as installed: most of what fits is admitted, next to nothing is preempted, and the figures are right.
pub(crate) async fn loaded(
    gate: &Gate,
    vllm: &Vllm,
    record: &Record,
    open: &Outcome,
    bout: Bout,
) -> Result<()> {
    let gated = load::offer(gate, vllm, bout.load, "as installed").await?;
    let seen = &gated.seen;
    let denials = seen.denials(Reason::KvFull);
    ensure!(denials > 0, "nothing was denied for want of blocks");
    ensure!(seen.denials_all() == denials, "denied for other reasons: {:?}", seen.denied);
    ensure!(
        seen.retry_hints == denials,
        "only {} of {denials} denials say when to come back",
        seen.retry_hints
    );

    let samples = record.samples();
    let first_denial =
        samples.iter().find(|sample| sample.denied_kv > 0).context("no sample after a denial")?;
    let first_reported = first_denial.reported.context("use unknown at the first denial")?;
    let peak = samples.iter().filter_map(|sample| sample.reported).max().context("use never known")?;
    println!("blocks in use: {first_reported} at the first denial, {peak} at most, of {}", bout.pool);
    let accurate = accuracy::judged(&samples, bout.pool);
    ensure!(first_reported < bout.pool, "the pool was full before denials began");
    let most = (f64::from(open.preempted) * MOST_LEFT).min(f64::from(seen.admitted) * ACCEPTED_RISK);
    ensure!(f64::from(gated.preempted) <= most, "{} preempted; at most {most:.1} may be", gated.preempted);
    accurate
}
