//! The node as it stands, for those who look: built under the lock at a bounded rate, read without it.

use std::{sync::Arc, time::Duration};

use crate::{
    counts::{Answered, DecisionCounts},
    event::{Event, EventKind},
    guard::Held,
    observation::{DeviceMemory, EngineProcess, ModelSource, Obstacle, SourceHealth, SumCount},
    report::Fared,
    request::{Class, Headroom},
    settings::Mode,
    units::{Blocks, Bytes, Mono, Tokens},
};

/// The node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Mono,
    /// Counts up with every snapshot.
    pub generation: u64,
    /// Epoch of this daemon's reservation ids.
    pub epoch: u32,
    /// Engines by id.
    pub engines: Vec<EngineSnapshot>,
    /// Devices by index.
    pub devices: Vec<DeviceSnapshot>,
    /// Sources by name.
    pub sources: Vec<SourceSnapshot>,
    /// Newest events, oldest first, at most 256.
    pub events: Vec<Event>,
    /// Warnings that hold.
    pub warnings: Vec<Warning>,
    /// Decisions since start.
    pub decisions: DecisionCounts,
    /// Reservations held.
    pub reservations: u64,
    /// Most that can be held.
    pub reservations_limit: u64,
}

/// A warning that holds: its event was told, and that it is over was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Kind of its event.
    pub kind: EventKind,
    /// What it is about.
    pub about: About,
    /// It follows from what another event told already: no alert of its own.
    pub consequence: bool,
}

/// What something is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// An engine, by id.
    Engine(Arc<str>),
    /// A device, by UUID.
    Device(Arc<str>),
    /// A part of the host: a cgroup, a mount, the machine.
    Host(Arc<str>),
}

/// What an engine can do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineState {
    /// Found, not answering yet.
    Starting,
    /// Serving.
    Ready,
    /// Shutting down as planned.
    Draining,
    /// Perhaps frozen.
    Suspect,
    /// Frozen.
    Stalled,
    /// In sleep mode.
    Asleep,
    /// Alive, metrics unreadable.
    Unknown,
    /// Dead.
    Down,
}

/// One engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSnapshot {
    /// Engine id.
    pub engine: Arc<str>,
    /// Where it listens.
    pub address: Arc<str>,
    /// Software and version.
    pub version: Option<String>,
    /// Models it serves.
    pub models: Vec<Arc<str>>,
    /// State.
    pub state: EngineState,
    /// Why.
    pub state_reason: String,
    /// Since when.
    pub state_since: Mono,
    /// Mode.
    pub mode: Mode,
    /// Headroom for a standard request; `None`: unknown.
    pub headroom: Option<Headroom>,
    /// Headroom by class; `None`: unknown.
    pub headrooms: Headrooms,
    /// What is asked of it.
    pub demand: Demand,
    /// What was denied of that.
    pub rejections: Rejections,
    /// Pools by rank.
    pub pools: Vec<PoolSnapshot>,
    /// Context window.
    pub max_model_len: Option<Tokens>,
    /// Devices its processes hold.
    pub devices: Vec<Arc<str>>,
    /// Its processes.
    pub processes: Vec<EngineProcess>,
    /// Reservations held.
    pub reservations: u64,
    /// Of those, orphans.
    pub orphans: u64,
    /// Measured output tokens per second and running request.
    pub token_rate: Option<f64>,
    /// Interval between two readings.
    pub scrape_interval: Option<Duration>,
    /// CPU that reading costs the engine, share of a core.
    pub scrape_cpu_share: Option<f64>,
    /// Requests at the engine that did not come through admission.
    pub bypass_requests: Option<u64>,
    /// Prompt sizes held back from it.
    pub guards: Vec<Held>,
    /// Requests that wait here for room in it.
    pub queued: u64,
    /// Decisions since it was found, but for the callers' mistakes.
    pub answered: Answered,
    /// Times to the first token that were predicted for those admitted, since it was found.
    pub ttft_predicted: SumCount,
    /// The same as the engine measured it, of all its requests; `None`: it does not tell.
    pub ttft_measured: Option<SumCount>,
    /// How it fared while denials were due, as in the report but since it was found.
    pub pressed: Fared,
    /// How it fared otherwise.
    pub calm: Fared,
    /// Where its tokenizer is from.
    pub model_source: Option<Arc<ModelSource>>,
    /// How it was set up.
    pub settings: EngineSettings,
}

/// How an engine was set up, as far as its command line and its metrics tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineSettings {
    /// Whether its version's metrics are understood.
    pub version_known: bool,
    /// Share of device memory it may take.
    pub gpu_memory_utilization: Option<f64>,
    /// Most running sequences of one rank.
    pub max_num_seqs: Option<u64>,
    /// Most tokens per step.
    pub max_num_batched_tokens: Option<u64>,
    /// Whether its statistics are switched off.
    pub statistics_off: bool,
    /// Whether its metrics are read in the filtered form; `None`: not read yet.
    pub metrics_filtered: Option<bool>,
    /// Why it cannot be asked for its figures.
    pub obstacle: Option<Obstacle>,
}

