//! Facts in a line.

use gpuadmit_core::{
    observation::{
        DeviceProcesses, DeviceReading, EngineFacts, EngineReading, Observation, OomScope, ProcessChange,
        ProcessEvent, ScrapeFailure, Sender,
    },
    units::Span,
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
    /// A fact of a kind that is not recorded, which few decisions rest on.
    Other {},
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
    ScoreAdjusted { from: Option<i32>, to: i32 },
    Forked { child: u32, start_ticks: Option<u64> },
    Exec,
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
            Observation::Process(event) => Self::process(event),
            Observation::DeviceEvent { .. } | Observation::Host(_) => Self::Other {},
            Observation::Source(_) => return None,
        })
    }

    fn process(event: &ProcessEvent) -> Self {
        let Some(what) = Changed::of(&event.what) else { return Self::Other {} };
        let ProcessEvent { span, pid, start_ticks, comm, watched, .. } = event;
        let (span, comm) = (span.to_plain(), comm.to_string());
        Self::Process { span, pid: *pid, start_ticks: *start_ticks, comm, watched: *watched, what }
    }

    /// The observation; `None`: its kind was not recorded.
    pub(crate) fn observation(self) -> Option<Observation> {
        Some(match self {
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
            Self::Other {} => return None,
        })
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
            ProcessChange::OomScoreAdjusted { from, to } => Self::ScoreAdjusted { from: *from, to: *to },
            ProcessChange::Forked { child, child_start_ticks } => {
                Self::Forked { child: *child, start_ticks: *child_start_ticks }
            }
            ProcessChange::Exec => Self::Exec,
            ProcessChange::AllocationFailed { .. } | ProcessChange::Allocated { .. } => return None,
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
            Changed::ScoreAdjusted { from, to } => Self::OomScoreAdjusted { from, to },
            Changed::Forked { child, start_ticks } => Self::Forked { child, child_start_ticks: start_ticks },
            Changed::Exec => Self::Exec,
        }
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
