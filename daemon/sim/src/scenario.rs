//! A scenario: what the simulated node consists of and what befalls it. Everything has a default.

use std::{path::Path, time::Duration};

use serde::Deserialize;

use crate::{engine::EngineLimits, random::Random};

mod check;

/// Largest scenario file, bytes.
pub const MAX_FILE_BYTES: u64 = 256 << 10;
/// Most GPUs.
pub const MAX_GPUS: usize = 16;
/// Most engines.
pub const MAX_ENGINES: usize = 16;
/// Most incidents.
pub const MAX_INCIDENTS: usize = 256;

/// A simulated node. Each part of the file that is left out keeps its default: two GPUs, an engine of the same model on
/// each, and traffic, with no incident.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Same seed, same requests.
    pub seed: u64,
    /// The GPUs.
    #[serde(rename = "gpu")]
    pub gpus: Vec<Gpu>,
    /// The engines.
    #[serde(rename = "engine")]
    pub engines: Vec<EngineSpec>,
    /// The traffic.
    pub traffic: Traffic,
    /// What happens, and when.
    #[serde(rename = "incident")]
    pub incidents: Vec<Incident>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// Product name.
    pub name: String,
    /// Total memory, MiB.
    pub memory_mib: u64,
    /// What the driver keeps for itself of it, MiB.
    pub reserved_mib: u64,
}

/// An engine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineSpec {
    /// Its id on the node: letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// Model name it answers to: letters, digits, and `-_./:`.
    #[serde(default = "default::model")]
    pub model: String,
    /// GPUs it lies on, by position from 0.
    pub gpus: Vec<usize>,
    /// Its memory on each of them, MiB.
    #[serde(default = "default::engine_memory")]
    pub memory_mib: u64,
    /// KV cache blocks, the null block included.
    #[serde(default = "default::blocks")]
    pub blocks: u64,
    /// Tokens per block.
    #[serde(default = "default::block_size")]
    pub block_size: u64,
    /// Context window, tokens.
    #[serde(default = "default::window")]
    pub max_model_len: u64,
    /// Most requests in the batch.
    #[serde(default = "default::sequences")]
    pub max_num_seqs: usize,
    /// Most tokens per step.
    #[serde(default = "default::batched")]
    pub max_num_batched_tokens: u64,
    /// Duration of a step with nothing in it, µs.
    #[serde(default = "default::step_base")]
    pub step_base_us: u64,
    /// What each request in the batch adds, µs.
    #[serde(default = "default::step_per_sequence")]
    pub step_per_sequence_us: u64,
    /// What each prompt token adds, µs.
    #[serde(default = "default::step_per_prefill_token")]
    pub step_per_prefill_token_us: u64,
    /// Random share by which a step is longer or shorter.
    #[serde(default = "default::jitter")]
    pub step_jitter: f64,
    /// Time from its start until it listens, ms; its memory fills meanwhile.
    #[serde(default)]
    pub load_ms: u64,
}

/// Requests per time and what they look like.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Traffic {
    /// Arrivals per second on the whole node (a Poisson process), spread evenly over the models.
    pub requests_per_second: f64,
    /// Prompt tokens.
    pub prompt_tokens: Length,
    /// Tokens after which a model stops by itself.
    pub output_tokens: Length,
    /// Output limit of requests that set one.
    pub max_tokens: u64,
    /// Share of requests that set none.
    pub without_max_tokens: f64,
    /// Share of requests that go to an engine without asking for admission.
    pub bypass: f64,
    /// Share of admitted requests whose end is never told.
    pub lost_completions: f64,
}

/// A log-normal distribution of lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// Half are shorter.
    pub median: u64,
    /// 95 % are shorter.
    pub p95: u64,
    /// None is longer.
    pub max: u64,
}

impl Length {
    /// One length.
    pub(crate) fn draw(self, random: &mut Random) -> u64 {
        random.length(self.median, self.p95, self.max)
    }
}

