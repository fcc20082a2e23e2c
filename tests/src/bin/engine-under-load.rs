//! Both sides of a daemon: an engine that discovery takes for vLLM (`vllm serve m --port PORT`), and the gateways that
//! fill it through admission. Ends after `LOAD_SECONDS`, prints what came of it, and fails if a call did.

use std::{env, path::Path, process::ExitCode, time::Duration};

use anyhow::Context as _;
use gpuadmit_tests::{load::Load, truth::Truth};
use tokio::{net::TcpListener, time::sleep};

/// Blocks of the engine.
const BLOCKS: u64 = 300;
const SOCKET: &str = "/run/gpuadmit/gpuadmit.sock";

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = env::args().collect();
    let after = |flag: &str| args.iter().skip_while(|word| *word != flag).nth(1);
    let port: u16 = after("--port").context("--port PORT")?.parse()?;
    let engine = Truth::serve(BLOCKS, TcpListener::bind(("127.0.0.1", port)).await?);
    let number = |name: &str| env::var(name).ok().and_then(|value| value.parse().ok());
    let (seconds, gateways) = (number("LOAD_SECONDS").unwrap_or(60), number("LOAD_GATEWAYS").unwrap_or(8));
    // It begins when the daemon has found the engine.
    sleep(Duration::from_secs(number("LOAD_AFTER_SECONDS").unwrap_or(0))).await;
    let load = Load::start(Path::new(SOCKET), engine.clone(), gateways);
    sleep(Duration::from_secs(seconds)).await;
    let outcome = load.stop().await;
    let (used, blocks) = engine.most_used();
    println!(
        "{} calls answered, {} admitted, {} failed, tried again {:?}; at most {} of {blocks} blocks promised, {used} used; \
         slowest answer {:.1?}",
        outcome.answered,
        outcome.admitted,
        outcome.failed.len(),
        outcome.retried,
        outcome.most_promised,
        outcome.slowest
    );
    outcome.failed.iter().take(10).for_each(|why| println!("failed: {why}"));
    let fine = outcome.failed.is_empty()
        && outcome.most_promised <= blocks
        && used <= blocks
        && outcome.admitted > 0;
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
