//! The server under test: the daemon's own server over a node with one ready engine, in a process of its own, so that
//! its CPU time and its allocations are its alone. Every line on standard input is answered by the allocations so far.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{self, BufRead, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use gpuadmit_tests::bench::{allocations::Allocations, engine::ReadyEngine};
use gpuadmitd::{clock, config::Config, daemon::Daemon, handle::Handle};
use nix::{
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use tokio::{runtime::Builder, sync::oneshot, time::interval};

/// First argument of this program when it is to be the server.
pub(crate) const ROLE: &str = "serve";
/// So many blocks that nothing is ever denied.
const POOL_BLOCKS: u64 = 1 << 20;
const READ_EVERY: Duration = Duration::from_millis(200);
/// Connections and streams that the widest bench needs, and some more.
const CALLERS_MOST: u32 = 128;

/// Serves at `socket` until standard input ends.
pub(crate) fn serve(socket: &OsStr) -> Result<()> {
    let mut config = Config::default();
    config.socket.path = socket.into();
    config.nvml.enabled = false;
    config.vllm.discover = false;
    config.state.enabled = false;
    config.prometheus.enabled = false;
    config.limits.streams_per_connection = config.limits.streams_per_connection.max(CALLERS_MOST);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    thread::spawn(move || {
        let answered = answer_counts();
        drop(stop);
        answered
    });
    Ok(runtime.block_on(async {
        let daemon = Daemon::start(config, None)?;
        tokio::spawn(feed(daemon.handle().clone()));
        let stop = async {
            // An error means the same: standard input has ended.
            let _ = stopped.await;
        };
        daemon.serve(stop).await
    })?)
}

/// An engine that takes and ends at once whatever is admitted.
async fn feed(handle: Handle) {
    let mut engine = ReadyEngine::new(POOL_BLOCKS);
    handle.observe(engine.facts(clock::now()));
    let mut ticks = interval(READ_EVERY);
    loop {
        ticks.tick().await;
        let finished = handle.snapshot().decisions.admitted;
        handle.observe(engine.reading(clock::now(), 0, 0.0, finished));
    }
}

fn answer_counts() -> io::Result<()> {
    let mut lines = io::stdin().lock().lines();
    while lines.next().transpose()?.is_some() {
        println!("{}", Allocations::now().calls);
        io::stdout().flush()?;
    }
    Ok(())
}

/// The server's process, as the callers see it.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Server {
    /// Starts this program again in the server's role.
    pub(crate) fn start(socket: &Path) -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(ROLE).arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let missing = || io::Error::other("the server has no pipe");
        let answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let ask = Some(child.stdin.take().ok_or_else(missing)?);
        Ok(Self { child, ask, answers })
    }

    /// CPU time it has used.
    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        let pid = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid))?;
        Ok(Duration::from(clock_gettime(clock)?))
    }

    /// Most memory it has had so far, KiB (proc(5), status).
    pub(crate) fn peak_kib(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
        Ok(line.context("no VmHWM")?.trim().parse()?)
    }

    /// Allocations it has made.
    pub(crate) fn allocations(&mut self) -> Result<u64> {
        self.ask.as_mut().context("the server was told to end")?.write_all(b"\n")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ask = None;
        drop(self.child.wait());
    }
}
