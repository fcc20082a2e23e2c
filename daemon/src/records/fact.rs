//! Facts in a line.

use gpuadmit_core::{
    host::{HostFact, ProcessState, Scheduled},
    observation::{
        DeviceEvent, DeviceProcesses, DeviceReading, EngineFacts, EngineReading, Observation, OomScope,
        ProcessChange, ProcessEvent, ScrapeFailure, Sender,
    },
    units::{Bytes, Span},
};
use serde::{Deserialize, Serialize};

use super::wire::{PlainDevice, PlainFacts, PlainListed, PlainReading, Wire};

/// A fact that a decision may rest on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fact {
    Engine(PlainFacts),
    Gone {
        engine: String,
        span: (u64, u64),
        evidence: String,
    },
    Reading {
        engine: String,
        reading: PlainReading,
    },
    Failed {
        engine: String,
        span: (u64, u64),
        how: Failed,
    },
    Device(PlainDevice),
    DeviceProcesses(PlainListed),
    Process {
        span: (u64, u64),
        pid: u32,
        start_ticks: Option<u64>,
        comm: String,
        watched: bool,
        what: Changed,
    },
    /// Process id, start time, and number of the state.
    States {
        span: (u64, u64),
        states: Vec<(u32, u64, u8)>,
    },
    DeviceEvent {
        uuid: String,
        span: (u64, u64),
        what: Happened,
    },
}

/// What happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Happened {
    Xid(u64),
    EccUncorrected,
    Lost,
    Hung,
    Recovered,
}

/// How a scrape failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failed {
    Refused,
    TimedOut,
    Status(u16),
    NoSeries,
    Malformed(String),
    Connection(String),
}

/// What happened to a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Changed {
    Exit { code: Option<i32>, signal: Option<i32> },
    Signal { number: i32, code: i32, pid: u32, comm: String, kernel: bool },
    OomVictim { cgroup: Option<String>, machine: bool },
    AllocationFailed { requested: Option<u64> },
    AllocationRetried { requested: u64 },
    Allocated { allocated: u64, freed: u64 },
}

impl Fact {
    /// Of an observation; `None`: it says nothing that a decision could rest on.
    pub(crate) fn of(observation: &Observation) -> Option<Self> {
        Some(match observation {
            Observation::Engine(facts) => Self::Engine(facts.to_plain()),
            Observation::EngineGone { engine, span, evidence } => {
                Self::Gone { engine: engine.to_plain(), span: span.to_plain(), evidence: evidence.clone() }
            }
            Observation::Reading { engine, reading } => {
                Self::Reading { engine: engine.to_plain(), reading: reading.to_plain() }
            }
            Observation::ScrapeFailed { engine, span, failure } => {
                Self::Failed { engine: engine.to_plain(), span: span.to_plain(), how: failure.into() }
            }
            Observation::Device(reading) => Self::Device(reading.to_plain()),
            Observation::DeviceProcesses(listed) => Self::DeviceProcesses(listed.to_plain()),
            Observation::Process(event) => return Self::process(event),
            Observation::Host(HostFact::Processes { span, states }) => {
                let plain = |one: &ProcessState| (one.pid, one.start_ticks, number(one.state));
                Self::States { span: span.to_plain(), states: states.iter().map(plain).collect() }
            }
            Observation::DeviceEvent { uuid, span, event } => {
                Self::DeviceEvent { uuid: uuid.to_plain(), span: span.to_plain(), what: Happened::of(event)? }
            }
            // Told to operators; no decision rests on them.
            Observation::Host(_) | Observation::Source(_) => return None,
        })
    }

    fn process(event: &ProcessEvent) -> Option<Self> {
        let what = Changed::of(&event.what)?;
        let ProcessEvent { span, pid, start_ticks, comm, watched, .. } = event;
        let (span, comm) = (span.to_plain(), comm.to_string());
        Some(Self::Process { span, pid: *pid, start_ticks: *start_ticks, comm, watched: *watched, what })
    }

    /// The observation.
    pub(crate) fn observation(self) -> Observation {
        match self {
            Self::Engine(facts) => Observation::Engine(Box::new(EngineFacts::from_plain(facts))),
            Self::Gone { engine, span, evidence } => {
                Observation::EngineGone { engine: engine.into(), span: Span::from_plain(span), evidence }
            }
            Self::Reading { engine, reading } => Observation::Reading {
                engine: engine.into(),
                reading: Box::new(EngineReading::from_plain(reading)),
            },
            Self::Failed { engine, span, how } => Observation::ScrapeFailed {
                engine: engine.into(),
                span: Span::from_plain(span),
                failure: how.into(),
            },
            Self::Device(reading) => Observation::Device(Box::new(DeviceReading::from_plain(reading))),
            Self::DeviceProcesses(listed) => {
                Observation::DeviceProcesses(DeviceProcesses::from_plain(listed))
            }
            Self::Process { span, pid, start_ticks, comm, watched, what } => {
                let (span, comm) = (Span::from_plain(span), comm.into());
                let event = ProcessEvent { span, pid, start_ticks, comm, watched, what: what.into() };
                Observation::Process(Box::new(event))
            }
            Self::States { span, states } => {
                let state = |(pid, start_ticks, number): (u32, u64, u8)| ProcessState {
                    pid,
                    start_ticks,
                    state: scheduled(number),
                };
                let states = states.into_iter().map(state).collect();
                Observation::Host(HostFact::Processes { span: Span::from_plain(span), states })
            }
            Self::DeviceEvent { uuid, span, what } => Observation::DeviceEvent {
                uuid: uuid.into(),
                span: Span::from_plain(span),
                event: what.into(),
            },
        }
    }
}

