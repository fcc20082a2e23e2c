//! What sources tell the node. A source knows nothing of admission: it says what it saw and when.

use std::{sync::Arc, time::Duration};

use crate::{
    host::HostFact,
    units::{Bytes, Span, Tokens},
};

/// Most data-parallel ranks that one engine's reading may have; more are not kept by sources.
pub const MAX_RANKS: usize = 64;

/// One fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// An engine exists, and this is what is known of it. Sent when found and whenever something changed.
    Engine(Box<EngineFacts>),
    /// None of an engine's own processes is left, or its configuration entry was removed.
    EngineGone {
        /// Engine id.
        engine: Arc<str>,
        /// When it was seen to be gone.
        span: Span,
        /// One sentence: who noticed and how.
        evidence: String,
    },
    /// A scrape delivered.
    Reading {
        /// Engine id.
        engine: Arc<str>,
        /// What it delivered.
        reading: Box<EngineReading>,
    },
    /// A scrape failed.
    ScrapeFailed {
        /// Engine id.
        engine: Arc<str>,
        /// From the attempt to its failure.
        span: Span,
        /// How.
        failure: ScrapeFailure,
    },
    /// A device's memory was read.
    Device(Box<DeviceReading>),
    /// A device's compute processes were listed.
    DeviceProcesses(DeviceProcesses),
    /// Something happened to a device.
    DeviceEvent {
        /// Device UUID; of a lost device, from the cache by PCI address.
        uuid: Arc<str>,
        /// When.
        span: Span,
        /// What.
        event: DeviceEvent,
    },
    /// Something happened to a process.
    Process(Box<ProcessEvent>),
    /// The host's memory or scheduler was looked at.
    Host(HostFact),
    /// How a source fares.
    Source(SourceReport),
}

/// What discovery or configuration knows of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineFacts {
    /// Stable id, unique on the node: configured, or `vllm-PORT`. At most 128 bytes.
    pub engine: Arc<str>,
    /// `http://127.0.0.1:8000` or `unix:/path`.
    pub address: Arc<str>,
    /// Why it cannot be asked, by its start line.
    pub obstacle: Option<Obstacle>,
    /// When these facts were gathered.
    pub span: Span,
    /// Software and version, `vllm 0.32.0`.
    pub version: Option<String>,
    /// Whether that version's metrics are known to be understood; unknown versions are only observed.
    pub version_known: bool,
    /// Models served, adapters included as far as known.
    pub models: Vec<ServedModel>,
    /// Whether adapters may be loaded at runtime, so that an unlisted model name may still be served.
    pub adapters_at_runtime: bool,
    /// Its processes.
    pub processes: Vec<EngineProcess>,
    /// Tokens per block from its command line.
    pub block_size: Option<u64>,
    /// Most running sequences from its command line.
    pub max_num_seqs: Option<u64>,
    /// Most tokens per step from its command line.
    pub max_num_batched_tokens: Option<u64>,
    /// Share of device memory it may take, from its command line.
    pub gpu_memory_utilization: Option<f64>,
    /// Data-parallel ranks behind this address. At least 1.
    pub data_parallel_size: u32,
    /// Where its model's tokenizer is from, where its process is seen.
    pub model_source: Option<Arc<ModelSource>>,
    /// Whether its command line switches its statistics off, so that its metrics tell nothing.
    pub statistics_off: bool,
    /// Whether its metrics are read in the filtered form, which costs it a fifth; `None`: not read yet.
    pub metrics_filtered: Option<bool>,
}

/// Why an engine cannot be asked for its figures, by its start line. Once it has had its time to start, it is only observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It serves TLS (`--ssl-certfile`, `--ssl-keyfile`).
    Tls,
    /// It serves gRPC instead of HTTP (`--grpc`).
    Grpc,
    /// It has no API server (`--headless`).
    Headless,
    /// Its Unix socket is relative to a folder that cannot be seen.
    RelativeSocket,
}

