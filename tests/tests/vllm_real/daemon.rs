//! The daemon under test: the release build, with no configuration at all or the few lines of a test.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use gpuadmit_proto::v1::{Engine, StatusRequest, StatusResponse, node_client::NodeClient};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};
use tonic::transport::{Channel, Endpoint};

/// It listens long before this.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// It ends long before this.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two looks at its status.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A running gpuadmitd. Dropping it kills it.
pub(crate) struct Daemon {
    child: Child,
    channel: Channel,
}

impl Daemon {
    /// Starts it with its socket in `folder` and no configuration; its journal goes to `gpuadmitd.log` there.
    pub(crate) async fn start(folder: &Path) -> Result<Self> {
        Self::spawn(folder, "gpuadmitd", None).await
    }

    /// The same with the configuration `toml`; the files are named after `name`.
    pub(crate) async fn configured(folder: &Path, name: &str, toml: &str) -> Result<Self> {
        let config = folder.join(format!("{name}.toml"));
        std::fs::write(&config, toml)?;
        Self::spawn(folder, name, Some(&config)).await
    }

    async fn spawn(folder: &Path, name: &str, config: Option<&Path>) -> Result<Self> {
        let (socket, journal) = (folder.join(format!("{name}.sock")), folder.join(format!("{name}.log")));
        let log = File::create(&journal)?;
        let mut child = Command::new(binary()?)
            .args(config.iter().flat_map(|path| [Path::new("--config"), path]))
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        let started = Instant::now();
        loop {
            if let Ok(channel) = endpoint.connect().await {
                return Ok(Self { child, channel });
            }
            if let Some(status) = child.try_wait()? {
                bail!("gpuadmitd ended at once: {status}; see {}", journal.display());
            }
            if started.elapsed() > START_TIMEOUT {
                bail!("gpuadmitd did not listen on {} within {START_TIMEOUT:?}", socket.display());
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// A channel to its socket.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Resident memory, KiB.
    pub(crate) fn resident_kib(&self) -> Result<u64> {
        let pid = self.child.id().context("gpuadmitd has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Ends it as systemd would.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let pid = self.child.id().context("gpuadmitd has ended before")?;
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM)?;
        let status =
            timeout(STOP_TIMEOUT, self.child.wait()).await.context("gpuadmitd ignores SIGTERM")??;
        if !status.success() {
            bail!("gpuadmitd ended with {status} on SIGTERM");
        }
        Ok(())
    }
}

/// The command beside it.
pub(crate) fn command() -> Result<PathBuf> {
    Ok(binary()?.with_file_name("gpuadmit"))
}

/// `$GPUADMITD`, as the Makefile gives it.
fn binary() -> Result<PathBuf> {
    let path = std::env::var_os("GPUADMITD").context("GPUADMITD is not set; run `make test-vllm`")?;
    Ok(PathBuf::from(path))
}

/// The node's status.
pub(crate) async fn status(channel: &Channel) -> Result<StatusResponse> {
    Ok(NodeClient::new(channel.clone()).status(StatusRequest { events: Some(0) }).await?.into_inner())
}

/// Looks at one engine until `wanted` holds, and returns it as it then was.
pub(crate) async fn engine_when(
    channel: &Channel,
    id: &str,
    within: Duration,
    what: &str,
    wanted: impl Fn(&Engine) -> bool,
) -> Result<Engine> {
    let started = Instant::now();
    loop {
        let engine = status(channel).await?.engines.into_iter().find(|engine| engine.id == id);
        match engine {
            Some(engine) if wanted(&engine) => return Ok(engine),
            last if started.elapsed() > within => {
                bail!("{id} was not {what} within {within:?}; it was {last:#?}")
            }
            _ => sleep(LOOK_EVERY).await,
        }
    }
}
