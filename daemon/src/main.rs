//! `gpuadmitd`: reads the command line and the configuration, then runs the daemon until it is told to stop.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser as _;
use gpuadmit_sim::{Scenario, ScenarioError};
use gpuadmitd::{
    args::{Args, Role},
    config::{Config, ConfigError},
    daemon::Daemon,
    log::Log,
    records::replay::{Policy, replay},
    source::nvml::child::{ChildOptions, child_main},
};
use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
};

/// Exit status for a command line or configuration that is not allowed.
const REFUSED: u8 = 2;
/// Threads for sources and outputs; those that answer calls are the server's own.
const SOURCE_THREADS: usize = 2;
/// Time for tasks that block to end; those that do not are left behind.
const TASK_GRACE: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let mut args = Args::parse();
    match args.role.take() {
        Some(Role::NvmlChild { arguments }) => {
            return match ChildOptions::parse(arguments) {
                Ok(options) => child_main(options),
                Err(error) => refuse(&error.to_string()),
            };
        }
        Some(Role::Replay { files, policy, json, examples }) => {
            return match replayed(&files, &policy, json, examples) {
                Ok(text) => {
                    print!("{text}");
                    ExitCode::SUCCESS
                }
                Err(error) => refuse(&said(&error)),
            };
        }
        None => {}
    }
    let config = match configuration(&args) {
        Ok(config) => config,
        Err(error) => return refuse(&error.to_string()),
    };
    let simulation = match scenario(args.simulate.clone()) {
        Ok(scenario) => scenario,
        Err(error) => return refuse(&error.to_string()),
    };
    if args.check_config {
        println!("ok");
        return ExitCode::SUCCESS;
    }
    let log = Log::start(&config.log);
    match run(&args, config, simulation, log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", said(&error));
            ExitCode::FAILURE
        }
    }
}

/// What a replay found, as it is printed.
fn replayed(files: &[PathBuf], policy: &str, json: bool, examples: usize) -> anyhow::Result<String> {
    let report = replay(files, &Policy::parse(policy)?, examples)?;
    Ok(if json { serde_json::to_string(&report)? + "\n" } else { report.to_string() })
}

/// `error` with its causes, each said once: many messages contain their cause.
fn said(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match &*text {
        "" => cause,
        said if said.contains(&cause) => text,
        said => format!("{said}: {cause}"),
    })
}

fn refuse(message: &str) -> ExitCode {
    eprintln!("{message}");
    REFUSED.into()
}

fn configuration(args: &Args) -> Result<Config, ConfigError> {
    let mut config = args.config.as_deref().map(Config::load).transpose()?.unwrap_or_default();
    if let Some(path) = &args.socket {
        config.socket.path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        config.check()?;
    }
    Ok(config)
}

/// The node to simulate: by its file, or the one built in; `None`: the real one is served.
fn scenario(asked: Option<Option<PathBuf>>) -> Result<Option<Scenario>, ScenarioError> {
    let load = |file: Option<PathBuf>| file.map_or_else(Scenario::built_in, |file| Scenario::load(&file));
    asked.map(load).transpose()
}

fn run(args: &Args, config: Config, simulation: Option<Scenario>, log: Log) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(SOURCE_THREADS).enable_all().build();
    let runtime = runtime.context("cannot start threads")?;
    let ended = runtime.block_on(async {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut hangup = signal(SignalKind::hangup())?;
        let daemon = Daemon::start(config, simulation)?;
        tokio::spawn(log.tell(daemon.handle().clone()));
        let again = args.clone();
        let mut reloader = daemon.reloader(move || configuration(&again));
        let reloads = async {
            while hangup.recv().await.is_some() {
                reloader.reload().await;
            }
            std::future::pending().await
        };
        tokio::select! {
            served = daemon.serve(either(terminate, interrupt)) => Ok(served?),
            ended = reloads => ended,
        }
    });
    runtime.shutdown_timeout(TASK_GRACE);
    ended
}

async fn either(mut one: Signal, mut other: Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
