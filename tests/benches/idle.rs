//! What the daemon and its NVML child cost while nothing happens.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use gpuadmit_tests::{
    bench::{smoke, table::Report},
    binary::binary,
};
use nix::{
    sys::signal::{Signal, kill},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use serde_json::{Value, json};

/// Time until nothing is new to the daemon any more.
const SETTLE: Duration = Duration::from_secs(5);
const WATCHED: Duration = Duration::from_secs(20);
const SMOKE: Duration = Duration::from_secs(1);
const GPUS: usize = 8;

fn main() -> Result<()> {
    let mut rows = Vec::new();
    rows.extend(measure("no GPU, no engine", &[], None)?);
    rows.extend(measure("8 GPUs (fake NVML), no engine", &[], Some(&node()))?);
    rows.extend(measure("--simulate: 2 engines with traffic", &["--simulate"], None)?);
    let mut report = Report::new("idle");
    report.table(&["node, process", "RSS", "PSS", "CPU, % of one core"], &rows);
    report.paragraph(&format!(
        "{} build, over {} s after {} s of settling. PSS divides pages that several processes share between them.",
        if cfg!(debug_assertions) { "Debug" } else { "Release" },
        watched().as_secs(),
        settle().as_secs()
    ));
    report.write()?;
    Ok(())
}

fn settle() -> Duration {
    if smoke() { SMOKE } else { SETTLE }
}

fn watched() -> Duration {
    if smoke() { SMOKE } else { WATCHED }
}

/// The daemon, ended with its children when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let told = i32::try_from(self.0.id()).map(|pid| kill(Pid::from_raw(pid), Signal::SIGTERM));
        if !matches!(told, Ok(Ok(()))) {
            drop(self.0.kill());
        }
        drop(self.0.wait());
    }
}

/// The rows of the daemon on one kind of node: of each process, and of both together.
fn measure(node: &str, arguments: &[&str], nvml: Option<&Value>) -> Result<Vec<Vec<String>>> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(binary("gpuadmitd"));
    command.args(arguments).arg("--socket").arg(folder.path().join("s"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(world) = nvml {
        install_nvml(folder.path(), world)?;
        command.arg("--config").arg(folder.path().join("c.toml"));
        command.env("GPUADMIT_FAKE_NVML", folder.path().join("world.json"));
    }
    let daemon = Daemon(command.spawn()?);
    thread::sleep(settle());
    let processes = [vec![daemon.0.id()], children(daemon.0.id())?].concat();
    let (start, before) = (Instant::now(), cpu_times(&processes)?);
    thread::sleep(watched());
    let (elapsed, after) = (start.elapsed(), cpu_times(&processes)?);
    let mut rows = Vec::new();
    let mut all = Cost::default();
    for ((pid, before), after) in processes.iter().zip(before).zip(after) {
        let cost = Cost { cpu: after.saturating_sub(before), ..Cost::memory(*pid)? };
        let name = if *pid == daemon.0.id() { "daemon" } else { "NVML child" };
        rows.push(cost.row(format!("{node}, {name}"), elapsed));
        all.add(&cost);
    }
    if processes.len() > 1 {
        rows.push(all.row(format!("{node}, together"), elapsed));
    }
    Ok(rows)
}

/// What a process takes.
#[derive(Default)]
struct Cost {
    rss_kib: u64,
    pss_kib: u64,
    cpu: Duration,
}

impl Cost {
    /// Its memory now (proc(5), smaps_rollup).
    fn memory(pid: u32) -> Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let kib = |key: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_suffix("kB"));
            value.with_context(|| format!("no {key} for {pid}"))?.trim().parse().map_err(anyhow::Error::from)
        };
        Ok(Self { rss_kib: kib("Rss:")?, pss_kib: kib("Pss:")?, cpu: Duration::ZERO })
    }

    fn add(&mut self, other: &Self) {
        self.rss_kib += other.rss_kib;
        self.pss_kib += other.pss_kib;
        self.cpu += other.cpu;
    }

    fn row(&self, title: String, elapsed: Duration) -> Vec<String> {
        let mib = |kib: u64| format!("{}.{} MiB", kib / 1_024, kib % 1_024 * 10 / 1_024);
        let hundredths = self.cpu.as_nanos() * 10_000 / elapsed.as_nanos().max(1);
        let cpu = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        vec![title, mib(self.rss_kib), mib(self.pss_kib), cpu]
    }
}

fn cpu_times(processes: &[u32]) -> Result<Vec<Duration>> {
    let time = |pid: &u32| {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(*pid)?))?;
        Ok(Duration::from(clock_gettime(clock)?))
    };
    processes.iter().map(time).collect()
}

/// Children of `parent`; those that end meanwhile are left out.
fn children(parent: u32) -> Result<Vec<u32>> {
    let pids = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(pids.filter(|pid| parent_of(*pid) == Some(parent)).collect())
}

/// proc(5), stat: the fourth field; the second one stands in parentheses and may contain any others.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// A node of 8 GPUs, as the fake library reads it.
fn node() -> Value {
    let memory = json!({"total": 150_000_000_000_u64, "reserved": 600_000_000, "used": 0, "free": 149_400_000_000_u64});
    let devices = (0..GPUS).map(|index| {
        json!({
            "uuid": format!("GPU-00000000-0000-0000-0000-00000000000{index}"),
            "pci": format!("00000000:0{index}:00.0"),
            "name": "NVIDIA H200",
            "memory": memory,
            "utilisation": 0,
        })
    });
    json!({"driver": "580.82.07", "devices": devices.collect::<Vec<_>>()})
}

/// Cargo builds the fake library beside this bench, of which it is a dependency.
fn install_nvml(folder: &Path, world: &Value) -> Result<()> {
    let bench = env::current_exe()?;
    let library = bench.parent().context("a bench lies in a folder")?.join("libgpuadmit_fake_nvml.so");
    let link = folder.join("libnvidia-ml.so.1");
    symlink(library, &link)?;
    fs::write(folder.join("world.json"), world.to_string())?;
    Ok(fs::write(folder.join("c.toml"), format!("[nvml]\nlibrary = {:?}\n", link.display().to_string()))?)
}