impl Obstacle {
    /// For sentences.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tls => "it serves TLS (--ssl-certfile, --ssl-keyfile), which gpuadmit does not speak",
            Self::Grpc => "it serves gRPC (--grpc), which has no /metrics",
            Self::Headless => "it has no API server (--headless): that of another node answers for it",
            Self::RelativeSocket => {
                "its --uds is a relative path, and its working directory cannot be seen without CAP_SYS_PTRACE"
            }
        }
    }
}

/// Where an engine has its tokenizer from, by its command line and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSource {
    /// A folder, a tokenizer.json, or a repository's name.
    pub name: Arc<str>,
    /// Folder that a relative one is relative to.
    pub folder: Option<Arc<str>>,
    /// Hugging Face caches, by precedence.
    pub caches: Vec<Arc<str>>,
    /// Revision in such a cache; `main` where it was told none.
    pub revision: Option<Arc<str>>,
    /// File with the chat template, where it was told one.
    pub chat_template: Option<Arc<str>>,
    /// Variables of every chat template, as JSON; what is no JSON object is not known.
    pub template_kwargs: Option<Arc<str>>,
    /// Form in which a chat template gets a message's content: `string` or `openai`, where it was told.
    pub content_format: Option<Arc<str>>,
    /// Where its files are when they are not ours: its root folder as we see it, of an engine in a container.
    pub root: Option<Arc<str>>,
}

/// A model name an engine answers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// As clients send it. At most 256 bytes.
    pub name: Arc<str>,
    /// Context window.
    pub max_model_len: Option<Tokens>,
}

/// A process of an engine. Identity is (pid, start time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineProcess {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat` field 22).
    pub start_ticks: u64,
    /// What it does.
    pub role: ProcessRole,
}

/// What a process does for its engine. The death of a helper never closes an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessRole {
    /// Listens for HTTP.
    ApiServer,
    /// Schedules.
    EngineCore,
    /// Runs the model.
    Worker,
    /// Compiler, tokenizer pool, resource tracker, …
    Helper,
}

impl ProcessRole {
    /// For sentences.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ApiServer => "API server",
            Self::EngineCore => "EngineCore",
            Self::Worker => "worker",
            Self::Helper => "helper",
        }
    }
}

/// One scrape of `/metrics`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineReading {
    /// From sending the request to having the whole body.
    pub span: Span,
    /// One per data-parallel rank, by rank; at most [`MAX_RANKS`].
    pub ranks: Vec<RankReading>,
    /// Whether the engine is in sleep mode, where it tells.
    pub asleep: Option<bool>,
    /// `process_start_time_seconds` of the API server, where it tells; another value is another life.
    pub process_start: Option<f64>,
    /// Interval to the next scrape.
    pub interval: Duration,
    /// CPU seconds that one scrape costs the engine, as known for this form of scrape.
    pub cpu_cost: Duration,
    /// Lines or values of the body that were not understood and left out.
    pub malformed: u64,
}

/// One rank's figures. Missing is `None`, never zero. Counters count from the engine's start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankReading {
    /// Rank (`engine` label), from 0.
    pub rank: u32,
    /// Share of the pool in use, 0 to 1: `1 - free / (blocks - 1)` (vLLM v1/core/block_pool.py).
    pub kv_usage: Option<f64>,
    /// Requests in the batch.
    pub running: Option<u64>,
    /// Requests waiting for room in the engine.
    pub waiting: Option<u64>,
    /// Of those, waiting for something else than KV room (`reason="deferred"`).
    pub waiting_deferred: Option<u64>,
    /// Blocks of this rank's pool, the null block included; the sum over ranks already undone.
    pub num_gpu_blocks: Option<u64>,
    /// Tokens per block as reported; hybrid models report one that does not multiply out.
    pub block_size: Option<u64>,
    /// Tokens that the pool holds, where told.
    pub kv_cache_size_tokens: Option<u64>,
    /// Memory of the pool, where told.
    pub kv_cache_memory: Option<Bytes>,
    /// Prompt tokens of requests that have passed prefill.
    pub prompt_tokens: Option<u64>,
    /// Tokens generated.
    pub generation_tokens: Option<u64>,
    /// Requests that ended, however they ended.
    pub finished: Option<u64>,
    /// Of those, cut off at their max_tokens or at the window.
    pub cut: Option<u64>,
    /// Preemptions (counted late: never a trigger).
    pub preemptions: Option<u64>,
    /// Engine steps (count of `iteration_tokens_total`).
    pub steps: Option<u64>,
    /// Prefix cache look-ups, tokens.
    pub prefix_queries: Option<u64>,
    /// Prefix cache hits, tokens.
    pub prefix_hits: Option<u64>,
    /// Time to first token.
    pub ttft: Option<SumCount>,
    /// Time between two tokens of a request.
    pub inter_token: Option<SumCount>,
    /// Time in the engine's queue.
    pub queue_time: Option<SumCount>,
    /// Time in prefill.
    pub prefill_time: Option<SumCount>,
    /// Output lengths of ended requests: (upper bound in tokens, cumulative count), ascending; the last is +Inf.
    pub generation_lengths: Vec<(f64, u64)>,
}

