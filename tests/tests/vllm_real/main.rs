//! A real vLLM under load with the daemon beside it and no configuration. Run by `make test-vllm`.
//!
//! What is true is taken from outside the daemon: from what was streamed to the clients and from vLLM's own counters.

mod accuracy;
mod daemon;
mod engine;
mod gate;
mod http;
mod load;
mod plot;
mod record;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use gpuadmit_proto::v1::{Engine, EngineState, Mode, denied::Reason};
use nix::sys::signal::Signal;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    daemon::{Daemon, engine_when},
    engine::Vllm,
    gate::{BLOCK_SIZE, Gate, Work},
    load::{DRAIN, Outcome},
    record::Record,
};

/// Blocks of the pool that can hold tokens: 128 less vLLM's null block.
const POOL_BLOCKS: u32 = 127;
/// The whole test, loading included.
const TEST_TIMEOUT: Duration = Duration::from_mins(18);
/// Time between two requests of the load: more than the engine can take.
const ARRIVALS: Duration = Duration::from_millis(300);
/// Requests that vLLM preempts of that load at least if all are forwarded; else the load shows nothing.
const LEAST_PREEMPTED: u32 = 20;
/// Share of what is admitted as installed that may come to be preempted (`risk_standard`),
const ACCEPTED_RISK: f64 = 0.06;
/// and of what is preempted of the same load with the gate open.
const MOST_LEFT: f64 = 0.1;
/// Every request counts with all that it may generate. Nothing is learned for the daemon that comes after.
const NO_RISK: &str = "[admission]\nrisk_standard = 0.0\n[state]\nenabled = false\n";
/// A state lasts at least this long in the record, so that the plot shows it.
const SHOWN: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn a_real_engine_is_found_kept_from_overflowing_and_its_freeze_and_death_are_noticed() {
    let outcome =
        timeout(TEST_TIMEOUT, run()).await.context("the test took too long").and_then(|outcome| outcome);
    if let Err(error) = outcome {
        panic!("{error:#}");
    }
}

async fn run() -> Result<()> {
    let folder = output_folder()?;
    let mut vllm = Vllm::start(&folder.join("vllm.log"))?;
    vllm.ready().await?;
    let id = format!("vllm-{}", vllm.port);
    let open = compared(&folder, &vllm, &id).await?;
    let daemon = Daemon::start(&folder).await?;
    let gate = Gate::new(daemon.channel(), vllm.port, &vllm.model);
    let record = Record::begin(daemon.channel(), gate.clone(), id.clone(), vllm.port);
    let outcome = async {
        found(&daemon, &id, &vllm).await?;
        loaded(&gate, &vllm, &record, &open).await?;
        empty_again(&daemon, &id).await?;
        frozen(&daemon, &id, &gate, &vllm).await?;
        empty_again(&daemon, &id).await?;
        killed(&daemon, &id, &gate, &vllm).await
    }
    .await;
    let samples = record.samples();
    std::fs::write(folder.join("admission.csv"), record::csv(&samples))?;
    std::fs::write(folder.join("admission.svg"), plot::svg(&samples, POOL_BLOCKS))?;
    println!("time series and plot: {}", folder.display());
    println!("gpuadmitd resident: {} KiB", daemon.resident_kib()?);
    outcome?;
    daemon.stop().await
}

/// `target/vllm`, emptied of an earlier run's files by overwriting them.
fn output_folder() -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("no target folder")?;
    let folder = target.join("vllm");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Whether an engine is ready, with a known pool.
fn ready(engine: &Engine) -> bool {
    let pool_known = engine.pools.first().is_some_and(|pool| pool.blocks_total.is_some());
    engine.state() == EngineState::Ready && engine.headroom.is_some() && pool_known
}

/// Discovery finds the engine and all that is known of it, with nothing configured.
async fn found(daemon: &Daemon, id: &str, vllm: &Vllm) -> Result<()> {
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
    ensure!(pool.blocks_total == Some(POOL_BLOCKS.into()), "blocks {:?}", pool.blocks_total);
    ensure!(pool.block_size == Some(BLOCK_SIZE.into()), "block size {:?}", pool.block_size);
    Ok(())
}

/// The same load with the gate open, with no risk accepted and as installed: vLLM preempts many, none, and next to none.
async fn loaded(gate: &Gate, vllm: &Vllm, record: &Record, open: &Outcome) -> Result<()> {
    let gated = load::offer(gate, vllm, ARRIVALS, "as installed").await?;
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
    println!("blocks in use: {first_reported} at the first denial, {peak} at most, of {POOL_BLOCKS}");
    accuracy::report(&samples, POOL_BLOCKS);
    ensure!(first_reported < POOL_BLOCKS, "the pool was full before denials began");
    let most = (f64::from(open.preempted) * MOST_LEFT).min(f64::from(seen.admitted) * ACCEPTED_RISK);
    ensure!(f64::from(gated.preempted) <= most, "{} preempted; at most {most:.1} may be", gated.preempted);
    Ok(())
}

