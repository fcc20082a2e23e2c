//! A child process: how it is started, told and ended.

use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::{
    child::{ChildOptions, HINT},
    lines::Lines,
};

/// Longest time the driver is left alone on request.
pub(super) const MAX_RELEASE: Duration = Duration::from_hours(24);

/// Time from SIGTERM to SIGKILL.
const END_GRACE: Duration = Duration::from_millis(1_500);

/// Time from SIGKILL until a child counts as stuck in the driver and is left to itself.
const KILL_GRACE: Duration = Duration::from_millis(500);

/// Children stuck in the driver beyond which no more are started.
const MAX_ABANDONED: usize = 4;

/// Longest time for telling a child something. Its pipe holds far more than is ever told.
const TELL_TIMEOUT: Duration = Duration::from_millis(100);

/// The command that runs a child.
#[derive(Clone, Debug)]
pub struct ChildCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Added to its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Pauses between children.
    pub pauses: Pauses,
}

/// Pauses between the end of a child and the start of the next: doubling, reset by a child that lived longer than the
/// longest pause.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The first.
    pub first: Duration,
    /// None is longer.
    pub longest: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { first: Duration::from_secs(5), longest: Duration::from_mins(1) }
    }
}

impl ChildCommand {
    /// This program, executed again as `nvml-child`.
    ///
    /// # Errors
    /// The path of this program cannot be told.
    pub fn this_program(options: &ChildOptions) -> io::Result<Self> {
        let mut arguments = vec![OsString::from("nvml-child")];
        arguments.extend(options.to_arguments());
        let program = std::env::current_exe()?;
        Ok(Self { program, arguments, environment: Vec::new(), pauses: Pauses::default() })
    }
}

/// A child that runs.
pub(super) struct Running {
    child: Child,
    stdin: ChildStdin,
    pub(super) lines: Lines<ChildStdout>,
}

impl Running {
    /// Starts a child. Its standard error is ours, so that the driver's complaints reach the journal.
    ///
    /// The child is not bound to us by PR_SET_PDEATHSIG, which fires when the *thread* that started it ends, as a
    /// thread of the runtime may: the end of its standard input tells it that we are gone, however we went.
    pub(super) fn start(command: &ChildCommand) -> io::Result<Self> {
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .envs(command.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("a pipe of the child is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let lines = Lines::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Self { child, stdin, lines })
    }

    /// Asks for the process lists now. A child that does not listen is found by its silence.
    pub(super) async fn hint_processes(&mut self) {
        let _unheard = timeout(TELL_TIMEOUT, self.stdin.write_all(HINT)).await;
    }

    /// Waits for the end of a child that closed its output, and ends it if it does not.
    pub(super) async fn ended(self, abandoned: &Abandoned) -> String {
        let Self { mut child, .. } = self;
        match timeout(END_GRACE, child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => format!("it cannot be waited for: {error}"),
            Err(_) => {
                end(child, abandoned).await;
                "it closed its output and had to be killed".to_owned()
            }
        }
    }

    /// Ends the child within two seconds; false when it did not end and was left to itself.
    pub(super) async fn end(self, abandoned: &Abandoned) -> bool {
        let Self { child, stdin, lines } = self;
        drop((stdin, lines));
        end(child, abandoned).await
    }
}

async fn end(mut child: Child, abandoned: &Abandoned) -> bool {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid {
        let _gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if timeout(END_GRACE, child.wait()).await.is_ok() {
        return true;
    }
    let _gone = child.start_kill();
    if timeout(KILL_GRACE, child.wait()).await.is_ok() {
        return true;
    }
    abandoned.reap(child);
    false
}

/// Children that did not die when killed: they sleep in the driver.
#[derive(Clone, Debug, Default)]
pub(super) struct Abandoned(Arc<AtomicUsize>);

impl Abandoned {
    pub(super) fn none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Whether too many are stuck to start another.
    pub(super) fn full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= MAX_ABANDONED
    }

    fn reap(&self, mut child: Child) {
        self.0.fetch_add(1, Ordering::Relaxed);
        let stuck = Arc::clone(&self.0);
        tracing::warn!(pid = child.id(), "an NVML child cannot be killed: it is stuck in the driver");
        tokio::spawn(async move {
            let _status = child.wait().await;
            stuck.fetch_sub(1, Ordering::Relaxed);
        });
    }
}