/// Sum and count of a histogram; sums of times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SumCount {
    /// Sum of the observed values.
    pub sum: f64,
    /// How many.
    pub count: u64,
}

impl SumCount {
    pub(crate) fn add(&mut self, value: f64) {
        (self.sum, self.count) = (self.sum + value, self.count.saturating_add(1));
    }
}

/// How a scrape failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScrapeFailure {
    /// Nothing listens.
    Refused,
    /// No whole answer within the deadline. The engine may be busy: this alone says nothing.
    TimedOut,
    /// An HTTP status other than 200; 401 and 403 mean alive.
    Status(u16),
    /// 200, but no series of an engine in it (statistics switched off, or another program).
    NoSeries,
    /// The body broke a bound or is no exposition text.
    Malformed(String),
    /// Another error of the connection.
    Connection(String),
}

/// A device's memory and load.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceReading {
    /// When it was read.
    pub span: Span,
    /// `GPU-…` or `MIG-…`.
    pub uuid: Arc<str>,
    /// Position in NVML's order.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// PCI address.
    pub pci: String,
    /// UUID of the GPU that this MIG instance is part of.
    pub parent: Option<Arc<str>>,
    /// Its ids in that GPU, of a MIG instance whose driver tells them.
    pub instance: Option<MigInstance>,
    /// Memory; `None` where the device has none of its own (integrated GPUs) or the call failed.
    pub memory: Option<DeviceMemory>,
    /// Percent of time in which a kernel ran.
    pub utilisation_percent: Option<u32>,
    /// What could not be read, one sentence; empty when all was.
    pub problem: String,
}

/// Which MIG instance of its GPU a device is, by the ids that the driver's log has as `GPU-I` and `GPU-CI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigInstance {
    /// GPU instance id (`nvmlDeviceGetGpuInstanceId`).
    pub gpu: u32,
    /// Compute instance id in that GPU instance (`nvmlDeviceGetComputeInstanceId`).
    pub compute: u32,
}

/// Memory as NVML tells it. With `reserved`: used + free + reserved = total (nvmlMemory_v2_t); without: used includes
/// what the driver reserves (nvmlMemory_t).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All of it.
    pub total: Bytes,
    /// Held by the driver.
    pub reserved: Option<Bytes>,
    /// In use.
    pub used: Bytes,
    /// Free.
    pub free: Bytes,
}

/// Compute processes on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProcesses {
    /// When they were listed.
    pub span: Span,
    /// The device.
    pub uuid: Arc<str>,
    /// The processes.
    pub processes: Vec<DeviceProcess>,
}

/// A process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProcess {
    /// Process id in the host's namespace.
    pub pid: u32,
    /// Its memory; `None` where NVML does not tell.
    pub used: Option<Bytes>,
}

/// Something that happened to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The driver reported an Xid error.
    Xid {
        /// Its number.
        code: u64,
    },
    /// A single-bit ECC error was corrected.
    EccCorrected,
    /// A double-bit ECC error.
    EccUncorrected,
    /// The device is gone from the driver.
    Lost,
    /// A call for it has not returned within its deadline.
    Hung,
    /// It answers again.
    Recovered,
}