/// With nobody asked, the load overflows the pool over and over; with no risk accepted, never.
async fn compared(folder: &Path, vllm: &Vllm, id: &str) -> Result<Outcome> {
    let open = load::offer(&Gate::open(vllm.port, &vllm.model), vllm, ARRIVALS, "gate open").await?;
    ensure!(open.preempted >= LEAST_PREEMPTED, "only {} preempted: the load shows nothing", open.preempted);
    let daemon = Daemon::configured(folder, "no-risk", NO_RISK).await?;
    engine_when(&daemon.channel(), id, Duration::from_secs(20), "ready", ready).await?;
    let gate = Gate::new(daemon.channel(), vllm.port, &vllm.model);
    let worst_case = load::offer(&gate, vllm, ARRIVALS, "no risk accepted").await?;
    ensure!(worst_case.preempted == 0, "{} preempted though no risk is accepted", worst_case.preempted);
    daemon.stop().await?;
    Ok(open)
}

/// With nothing running, the ledger holds nothing and the whole pool can be promised again.
async fn empty_again(daemon: &Daemon, id: &str) -> Result<()> {
    let whole = |engine: &Engine| {
        let room = engine.headroom.map_or(0, |headroom| headroom.blocks);
        engine.state() == EngineState::Ready && engine.reservations == 0 && room == u64::from(POOL_BLOCKS)
    };
    engine_when(&daemon.channel(), id, Duration::from_secs(15), "empty and ready again", whole).await?;
    Ok(())
}

/// A stopped EngineCore, whose port and metrics go on answering, is suspected, then held for stalled; and it is ready
/// again when it goes on.
async fn frozen(daemon: &Daemon, id: &str, gate: &Gate, vllm: &Vllm) -> Result<()> {
    let mut clients = JoinSet::new();
    for offset in 0..3 {
        let work = Work { id: 10_000 + offset, prompt: 64, max_tokens: 512, may_stop: false };
        clients.spawn(gate.clone().serve(work));
    }
    let running = |engine: &Engine| engine.pools.first().is_some_and(|pool| pool.running == Some(3));
    engine_when(&daemon.channel(), id, Duration::from_secs(20), "running three requests", running).await?;

    vllm.signal_core(Signal::SIGSTOP)?;
    let noticed = stalled(daemon, id, gate, &mut clients).await;
    vllm.signal_core(Signal::SIGCONT)?;
    noticed?;

    let resumed = Instant::now();
    engine_when(&daemon.channel(), id, Duration::from_secs(30), "ready again", ready).await?;
    println!("going on: ready again after {:.1?}", resumed.elapsed());
    timeout(DRAIN, async { while clients.join_next().await.is_some() {} })
        .await
        .context("requests did not end")?;
    let failures = gate.seen().failures;
    ensure!(failures.is_empty(), "requests failed: {failures:?}");
    Ok(())
}

/// The engine, just stopped, becomes suspect; one request is let through, and when it shows no step either, stalled.
async fn stalled(daemon: &Daemon, id: &str, gate: &Gate, clients: &mut JoinSet<()>) -> Result<()> {
    let stopped = Instant::now();
    let is = |state| move |engine: &Engine| engine.state() == state;
    let minute = Duration::from_mins(1);
    let engine = engine_when(&daemon.channel(), id, minute, "suspect", is(EngineState::Suspect)).await?;
    println!("frozen: suspect after {:.1?}: {}", stopped.elapsed(), engine.state_reason);
    let before = gate.seen();
    for offset in 0..6 {
        let work = Work { id: 20_000 + offset, prompt: 32, max_tokens: 16, may_stop: false };
        clients.spawn(gate.clone().serve(work));
    }
    let engine = engine_when(&daemon.channel(), id, minute, "stalled", is(EngineState::Stalled)).await?;
    println!("frozen: stalled after {:.1?}: {}", stopped.elapsed(), engine.state_reason);
    sleep(SHOWN).await;
    let after = gate.seen();
    let let_through = after.admitted - before.admitted;
    ensure!(let_through == 1, "{let_through} of 6 requests were let through to a suspect engine");
    let denied = after.denials(Reason::EngineSuspect) - before.denials(Reason::EngineSuspect);
    ensure!(denied == 5, "{denied} of the 5 others were denied with ENGINE_SUSPECT: {:?}", after.denied);
    Ok(())
}

/// The death of EngineCore closes the engine, while its API server still answers.
async fn killed(daemon: &Daemon, id: &str, gate: &Gate, vllm: &Vllm) -> Result<()> {
    let mut client = gate.clone();
    let work = Work { id: 30_000, prompt: 32, max_tokens: 16, may_stop: false };
    vllm.signal_core(Signal::SIGKILL)?;
    let died = Instant::now();
    let down = |engine: &Engine| engine.state() == EngineState::Down;
    let engine = engine_when(&daemon.channel(), id, Duration::from_secs(20), "down", down).await?;
    println!("killed: down after {:.1?}: {}", died.elapsed(), engine.state_reason);
    let denied = client.ask(work).await?.err().context("admitted to a dead engine")?;
    ensure!(denied.reason() == Reason::EngineDown && denied.http_status == 503, "denied with {denied:?}");
    ensure!(engine.reservations == 0, "{} reservations outlived the engine", engine.reservations);
    sleep(SHOWN).await;
    Ok(())
}
