//! The subcommands, one file each, and what they share.

mod admit;
mod candidates;
mod complete;
mod completions;
mod doctor;
mod duration;
mod events;
mod explain;
mod guard;
mod headroom;
mod id;
mod man;
mod output;
mod plan;
mod progress;
mod release_gpu;
mod report;
mod reservation;
mod status;
mod stress;
mod top;
mod watch;

use std::{path::PathBuf, process::ExitCode};

use clap::{ColorChoice, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use gpuadmit_client::{Connection, DEFAULT_SOCKET, connect};
use output::Output;

/// Ask and watch gpuadmitd, the daemon that keeps this machine's LLM engines from running out of GPU memory.
#[derive(Debug, Parser)]
#[command(name = "gpuadmit", version, max_term_width = 80, after_help = EXIT_STATUS)]
pub(crate) struct Command {
    /// Socket of the daemon.
    #[arg(long, global = true, env = "GPUADMIT_SOCKET", hide_env_values = true, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Without colour, as with NO_COLOR set.
    #[arg(long, global = true)]
    no_color: bool,
    #[command(subcommand)]
    subcommand: Sub,
}

const EXIT_STATUS: &str =
    "Exit status: 0 admitted or done, 1 denied, 2 an error (one line on standard error).";

#[derive(Debug, Subcommand)]
enum Sub {
    Status(status::Status),
    Top(top::Watch),
    Admit(admit::Admit),
    Progress(progress::Progress),
    Complete(complete::Complete),
    Explain(explain::Explain),
    Events(events::Events),
    Headroom(headroom::Headroom),
    Guard(guard::Guard),
    Report(report::Report),
    ReleaseGpu(release_gpu::ReleaseGpu),
    Doctor(doctor::Doctor),
    Stress(stress::Stress),
    Plan(Box<plan::Plan>),
    Completions(completions::Completions),
    #[command(hide = true, name = "__complete")]
    Candidates(candidates::Candidates),
    #[command(hide = true)]
    Man(man::Man),
}

/// What the caller's shell is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Admitted, or done.
    Fine,
    /// Denied.
    Denied,
    /// There are warnings.
    Warned,
    /// Something is broken.
    Broken,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Fine => Self::SUCCESS,
            Exit::Denied | Exit::Warned => Self::from(1),
            Exit::Broken => Self::from(2),
        }
    }
}

impl Command {
    /// The command line; without colour where that is asked for anywhere on it.
    pub(crate) fn from_arguments() -> Self {
        let plain = std::env::args_os().any(|argument| argument == "--no-color");
        let command = Self::command().color(if plain { ColorChoice::Never } else { ColorChoice::Auto });
        let matches = command.get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Does what was asked.
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let mut output = Output::stdout(self.no_color);
        match self.subcommand {
            Sub::Completions(completions) => completions.run(&mut output),
            Sub::Man(man) => man.run(),
            Sub::Candidates(candidates) => runtime()?.block_on(candidates.run(self.socket, &mut output)),
            Sub::Plan(plan) => plan.run(self.socket, &mut output),
            Sub::Doctor(doctor) => runtime()?.block_on(doctor.run(&self.socket, &mut output)),
            online => runtime()?.block_on(async { online.ask(&connect(self.socket)?, &mut output).await }),
        }
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

impl Sub {
    async fn ask(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        match self {
            Self::Status(status) => status.run(connection, output).await,
            Self::Top(watch) => watch.run(connection, output).await,
            Self::Admit(admit) => admit.run(connection, output).await,
            Self::Progress(progress) => progress.run(connection, output).await,
            Self::Complete(complete) => complete.run(connection, output).await,
            Self::Explain(explain) => explain.run(connection, output).await,
            Self::Events(events) => events.run(connection, output).await,
            Self::Headroom(headroom) => headroom.run(connection, output).await,
            Self::Guard(guard) => guard.run(connection, output).await,
            Self::Report(report) => report.run(connection, output).await,
            Self::ReleaseGpu(release) => release.run(connection, output).await,
            Self::Stress(stress) => stress.run(connection, output).await,
            Self::Doctor(doctor) => doctor.run(connection.socket(), output).await,
            Self::Completions(completions) => completions.run(output),
            Self::Man(man) => man.run(),
            Self::Candidates(candidates) => candidates.run(connection.socket().to_owned(), output).await,
            Self::Plan(plan) => plan.run(connection.socket().to_owned(), output),
        }
    }
}
