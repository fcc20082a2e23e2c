//! Events: what an operator is told, once per cause.

use std::{collections::VecDeque, sync::Arc};

use crate::{units::Mono, verdict::Cause};

/// Events kept; older ones are forgotten and counted.
pub const EVENT_HISTORY: usize = 1024;

/// How grave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Look at it.
    Warning,
    /// Act now.
    Critical,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $severity:ident;)*) => {
        /// What happened: a closed list of stable words.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind {
            $($(#[$doc])* $variant,)*
        }

        impl EventKind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The one spelling.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// How grave.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity),* }
            }
        }
    };
}

kinds! {
    /// An engine was found.
    EngineFound, "ENGINE_FOUND", Info;
    /// An engine serves.
    EngineReady, "ENGINE_READY", Info;
    /// An engine shuts down as planned.
    EngineDraining, "ENGINE_DRAINING", Info;
    /// An engine ended as planned: it was asked to stop, or exited without an error.
    EngineStopped, "ENGINE_STOPPED", Info;
    /// An engine went to sleep.
    EngineAsleep, "ENGINE_ASLEEP", Info;
    /// An engine may be frozen.
    EngineSuspect, "ENGINE_SUSPECT", Warning;
    /// An engine is frozen.
    EngineStalled, "ENGINE_STALLED", Critical;
    /// An engine lives but its metrics cannot be read.
    EngineUnknown, "ENGINE_UNKNOWN", Warning;
    /// An engine was lost; the cause and the message name process and author.
    EngineDown, "ENGINE_DOWN", Critical;
    /// An engine was started again.
    EngineRestarted, "ENGINE_RESTARTED", Warning;
    /// A device cannot be read any more.
    DeviceLost, "DEVICE_LOST", Critical;
    /// A call into the driver does not return.
    NvmlHung, "NVML_HUNG", Warning;
    /// A device can be read again.
    DeviceRecovered, "DEVICE_RECOVERED", Info;
    /// The driver reported an error that ends processes or takes the GPU out of use.
    Xid, "XID", Critical;
    /// The driver reported an error that needs no action yet.
    XidNotice, "XID_NOTICE", Warning;
    /// A double-bit memory error.
    EccUncorrected, "ECC_UNCORRECTED", Critical;
    /// Processes that are no engine's take memory that an engine may need, or will soon at their pace.
    CoTenantGrowth, "CO_TENANT_GROWTH", Warning;
    /// They gave it back, or stopped growing.
    CoTenantReceded, "CO_TENANT_RECEDED", Info;
    /// More is asked of an engine than it can do: another one would help.
    ScaleUp, "SCALE_UP", Warning;
    /// It can do again what is asked.
    ScaleUpOver, "SCALE_UP_OVER", Info;
    /// Less device memory is free than an engine has needed before, while others hold some.
    DeviceMemoryLow, "DEVICE_MEMORY_LOW", Warning;
    /// A CUDA allocation of an engine failed for want of memory.
    AllocationFailed, "ALLOCATION_FAILED", Warning;
    /// A CUDA allocation of an engine failed although memory is free; engines try again after such.
    AllocationRefused, "ALLOCATION_REFUSED", Info;
    /// At its present slope a KV cache will soon be full.
    KvFilling, "KV_FILLING", Warning;
    /// An engine preempts requests: fewer run and more wait than arrivals and ends explain.
    PreemptionOnset, "PREEMPTION_ONSET", Warning;
    /// Processes wait for host memory (pressure stall information), or it is swapped in.
    MemoryPressure, "MEMORY_PRESSURE", Warning;
    /// An engine's memory cgroup is near its limit.
    CgroupNearLimit, "CGROUP_NEAR_LIMIT", Warning;
    /// Shared memory that engines' processes exchange tensors through is nearly full.
    SharedMemoryNearFull, "SHARED_MEMORY_NEAR_FULL", Warning;
    /// An engine's process became a likelier choice of the OOM killer.
    OomScoreRaised, "OOM_SCORE_RAISED", Warning;
    /// The kernel's OOM killer killed a process that is no engine's.
    OomKill, "OOM_KILL", Warning;
    /// An engine's figures do not follow what it does.
    MetricsStuck, "METRICS_STUCK", Warning;
    /// What an earlier event warned of is over.
    AlertOver, "ALERT_OVER", Info;
    /// Prompts of a size that killed an engine twice are held back from it.
    GuardSet, "GUARD_SET", Warning;
    /// They are no longer held back.
    GuardLifted, "GUARD_LIFTED", Info;
    /// A source stopped delivering.
    SourceFailed, "SOURCE_FAILED", Warning;
    /// A source delivers again.
    SourceRecovered, "SOURCE_RECOVERED", Info;
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Position in the history, from 1, without gaps.
    pub cursor: u64,
    /// When.
    pub at: Mono,
    /// What.
    pub kind: EventKind,
    /// Engine concerned.
    pub engine: Option<Arc<str>>,
    /// Device concerned.
    pub device: Option<Arc<str>>,
    /// One sentence with the evidence.
    pub message: String,
    /// Of a lost engine: who ended it.
    pub cause: Option<Cause>,
    /// Cursor of the event that has told the same trouble already: this one is a consequence, no alert of its own.
    pub caused_by: Option<u64>,
}

/// The bounded history.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: VecDeque<Event>,
    newest: u64,
}

impl History {
    /// Adds an event; forgets the oldest beyond [`EVENT_HISTORY`]. Returns its cursor.
    pub fn push(
        &mut self,
        at: Mono,
        kind: EventKind,
        engine: Option<&Arc<str>>,
        device: Option<&Arc<str>>,
        message: String,
    ) -> u64 {
        self.newest = self.newest.saturating_add(1);
        if self.events.len() >= EVENT_HISTORY {
            self.events.pop_front();
        }
        let (engine, device) = (engine.cloned(), device.cloned());
        let (cause, caused_by) = (None, None);
        let cursor = self.newest;
        self.events.push_back(Event { cursor, at, kind, engine, device, message, cause, caused_by });
        cursor
    }

    /// Says who ended the engine that the newest event tells of, and which event has told the same trouble already.
    pub fn explain_newest(&mut self, cause: Option<Cause>, caused_by: Option<u64>) {
        if let Some(event) = self.events.back_mut() {
            (event.cause, event.caused_by) = (cause, caused_by);
        }
    }

    /// Cursor of the newest event; 0 when there was none.
    #[must_use]
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// Events behind `cursor`, oldest first, at most `most`, and how many behind it are forgotten.
    #[must_use]
    pub fn after(&self, cursor: u64, most: usize) -> (Vec<Event>, u64) {
        let oldest = self.events.front().map_or(self.newest + 1, |event| event.cursor);
        let missed = oldest.saturating_sub(1).saturating_sub(cursor);
        let kept = self.events.iter().filter(|event| event.cursor > cursor).take(most).cloned().collect();
        (kept, missed)
    }
}