impl Changed {
    fn of(what: &ProcessChange) -> Option<Self> {
        Some(match what {
            ProcessChange::Exit { code, signal } => Self::Exit { code: *code, signal: *signal },
            ProcessChange::Signal { number, code, sender } => Self::Signal {
                number: *number,
                code: *code,
                pid: sender.pid,
                comm: sender.comm.to_string(),
                kernel: sender.kernel,
            },
            ProcessChange::OomVictim { scope, .. } => Self::OomVictim {
                machine: *scope == Some(OomScope::Machine),
                cgroup: match scope {
                    Some(OomScope::Cgroup(path)) => Some(path.to_string()),
                    _ => None,
                },
            },
            ProcessChange::AllocationFailed { requested, .. } => {
                Self::AllocationFailed { requested: requested.map(|bytes| bytes.0) }
            }
            ProcessChange::AllocationRetried { requested, .. } => {
                Self::AllocationRetried { requested: requested.0 }
            }
            ProcessChange::Allocated { allocated, freed, .. } => {
                Self::Allocated { allocated: allocated.0, freed: freed.0 }
            }
            // Told to operators, or to the source that watches; no decision rests on them.
            ProcessChange::OomScoreAdjusted { .. } | ProcessChange::Forked { .. } | ProcessChange::Exec => {
                return None;
            }
        })
    }
}

impl From<Changed> for ProcessChange {
    fn from(from: Changed) -> Self {
        match from {
            Changed::Exit { code, signal } => Self::Exit { code, signal },
            Changed::Signal { number, code, pid, comm, kernel } => {
                Self::Signal { number, code, sender: Sender { pid, comm: comm.into(), kernel } }
            }
            Changed::OomVictim { cgroup, machine } => {
                let cgroup = cgroup.map(|path| OomScope::Cgroup(path.into()));
                Self::OomVictim { rss: None, scope: cgroup.or(machine.then_some(OomScope::Machine)) }
            }
            // The call's name is for a sentence alone, and not recorded.
            Changed::AllocationFailed { requested } => {
                Self::AllocationFailed { requested: requested.map(Bytes), call: "a call" }
            }
            Changed::AllocationRetried { requested } => {
                Self::AllocationRetried { requested: Bytes(requested), call: "a call" }
            }
            // Each failure is recorded by itself.
            Changed::Allocated { allocated, freed } => {
                Self::Allocated { allocated: Bytes(allocated), freed: Bytes(freed), failed: 0 }
            }
        }
    }
}

impl Happened {
    fn of(event: &DeviceEvent) -> Option<Self> {
        Some(match event {
            DeviceEvent::Xid { code } => Self::Xid(*code),
            DeviceEvent::EccUncorrected => Self::EccUncorrected,
            DeviceEvent::Lost => Self::Lost,
            DeviceEvent::Hung => Self::Hung,
            DeviceEvent::Recovered => Self::Recovered,
            DeviceEvent::EccCorrected => return None,
        })
    }
}

impl From<Happened> for DeviceEvent {
    fn from(from: Happened) -> Self {
        match from {
            Happened::Xid(code) => Self::Xid { code },
            Happened::EccUncorrected => Self::EccUncorrected,
            Happened::Lost => Self::Lost,
            Happened::Hung => Self::Hung,
            Happened::Recovered => Self::Recovered,
        }
    }
}

const fn number(state: Scheduled) -> u8 {
    match state {
        Scheduled::Normal => 0,
        Scheduled::Uninterruptible => 1,
        Scheduled::Stopped => 2,
        Scheduled::Ending => 3,
    }
}

const fn scheduled(number: u8) -> Scheduled {
    match number {
        1 => Scheduled::Uninterruptible,
        2 => Scheduled::Stopped,
        3 => Scheduled::Ending,
        _ => Scheduled::Normal,
    }
}

impl From<&ScrapeFailure> for Failed {
    fn from(from: &ScrapeFailure) -> Self {
        match from {
            ScrapeFailure::Refused => Self::Refused,
            ScrapeFailure::TimedOut => Self::TimedOut,
            ScrapeFailure::Status(status) => Self::Status(*status),
            ScrapeFailure::NoSeries => Self::NoSeries,
            ScrapeFailure::Malformed(what) => Self::Malformed(what.clone()),
            ScrapeFailure::Connection(what) => Self::Connection(what.clone()),
        }
    }
}

impl From<Failed> for ScrapeFailure {
    fn from(from: Failed) -> Self {
        match from {
            Failed::Refused => Self::Refused,
            Failed::TimedOut => Self::TimedOut,
            Failed::Status(status) => Self::Status(status),
            Failed::NoSeries => Self::NoSeries,
            Failed::Malformed(what) => Self::Malformed(what),
            Failed::Connection(what) => Self::Connection(what),
        }
    }
}
