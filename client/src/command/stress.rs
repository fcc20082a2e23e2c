//! `gpuadmit stress`

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use gpuadmit_client::{CALL_DEADLINE, Connection, v1::StatusRequest, within};
use tokio::sync::watch;

use super::{
    Exit,
    duration::{LONGEST_WAIT, between},
    output::Output,
    watch::Stop,
};
use crate::{
    render,
    stress::{Load, Outcome, Target, run},
};

/// Load an engine through admission, and report what was admitted, denied and preempted, and how soon tokens came.
///
/// A mixed load of small and middling requests with one that takes most of the context window, then a burst of all at
/// once. Prompts are random tokens that share no prefix. It ends when all is done or the time is over, and by Ctrl-C;
/// what still runs then is cancelled, and its room given back. Real requests at the engine feel the load: run it before
/// going live. The requests bear the tenant gpuadmit-stress.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct Stress {
    /// The engine, as `gpuadmit status` names it. Without: the only one.
    engine: Option<String>,
    /// Requests of the mixed load.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,
    /// Of those, at once.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    concurrency: u32,
    /// Requests of the burst.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    burst: u32,
    /// Longest time for all of it, such as 2m; at most an hour. The burst begins after 60 % of it at the latest.
    #[arg(long = "for", value_name = "TIME", value_parser = between(MS, LONGEST), default_value = "60s")]
    time: Duration,
    /// How long each request waits for room, such as 5s; at most 10 minutes.
    #[arg(long, value_name = "TIME", value_parser = between(Duration::ZERO, LONGEST_WAIT), default_value = "0s")]
    wait: Duration,
    /// Let every output get as long as it may: the hardest load. The daemon learns lengths of outputs from it.
    #[arg(long)]
    ignore_eos: bool,
    /// File with the key that the engine wants.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Load an engine on another machine all the same.
    #[arg(long)]
    remote: bool,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

const EXIT_STATUS: &str = "Exit status: 0 nothing was preempted and no admitted request failed, 1 something was, 2 an \
                           error, or no request was admitted.";
/// Longest time.
const LONGEST: Duration = Duration::from_hours(1);
const MS: Duration = Duration::from_millis(1);
/// Longest key, bytes.
const MAX_KEY_BYTES: usize = 4096;

impl Stress {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        let request = within(CALL_DEADLINE, StatusRequest { events: Some(0) });
        let status = connection.node().status(request).await.map_err(|status| connection.explain(&status))?;
        let key = self.api_key_file.as_deref().map(read_key).transpose()?;
        let target = Target::find(status.get_ref(), self.engine.as_deref(), self.remote, key)?;
        let mut stop = Stop::listen()?;
        let (stopping, stopped) = watch::channel(false);
        tokio::spawn(async move {
            stop.wanted().await;
            let _ = stopping.send(true);
            // The sender must outlive the load, or its end would be taken for a wish.
            stop.wanted().await;
        });
        let load = Load {
            requests: self.requests,
            concurrency: self.concurrency,
            burst: self.burst,
            time: self.time,
            wait: self.wait,
            ignore_eos: self.ignore_eos,
        };
        let outcome = run(connection, target.clone(), load, stopped).await;
        if self.json {
            output.print(&format!("{:#}\n", render::stress::json(&target, &outcome)))?;
        } else {
            output.print(&render::stress::text(&target, &outcome, output.canvas()))?;
        }
        Ok(exit(&outcome))
    }
}

fn exit(outcome: &Outcome) -> Exit {
    let tally = &outcome.tally;
    if tally.sum(|row| row.admitted) == 0 {
        Exit::Broken
    } else if tally.failed > 0 || outcome.preempted.is_some_and(|count| count > 0) {
        Exit::Warned
    } else {
        Exit::Fine
    }
}

fn read_key(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the key in {}", path.display()))?;
    let key = text.trim();
    anyhow::ensure!(
        !key.is_empty() && key.len() <= MAX_KEY_BYTES && key.bytes().all(|byte| byte.is_ascii_graphic()),
        "--api-key-file: {} holds no key; one line of 1 to {MAX_KEY_BYTES} visible ASCII characters",
        path.display()
    );
    Ok(key.to_owned())
}
