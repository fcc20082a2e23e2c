//! What is seen of the host: its memory, and what the scheduler says of engines' processes.

use std::sync::Arc;

use crate::units::{Bytes, Span};

/// Most processes in one look.
pub const MAX_STATES: usize = 4096;

/// One fact about the host.
#[derive(Clone, Debug, PartialEq)]
pub enum HostFact {
    /// States of engines' own processes.
    Processes {
        /// When.
        span: Span,
        /// One for each that is there; at most [`MAX_STATES`].
        states: Vec<ProcessState>,
    },
    /// Time that processes waited for memory (`/proc/pressure/memory`, or a cgroup's `memory.pressure`).
    Pressure(Pressure),
    /// A memory cgroup that engines' processes are in.
    Cgroup(Box<CgroupMemory>),
    /// A file system in memory that processes exchange data through.
    SharedMemory {
        /// When.
        span: Span,
        /// Where it is mounted.
        mount: Arc<str>,
        /// What it may hold.
        total: Bytes,
        /// What it holds.
        used: Bytes,
    },
    /// Memory that was swapped in (`pswpin` of `/proc/vmstat`).
    SwapIn {
        /// When.
        span: Span,
        /// Per second, since the look before.
        per_second: Bytes,
    },
}

/// What the scheduler says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessState {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// What it does.
    pub state: Scheduled,
}

/// State of a process (proc(5), `/proc/PID/stat` field 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduled {
    /// Runs or sleeps (R, S, I).
    Normal,
    /// In a call that cannot be interrupted (D): storage, or the GPU's driver.
    Uninterruptible,
    /// Stopped by a signal or a debugger (T, t).
    Stopped,
    /// On its way out: dead, a zombie, or writing its core dump.
    Ending,
}

/// How memory is waited for.
#[derive(Clone, Debug, PartialEq)]
pub struct Pressure {
    /// When.
    pub span: Span,
    /// The cgroup, by its path; `None`: the whole machine.
    pub cgroup: Option<Arc<str>>,
    /// Share of the last 10 seconds in which some process waited, percent 0 to 100.
    pub some_percent: f64,
    /// In which all waited.
    pub full_percent: f64,
}

/// A memory cgroup.
#[derive(Clone, Debug, PartialEq)]
pub struct CgroupMemory {
    /// When.
    pub span: Span,
    /// Its path.
    pub path: Arc<str>,
    /// Engines with processes in it.
    pub engines: Vec<Arc<str>>,
    /// Its limit, or the lowest of those above it; `None`: none.
    pub limit: Option<Bytes>,
    /// Memory that cannot be reclaimed by dropping file caches: what counts towards an OOM kill.
    pub in_use: Bytes,
    /// Times that the limit was hit and could not be kept by reclaiming (`oom` of memory.events; v1: failcnt does not say
    /// so, hence `None`).
    pub oom: Option<u64>,
    /// Processes killed in it for want of memory.
    pub oom_kills: Option<u64>,
}