/// Headroom of an engine for requests of each class; they differ by the risk that each may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headrooms {
    /// For interactive requests.
    pub interactive: Option<Headroom>,
    /// For standard ones.
    pub standard: Option<Headroom>,
    /// For batch.
    pub batch: Option<Headroom>,
}

impl Headrooms {
    /// In the order of the classes.
    #[must_use]
    pub const fn by_class(&self) -> [(Class, Option<Headroom>); 3] {
        let Self { interactive, standard, batch } = *self;
        [(Class::Interactive, interactive), (Class::Standard, standard), (Class::Batch, batch)]
    }
}

/// What one engine can take now, for those who read it at each decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room<'a> {
    /// Engine id.
    pub engine: &'a Arc<str>,
    /// State.
    pub state: EngineState,
    /// Headroom by class.
    pub headrooms: Headrooms,
    /// Reservations held.
    pub reservations: u64,
    /// Admitted since the engine was found.
    pub admitted: u64,
    /// Denied, but for the callers' mistakes.
    pub denied: u64,
    /// Demand against what it can do, 1 = as much; `None`: unknown.
    pub demand: Option<f64>,
}

/// What a call changed, for those who show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touched {
    /// No engine's room.
    #[default]
    None,
    /// That of the engine at this index.
    One(usize),
    /// Several, or the list of engines itself.
    All,
}

/// What is asked of an engine against what it can do; 1 is as much as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// The larger of the two; `None`: neither is known.
    pub ratio: Option<f64>,
    /// Blocks that all asks would hold on the average, against those that they may hold.
    pub occupancy: Option<f64>,
    /// Seconds of prefill asked for in a second.
    pub prefill: Option<f64>,
    /// Age of the reading that it rests on.
    pub age: Option<Duration>,
    /// It was above 1 for long, and not low since.
    pub scale_up: bool,
}

/// Denials of the last minutes, but for the callers' mistakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejections {
    /// Time covered.
    pub window: Duration,
    /// Decisions.
    pub decided: u64,
    /// Of those, denials.
    pub denied: u64,
    /// What that says; `None`: nothing was asked.
    pub reading: Option<RejectionsReading>,
}

/// What a share of rejections says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionsReading {
    /// None for the whole window: there is more than is needed, or the gate is not asked for what counts.
    Unused,
    /// Below 2 %.
    Fine,
    /// 2 to 5 %: well used at a peak.
    Edge,
    /// 5 to 10 %.
    Strained,
    /// Above 10 %: users go away.
    LosingUsers,
}

/// One rank's pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSnapshot {
    /// Rank.
    pub rank: u32,
    /// Usable blocks.
    pub total: Option<Blocks>,
    /// Tokens per block.
    pub block_size: Option<u64>,
    /// Reported use.
    pub reported: Option<Blocks>,
    /// Corrected use now: (low, estimate, high).
    pub corrected: Option<(Blocks, Blocks, Blocks)>,
    /// Use if every live reservation grows to all it may.
    pub committed: Option<Blocks>,
    /// Running requests as reported.
    pub running: Option<u64>,
    /// Waiting requests as reported.
    pub waiting: Option<u64>,
    /// Age of the reading.
    pub age: Option<Duration>,
}

/// One device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSnapshot {
    /// UUID.
    pub uuid: Arc<str>,
    /// Position in NVML's order.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// PCI address.
    pub pci: String,
    /// GPU that this MIG instance is part of.
    pub parent: Option<Arc<str>>,
    /// Memory and its split; `None`: unknown or too old.
    pub memory: Option<MemorySplit>,
    /// Age of the last memory reading.
    pub age: Option<Duration>,
    /// Percent of time in which a kernel ran.
    pub utilisation_percent: Option<u32>,
    /// Engines on it.
    pub engines: Vec<Arc<str>>,
    /// What is wrong; empty when all is well.
    pub problem: String,
}

/// Where a device's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySplit {
    /// As NVML tells it.
    pub memory: DeviceMemory,
    /// Held by engines; `None`: NVML does not tell per process.
    pub engine: Option<Bytes>,
    /// Held by other processes.
    pub co_tenant: Option<Bytes>,
    /// Used, but of no named process.
    pub unattributed: Option<Bytes>,
}

/// One source.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSnapshot {
    /// Name.
    pub source: Arc<str>,
    /// Health.
    pub health: SourceHealth,
    /// One sentence.
    pub detail: String,
    /// Time since it last reported.
    pub age: Duration,
    /// Time spent inside its calls since start.
    pub busy: Option<Duration>,
}