/// Something that happened to a process. Of processes that are no engine's only [`ProcessChange::OomVictim`] is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEvent {
    /// When: the kernel's own time where the kernel told, else between the two looks that enclose it.
    pub span: Span,
    /// Process (thread group) id in the host's namespace.
    pub pid: u32,
    /// Its start time in clock ticks since boot, where known; with the id it names one process for ever.
    pub start_ticks: Option<u64>,
    /// Its name, at most 15 bytes; empty: unknown.
    pub comm: Box<str>,
    /// Whether it was watched as an engine's process or the descendant of one.
    pub watched: bool,
    /// What happened.
    pub what: ProcessChange,
}

/// What happened to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessChange {
    /// The whole process, its last thread, ended.
    Exit {
        /// Exit code, 0 to 255; `None`: by a signal, or unknown.
        code: Option<i32>,
        /// Signal that ended it; `None`: none, or unknown.
        signal: Option<i32>,
    },
    /// A signal was sent to it that ends it unless it is handled: KILL, SEGV, ABRT, BUS or TERM.
    Signal {
        /// Its number.
        number: i32,
        /// `si_code` of siginfo: 0 from a user's kill(2), `0x80` and above 0 from the kernel.
        code: i32,
        /// Who sent it: of a signal by the kernel the process in whose context it did, often the victim itself.
        sender: Sender,
    },
    /// The kernel's OOM killer chose it.
    OomVictim {
        /// Its resident memory at that time.
        rss: Option<Resident>,
        /// Whose memory ran out. `None`: not known, or told by a later event of the same victim.
        scope: Option<OomScope>,
    },
    /// Its `oom_score_adj` was set.
    OomScoreAdjusted {
        /// Value before, where known.
        from: Option<i32>,
        /// New value, -1000 to 1000.
        to: i32,
    },
    /// It forked: the child is watched as well.
    Forked {
        /// Process id of the child.
        child: u32,
        /// Start time of the child in clock ticks since boot.
        child_start_ticks: Option<u64>,
    },
    /// It executes another program; the event's name is the new one.
    Exec,
    /// A CUDA allocation failed for want of memory (`CUDA_ERROR_OUT_OF_MEMORY`, 2).
    AllocationFailed {
        /// Bytes asked for, where the call tells.
        requested: Option<Bytes>,
        /// Driver call, `cuMemAlloc_v2`.
        call: &'static str,
    },
    /// CUDA memory that it took and gave back within the span.
    Allocated {
        /// Taken.
        allocated: Bytes,
        /// Given back.
        freed: Bytes,
        /// Allocations that failed for want of memory; each is also told by itself, unless that was lost.
        failed: u64,
    },
    /// A thread whose allocation had failed got as much: it made room and tried again.
    AllocationRetried {
        /// Bytes that it got.
        requested: Bytes,
        /// Driver call, `cuMemAlloc_v2`.
        call: &'static str,
    },
}

/// Sender of a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Process id.
    pub pid: u32,
    /// Name, at most 15 bytes.
    pub comm: Box<str>,
    /// Whether the kernel itself sent it (a fault, the OOM killer) and not a program.
    pub kernel: bool,
}

/// Resident memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Of its own.
    pub anonymous: Bytes,
    /// Of mapped files.
    pub file: Bytes,
    /// Shared (shmem, `/dev/shm`).
    pub shared: Bytes,
}

/// Whose memory ran out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OomScope {
    /// The machine's, or that of a NUMA node or cpuset.
    Machine,
    /// That of a memory cgroup.
    Cgroup(Box<str>),
}

/// How a source fares. Sent on change, and at least once a second while it delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReport {
    /// `nvml`, `discovery`, `kernel`, `metrics/ENGINE`.
    pub source: Arc<str>,
    /// When. `kernel` has told all that happened before `not_before`.
    pub span: Span,
    /// Health.
    pub health: SourceHealth,
    /// One sentence.
    pub detail: String,
    /// Time spent inside its calls since start, where that is a cost worth telling.
    pub busy: Option<Duration>,
}

/// Health of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceHealth {
    /// Delivers.
    Ok,
    /// Delivers part, or late.
    Degraded,
    /// Delivers nothing.
    Failed,
    /// Not there.
    Absent,
}