/// Something that happens `at_s` seconds after the start.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Incident {
    /// The engine's scheduler freezes; its API server goes on answering with frozen figures.
    Stall {
        /// When, seconds.
        at_s: f64,
        /// Which engine.
        engine: String,
        /// How long, seconds.
        for_s: f64,
    },
    /// The engine's processes die; it is started again later.
    Kill {
        /// When, seconds.
        at_s: f64,
        /// Which engine.
        engine: String,
        /// When it starts to load again, seconds after its death.
        restart_after_s: f64,
        /// How they die, as the kernel tells it.
        #[serde(default)]
        by: End,
    },
    /// The engine sleeps: its requests are aborted, its memory is given back to the GPU.
    Sleep {
        /// When, seconds.
        at_s: f64,
        /// Which engine.
        engine: String,
        /// How long, seconds.
        for_s: f64,
    },
    /// Another process takes memory, holds it, and gives it back at the same pace.
    CoTenant {
        /// When, seconds.
        at_s: f64,
        /// On which GPU, by position from 0.
        gpu: usize,
        /// Pace, MiB per second.
        mib_per_s: f64,
        /// Most it takes, MiB; less when the GPU has no more.
        max_mib: u64,
        /// How long it holds its most, seconds.
        hold_s: f64,
    },
    /// The driver's calls for a GPU do not return.
    NvmlHang {
        /// When, seconds.
        at_s: f64,
        /// Which GPU, by position from 0.
        gpu: usize,
        /// How long, seconds.
        for_s: f64,
    },
    /// The host runs short of memory.
    HostMemory {
        /// When, seconds.
        at_s: f64,
        /// How long, seconds.
        for_s: f64,
        /// Engine whose cgroup it is; of no matter for the other kinds.
        engine: String,
        /// Of which memory.
        what: Shortage,
        /// How short, share 0 to 1: of time in which all wait, of the limit, of what there is, of 1 GiB swapped in per
        /// second.
        share: f64,
    },
    /// The `oom_score_adj` of an engine's process is set.
    OomScore {
        /// When, seconds.
        at_s: f64,
        /// Which engine.
        engine: String,
        /// New value, -1000 to 1000.
        to: i32,
    },
    /// A CUDA allocation of an engine fails for want of memory.
    FailedAllocation {
        /// When, seconds.
        at_s: f64,
        /// Which engine.
        engine: String,
        /// How much it asked for, MiB.
        mib: u64,
    },
    /// More requests than usual come to the engines, none of which asks for admission.
    Burst {
        /// When, seconds.
        at_s: f64,
        /// How long, seconds.
        for_s: f64,
        /// Arrivals per second beside the usual ones.
        requests_per_second: f64,
    },
    /// The gauge of the KV cache sticks.
    StuckGauge {
        /// When, seconds.
        at_s: f64,
        /// How long, seconds.
        for_s: f64,
        /// Which engine.
        engine: String,
        /// Share that it shows, 0 to 1.
        usage: f64,
    },
    /// The driver reports an Xid error.
    Xid {
        /// When, seconds.
        at_s: f64,
        /// On which GPU, by position from 0.
        gpu: usize,
        /// Its number.
        code: u64,
    },
}

/// How an engine's processes die.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Somebody sends SIGKILL to the EngineCore.
    #[default]
    Sigkill,
    /// The kernel's OOM killer takes the worker: its cgroup is at its limit.
    OomKiller,
    /// systemd-oomd sends SIGKILL to the EngineCore.
    OomDaemon,
    /// The worker crashes.
    Segfault,
    /// The EngineCore exits with code 1.
    Exit,
    /// The EngineCore exits after a CUDA allocation failed.
    CudaOom,
    /// SIGTERM to the API server: a planned stop.
    Stop,
}

/// Which memory of the host is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortage {
    /// Processes wait for memory.
    Pressure,
    /// An engine's cgroup is near its limit.
    Cgroup,
    /// `/dev/shm` is nearly full.
    SharedMemory,
    /// Memory is swapped in.
    Swap,
}

