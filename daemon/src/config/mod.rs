//! The configuration file: TOML with a default for every key, so that everything works without a file. Units are part
//! of the keys' names. Unknown keys are refused; [`check`](Config::check) names every key that is out of its range.

mod check;
mod check_shares;
mod error;
mod prometheus;
mod reload;
mod settings;
mod shares;
mod tokens;

use std::{
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub use self::{
    check::{Problem, Problems},
    error::ConfigError,
    prometheus::Prometheus,
    reload::Change,
    shares::{Class, Queue, Tenant, TenantLimits},
    tokens::{Tokenizer, Tokens},
};

/// Largest configuration file, bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Everything the operator decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether decisions bind, for engines without a mode of their own.
    pub mode: Mode,
    /// Where callers come in.
    pub socket: Socket,
    /// Bounds of the server.
    pub limits: Limits,
    /// How requests are decided.
    pub admission: Admission,
    /// Who waits for room.
    pub queue: Queue,
    /// What each class may take.
    pub class: Class,
    /// What each tenant that is not named may take.
    pub tenant_default: TenantLimits,
    /// Tenants named by the operator.
    pub tenant: Vec<Tenant>,
    /// The NVML source.
    pub nvml: Nvml,
    /// The vLLM source.
    pub vllm: Vllm,
    /// The shared page.
    pub page: Page,
    /// The kernel as a source.
    pub kernel: Kernel,
    /// The host's memory as a source.
    pub host: Host,
    /// How prompts are counted.
    pub tokens: Tokens,
    /// What outlives the daemon.
    pub state: State,
    /// Records of all decisions.
    pub records: Records,
    /// Metrics.
    pub prometheus: Prometheus,
    /// Engines named by the operator, beside those found.
    pub engine: Vec<Engine>,
    /// Tokenizers named by the operator, beside those found.
    pub tokenizer: Vec<Tokenizer>,
    /// Logging.
    pub log: Log,
}

/// Whether decisions bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Denials are denials.
    #[default]
    Enforce,
    /// Only static limits and process state deny.
    Observe,
}

/// `[socket]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Socket {
    /// Absolute path of the Unix socket, at most 107 bytes. Not used where systemd passes a socket.
    pub path: PathBuf,
    /// Permission bits in octal.
    pub mode: String,
    /// Group that owns the file, by name. Absent: the daemon's own.
    pub group: Option<String>,
    /// Uids that may call, beside root, the daemon's own, and members of the file's group.
    pub allowed_uids: Vec<u32>,
    /// Gids whose members may call.
    pub allowed_gids: Vec<u32>,
}

impl Default for Socket {
    fn default() -> Self {
        Self {
            path: "/run/gpuadmit/gpuadmit.sock".into(),
            mode: "0660".into(),
            group: None,
            allowed_uids: Vec::new(),
            allowed_gids: Vec::new(),
        }
    }
}

impl Socket {
    /// The permission bits; `None` when [`Self::mode`] is no octal number up to 0777.
    #[must_use]
    pub fn mode_bits(&self) -> Option<u32> {
        u32::from_str_radix(&self.mode, 8).ok().filter(|bits| *bits <= 0o777)
    }
}

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections at once; one more is closed at once.
    pub connections: u32,
    /// Calls open at once on one connection.
    pub streams_per_connection: u32,
    /// Largest message, bytes.
    pub message_bytes: u32,
    /// Most that requests take while they come in, all connections together, bytes; one connection takes at most half.
    pub buffered_bytes: u64,
    /// Largest header list of a call, bytes.
    pub header_bytes: u32,
    /// A connection without an open call is closed after this time.
    pub idle_ms: u64,
    /// A connection is asked for a sign of life this often, and closed when it gives none in that time again.
    pub keepalive_ms: u64,
    /// Reservations held at once.
    pub reservations: u32,
    /// Time between two snapshots.
    pub snapshot_interval_ms: u64,
    /// Threads that answer calls. One keeps a connection's calls on one core, and answers some 50,000 of them a second.
    pub workers: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            streams_per_connection: 128,
            message_bytes: 32 << 20,
            buffered_bytes: 128 << 20,
            header_bytes: 16 << 10,
            idle_ms: 600_000,
            keepalive_ms: 30_000,
            reservations: 4096,
            snapshot_interval_ms: 100,
            workers: 1,
        }
    }
}

