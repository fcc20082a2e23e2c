//! An engine that stands still and goes on, and one that dies.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gpuadmit_proto::v1::{Engine, EngineState, denied::Reason};
use nix::sys::signal::Signal;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    admission::ready,
    daemon::{Daemon, engine_when},
    engine::Vllm,
    gate::{Gate, Work},
    load::DRAIN,
};

/// A state lasts at least this long in the record, so that the plot shows it.
const SHOWN: Duration = Duration::from_secs(2);

/// With nothing running, the ledger holds nothing and the whole pool can be promised again.
pub(crate) async fn empty_again(daemon: &Daemon, id: &str, pool_blocks: u32) -> Result<()> {
    let whole = |engine: &Engine| {
        let room = engine.headroom.map_or(0, |headroom| headroom.blocks);
        engine.state() == EngineState::Ready && engine.reservations == 0 && room == u64::from(pool_blocks)
    };
    engine_when(&daemon.channel(), id, Duration::from_secs(15), "empty and ready again", whole).await?;
    Ok(())
}

/// A stopped EngineCore, whose port and metrics go on answering, is suspected, then held for stalled; and it is ready
/// again when it goes on.
pub(crate) async fn frozen(daemon: &Daemon, id: &str, gate: &Gate, vllm: &Vllm) -> Result<()> {
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
pub(crate) async fn killed(daemon: &Daemon, id: &str, gate: &Gate, vllm: &Vllm) -> Result<()> {
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