/// What is wrong with a scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("scenario {path}: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        why: std::io::Error,
    },
    /// No TOML, an unknown key, or a value of another type.
    #[error("scenario: {0}")]
    Syntax(toml::de::Error),
    /// A value is out of its range.
    #[error("scenario: {key} = {value} is not allowed; {allowed}")]
    OutOfRange {
        /// Key.
        key: String,
        /// What it was set to.
        value: String,
        /// What is allowed.
        allowed: String,
    },
}

impl Scenario {
    /// Reads a scenario from TOML.
    ///
    /// # Errors
    /// Names the key, its value, and what is allowed.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(ScenarioError::Syntax)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The scenario for those who bring none: in half a minute it shows a denial, an incident and a recovery.
    ///
    /// # Errors
    /// None: it is a part of the program, and a test reads it.
    pub fn built_in() -> Result<Self, ScenarioError> {
        Self::parse(include_str!("scenario/built_in.toml"))
    }

    /// Reads a scenario from a file of at most [`MAX_FILE_BYTES`].
    ///
    /// # Errors
    /// As [`Self::parse`], and when the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let unreadable = |why| ScenarioError::Unreadable { path: path.display().to_string(), why };
        let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
        if bytes > MAX_FILE_BYTES {
            let message = format!("{bytes} bytes; at most {MAX_FILE_BYTES} are allowed");
            return Err(unreadable(std::io::Error::other(message)));
        }
        Self::parse(&std::fs::read_to_string(path).map_err(unreadable)?)
    }
}

impl EngineSpec {
    /// The scheduler's part of it.
    #[must_use]
    pub const fn limits(&self) -> EngineLimits {
        EngineLimits {
            blocks: self.blocks,
            block_size: self.block_size,
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            step_base: Duration::from_micros(self.step_base_us),
            step_per_sequence: Duration::from_micros(self.step_per_sequence_us),
            step_per_prefill_token: Duration::from_micros(self.step_per_prefill_token_us),
            step_jitter: self.step_jitter,
        }
    }

    fn on(gpu: usize) -> Self {
        Self {
            name: format!("sim-{gpu}"),
            model: default::model(),
            gpus: vec![gpu],
            memory_mib: default::engine_memory(),
            blocks: default::blocks(),
            block_size: default::block_size(),
            max_model_len: default::window(),
            max_num_seqs: default::sequences(),
            max_num_batched_tokens: default::batched(),
            step_base_us: default::step_base(),
            step_per_sequence_us: default::step_per_sequence(),
            step_per_prefill_token_us: default::step_per_prefill_token(),
            step_jitter: default::jitter(),
            load_ms: 0,
        }
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            seed: 1,
            gpus: vec![Gpu::default(), Gpu::default()],
            engines: vec![EngineSpec::on(0), EngineSpec::on(1)],
            traffic: Traffic::default(),
            incidents: Vec::new(),
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self { name: "NVIDIA H100 80GB HBM3".into(), memory_mib: 81_559, reserved_mib: 551 }
    }
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            requests_per_second: 6.0,
            prompt_tokens: Length { median: 400, p95: 2000, max: 6000 },
            output_tokens: Length { median: 150, p95: 600, max: 2000 },
            max_tokens: 512,
            without_max_tokens: 0.5,
            bypass: 0.1,
            lost_completions: 0.01,
        }
    }
}

/// An engine of an 8-billion-parameter model, with a pool small enough that a little traffic shows.
mod default {
    pub(super) fn model() -> String {
        "sim-8b".into()
    }
    pub(super) const fn engine_memory() -> u64 {
        73_403
    }
    pub(super) const fn blocks() -> u64 {
        4096
    }
    pub(super) const fn block_size() -> u64 {
        16
    }
    pub(super) const fn window() -> u64 {
        8192
    }
    pub(super) const fn sequences() -> usize {
        256
    }
    pub(super) const fn batched() -> u64 {
        2048
    }
    pub(super) const fn step_base() -> u64 {
        20_000
    }
    pub(super) const fn step_per_sequence() -> u64 {
        100
    }
    pub(super) const fn step_per_prefill_token() -> u64 {
        40
    }
    pub(super) const fn jitter() -> f64 {
        0.05
    }
}