/// `[admission]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admission {
    /// Most of a pool that may be promised, share 0 to 1.
    pub ceiling: f64,
    /// Accepted probability that the pool overflows within the life of an admitted request, for interactive requests;
    /// 0 admits only what fits in the worst case.
    pub risk_interactive: f64,
    /// The same for standard requests.
    pub risk_standard: f64,
    /// The same for batch.
    pub risk_batch: f64,
    /// Output tokens assumed for a request without max_tokens where its class accepts no risk.
    pub default_max_tokens: u64,
    /// Largest max_tokens granted. Absent: the context window alone limits.
    pub max_tokens_limit: Option<u64>,
    /// Above that: grant the limit (true) or deny (false).
    pub clamp_max_tokens: bool,
    /// Lease of a reservation.
    pub lease_ms: u64,
    /// An orphan is forgotten after this time.
    pub orphan_cap_ms: u64,
    /// An admitted request is believed to have reached its engine after this time.
    pub delivery_grace_ms: u64,
    /// Age at which a device's figures are no longer believed.
    pub device_stale_ms: u64,
    /// Growth of co-tenants that counts as a danger.
    pub co_tenant_growth_bytes: u64,
    /// Free device memory below which such growth denies.
    pub device_floor_bytes: u64,
    /// Hold batch back on an engine of which more is asked than it can do.
    pub tighten_batch: bool,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            ceiling: 1.0,
            risk_interactive: 0.10,
            risk_standard: 0.06,
            risk_batch: 0.01,
            default_max_tokens: 1024,
            max_tokens_limit: None,
            clamp_max_tokens: true,
            lease_ms: 60_000,
            orphan_cap_ms: 600_000,
            delivery_grace_ms: 1_000,
            device_stale_ms: 2_000,
            co_tenant_growth_bytes: 512 << 20,
            device_floor_bytes: 1 << 30,
            tighten_batch: false,
        }
    }
}

/// `[nvml]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nvml {
    /// Whether devices are read at all.
    pub enabled: bool,
    /// Library: a name for the dynamic linker, or an absolute path.
    pub library: PathBuf,
    /// Time between two readings of memory.
    pub memory_interval_ms: u64,
    /// Time between two listings of processes.
    pub process_interval_ms: u64,
    /// A call that takes longer counts as hung.
    pub call_deadline_ms: u64,
}

impl Default for Nvml {
    fn default() -> Self {
        Self {
            enabled: true,
            library: "libnvidia-ml.so.1".into(),
            memory_interval_ms: 100,
            process_interval_ms: 5_000,
            call_deadline_ms: 2_000,
        }
    }
}

/// `[vllm]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Vllm {
    /// Whether engines are looked for among the processes.
    pub discover: bool,
    /// Users whose engines are found, by id; empty: all.
    pub discover_uids: Vec<u32>,
    /// Time between two looks.
    pub discover_interval_ms: u64,
    /// CPU that scraping may cost an engine, share of one core 0 to 1.
    pub scrape_cpu_share: f64,
    /// Shortest time between two scrapes of an engine.
    pub scrape_interval_min_ms: u64,
    /// Longest time between two scrapes of an engine.
    pub scrape_interval_max_ms: u64,
    /// A scrape without a whole answer fails after this time.
    pub scrape_timeout_ms: u64,
}

impl Default for Vllm {
    fn default() -> Self {
        Self {
            discover: true,
            discover_uids: Vec::new(),
            discover_interval_ms: 1_000,
            scrape_cpu_share: 0.01,
            scrape_interval_min_ms: 50,
            scrape_interval_max_ms: 1_000,
            scrape_timeout_ms: 5_000,
        }
    }
}

/// `[page]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Page {
    /// Whether headroom is shown in memory that callers may map, beside the socket.
    pub enabled: bool,
}

impl Default for Page {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// `[kernel]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kernel {
    /// Whether the kernel is listened to at all.
    pub enabled: bool,
    /// Whether programs are loaded into it (BPF), which only read. Without, the same is told later and with less detail.
    pub programs: bool,
    /// Absolute path of the file with the programs. Absent: where `make install` puts it.
    pub object: Option<PathBuf>,
    /// Whether libcuda's calls for memory are probed within engines' processes.
    pub cuda_uprobes: bool,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { enabled: true, programs: true, object: None, cuda_uprobes: false }
    }
}

/// `[host]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Whether the host's memory and the states of engines' processes are looked at.
    pub enabled: bool,
}

