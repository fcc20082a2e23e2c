//! The lines of a record file: all that went into the node and what it decided, one JSON object each. The first line
//! of a file says what it is. A prompt is in them by its size alone.
//!
//! This file alone knows both these forms and the core's types. Fields are only added; a change of meaning is another
//! [`VERSION`].

use gpuadmit_core::{
    node::Node,
    queue::Answer,
    request::{self, Decision, Outcome, ReservationId, SessionId, Verdict},
};
use serde::{Deserialize, Serialize};

use super::{
    fact::Fact,
    wire::{PlainTerms, Wire as _, is_default},
};
use crate::{
    config::Config,
    state::{Lengths, Moment},
};

/// What the first line says it is.
pub(crate) const FORMAT: &str = "gpuadmit-records";
/// Version of the lines.
pub(crate) const VERSION: u32 = 1;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) format: String,
    pub(crate) version: u32,
    /// The daemon's version.
    pub(crate) daemon: String,
    /// Epoch in its reservation ids.
    pub(crate) epoch: u32,
    /// 0 for the first file of a run, which begins with its empty node.
    pub(crate) part: u64,
    pub(crate) written: Moment,
    pub(crate) config: Config,
    /// What was taken up from an earlier run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lengths: Option<Lengths>,
    /// Promises of an earlier run were taken over, which are in no line.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) handed_over: bool,
}

/// A line: when, in nanoseconds of `CLOCK_MONOTONIC`, and what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    #[serde(rename = "t")]
    pub(crate) at_ns: u64,
    #[serde(flatten)]
    pub(crate) input: Input,
}

/// A call of the node, or a gap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Input {
    /// A fact, and what it was about.
    Fact(Box<Fact>),
    /// A request and its decision.
    Admit(Box<Admit>),
    /// A request that waited was answered.
    Answer { ticket: u64, decision: Box<Decided> },
    /// Who waited has gone.
    Cancel { ticket: u64 },
    /// Tokens were generated.
    Progress { of: Of, generated: u64 },
    /// A request ended.
    Complete { of: Of, outcome: End, output: Option<u64>, prompt: Option<u64> },
    /// A stream broke.
    Broken { session: u64 },
    /// A stream took reservations over.
    Adopt { session: u64, ids: Vec<u64> },
    /// What was due was done.
    Timeout {},
    /// Another configuration holds from now on.
    Reload(Box<Config>),
    /// So many lines are missing here: the disk was too slow.
    Lost { lines: u64 },
}

/// Which reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Of {
    Id(u64),
    Request { peer_uid: u32, tenant: String, request_id: String },
}

impl From<request::Reference<'_>> for Of {
    fn from(from: request::Reference<'_>) -> Self {
        match from {
            request::Reference::Id(id) => Self::Id(id.0),
            request::Reference::Request { peer_uid, tenant, request_id } => {
                Self::Request { peer_uid, tenant: tenant.into(), request_id: request_id.into() }
            }
        }
    }
}

impl Of {
    pub(crate) fn reference(&self) -> request::Reference<'_> {
        match self {
            Self::Id(id) => request::Reference::Id(ReservationId(*id)),
            Self::Request { peer_uid, tenant, request_id } => {
                request::Reference::Request { peer_uid: *peer_uid, tenant, request_id }
            }
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Ok,
    Cancelled,
    EngineError,
    NotSent,
}

impl From<Outcome> for End {
    fn from(from: Outcome) -> Self {
        match from {
            Outcome::Ok => Self::Ok,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::EngineError => Self::EngineError,
            Outcome::NotSent => Self::NotSent,
        }
    }
}

impl From<End> for Outcome {
    fn from(from: End) -> Self {
        match from {
            End::Ok => Self::Ok,
            End::Cancelled => Self::Cancelled,
            End::EngineError => Self::EngineError,
            End::NotSent => Self::NotSent,
        }
    }
}

/// A request and its decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Admit {
    pub(crate) request: super::request::Request,
    /// Whether it might have waited.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) may_wait: bool,
    pub(crate) decision: Decided,
}

/// A decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Decided {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) engine: Option<String>,
    /// Waits under this ticket: the decision comes later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waits: Option<u64>,
    /// The reservation; absent: denied, or waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reservation: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<u64>,
    /// Why it was denied, by its number in `admission.proto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) denied: Option<i32>,
    /// What enforce mode would have denied for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) observed: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) terms: Option<PlainTerms>,
}

impl Decided {
    /// Of an answer just given by `node`.
    pub(crate) fn of_answer(answer: &Answer, node: &Node) -> Self {
        match answer {
            Answer::Decided(decision) => Self::of(decision, node),
            Answer::Wait(ticket) => Self { waits: Some(ticket.0), ..Self::default() },
        }
    }

    /// Of a decision just made by `node`, whose own record has the sum.
    pub(crate) fn of(decision: &Decision, node: &Node) -> Self {
        let terms = match &decision.verdict {
            Verdict::Admit(admit) => node.records().of(admit.reservation).and_then(|record| record.terms),
            Verdict::Deny(deny) => deny.terms,
        };
        let terms = terms.map(|terms| terms.to_plain());
        match &decision.verdict {
            Verdict::Admit(admit) => Self {
                engine: Some(admit.engine.as_ref().into()),
                reservation: Some(admit.reservation.0),
                max_tokens: admit.max_tokens.map(|tokens| tokens.0),
                observed: admit.observed.map(request::Reason::number),
                terms,
                ..Self::default()
            },
            Verdict::Deny(deny) => Self {
                engine: deny.engine.as_deref().map(Into::into),
                denied: Some(deny.reason.number()),
                retry_after_ms: deny
                    .retry_after
                    .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
                terms,
                ..Self::default()
            },
        }
    }
}

/// The stream of that number.
pub(crate) const fn session(number: u64) -> SessionId {
    SessionId(number)
}