impl Default for Host {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// `[state]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// Whether what was learned is kept for the next run.
    pub enabled: bool,
    /// Absolute path of the directory to keep it in. It is not made: where it does not exist nothing is kept.
    pub path: PathBuf,
    /// Time between two writes; there is one more at the end.
    pub interval_ms: u64,
}

impl Default for State {
    fn default() -> Self {
        Self { enabled: true, path: "/var/lib/gpuadmit".into(), interval_ms: 300_000 }
    }
}

/// `[records]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Records {
    /// Whether every decision is recorded, with all that it rests on.
    pub enabled: bool,
    /// Absolute path of the directory to record into; its last part is made.
    pub path: PathBuf,
    /// A file that has become so large is followed by another one.
    pub file_bytes: u64,
    /// Files kept.
    pub files: u32,
}

impl Default for Records {
    fn default() -> Self {
        Self { enabled: false, path: "/var/lib/gpuadmit/records".into(), file_bytes: 64 << 20, files: 16 }
    }
}

/// `[[engine]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Unique id.
    pub id: String,
    /// `http://HOST:PORT` or `unix:/PATH`. An engine that is found there takes this entry's id, mode and key.
    pub address: String,
    /// Models it serves. Empty: ask it.
    #[serde(default)]
    pub models: Vec<String>,
    /// Whether decisions bind. Absent: as the node.
    pub mode: Option<Mode>,
    /// File with the API key it wants.
    pub api_key_file: Option<PathBuf>,
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives like `info,gpuadmitd::source=debug`.
    pub level: String,
    /// Absolute path of the journal's socket, used where standard error goes to the journal.
    pub journal_socket: PathBuf,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), journal_socket: "/run/systemd/journal/socket".into() }
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`]; all values out of range at once.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path)?;
        let config: Self =
            toml::from_str(&text).map_err(|source| ConfigError::parse(path, &text, &source))?;
        config.check()?;
        Ok(config)
    }

    /// Time between two snapshots.
    #[must_use]
    pub fn snapshot_interval(&self) -> Duration {
        Duration::from_millis(self.limits.snapshot_interval_ms)
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let read = read_bounded(path, MAX_FILE_BYTES);
    let text = read.map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    text.ok_or_else(|| ConfigError::TooLarge { path: path.to_owned() })
}

/// The text of a file; `None` when it is longer than `most` bytes. A pipe is refused: whoever reads it may wait for ever.
pub(crate) fn read_bounded(path: &Path, most: u64) -> io::Result<Option<String>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::other("it is a pipe and no file"));
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= most) {
        let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))?;
        return Ok(Some(text));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.toml");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = Config::load(&path).unwrap_err();
        assert!(matches!(error, ConfigError::Read { .. }), "{error}");
        assert_eq!(Config::load(Path::new("/dev/null")).unwrap(), Config::default());
    }

    const SHIPPED: &str = include_str!("../../../systemd/gpuadmit.toml");
    /// Keys whose default is to be absent, with an example in the shipped file.
    const ABSENT: [&str; 6] =
        ["group", "max_tokens_limit", "tokens_per_second", "burst_tokens", "object", "socket"];

    #[test]
    fn the_shipped_file_changes_nothing() {
        assert_eq!(toml::from_str::<Config>(SHIPPED).unwrap(), Config::default());
    }

    #[test]
    fn the_shipped_file_shows_the_defaults() {
        let tables = SHIPPED.split("#[[").next().unwrap();
        let absent = |line: &str| ABSENT.iter().any(|key| line.starts_with(&format!("#{key}")));
        let keys = tables.lines().filter(|line| !line.starts_with("# ") && !absent(line));
        let text: String = keys.map(|line| format!("{}\n", line.trim_start_matches('#'))).collect();
        assert_eq!(toml::from_str::<Config>(&text).unwrap(), Config::default());
        assert_eq!(text.matches(" = ").count(), 70, "all 70 keys with a default are shown");
    }

    #[test]
    fn the_shipped_examples_of_a_tenant_and_an_engine_are_allowed() {
        let (_, examples) = SHIPPED.split_once("#[[").unwrap();
        let keys = examples.lines().filter(|line| !line.starts_with("# "));
        let text: String = keys.map(|line| format!("{}\n", line.trim_start_matches('#'))).collect();
        let config: Config = toml::from_str(&format!("[[{text}")).unwrap();
        assert_eq!(config.check(), Ok(()));
        assert_eq!((config.tenant.len(), config.engine.len(), config.tokenizer.len()), (1, 1, 1));
    }
}
