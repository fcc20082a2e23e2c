//! The node: fed with facts, it answers questions.

use std::time::Duration;

use crate::{
    event::History,
    explain::Records,
    observation::Observation,
    request::{Completion, Decision, Reference, Request, RequestError, ReservationId, SessionId},
    settings::Settings,
    snapshot::Snapshot,
    units::{Mono, Tokens},
};

/// What a completion met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The reservation was held until now.
    Held,
    /// It had ended before.
    Ended,
    /// This daemon never gave it out.
    NeverGiven,
}

/// Where a reservation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Held for its gateway.
    Live,
    /// Held until the engine shows that it ended; its gateway is gone or silent.
    Orphan,
    /// Not held any more.
    Ended,
}

/// The node.
#[derive(Debug)]
pub struct Node {
    settings: Settings,
    epoch: u32,
    history: History,
    records: Records,
}

impl Node {
    /// An empty node whose reservation ids carry `epoch` (its lower 24 bits).
    #[must_use]
    pub fn new(settings: Settings, epoch: u32) -> Self {
        Self { settings, epoch, history: History::default(), records: Records::default() }
    }

    /// Takes in a fact.
    pub fn observe(&mut self, _now: Mono, _observation: Observation) {}

    /// Answers a request.
    ///
    /// # Errors
    /// The caller's mistakes; a denial is a [`Decision`].
    pub fn admit(&mut self, _now: Mono, request: &Request<'_>) -> Result<Decision, RequestError> {
        Err(RequestError::IdReused(request.model.into()))
    }

    /// A request has generated tokens. Returns its new lease; `None` when it is not held.
    pub fn progress(&mut self, _now: Mono, _of: Reference<'_>, _generated: Tokens) -> Option<Duration> {
        None
    }

    /// A request has ended.
    pub fn complete(&mut self, _now: Mono, _of: Reference<'_>, _completion: Completion) -> Completed {
        Completed::NeverGiven
    }

    /// A stream broke: its reservations become orphans.
    pub fn session_broken(&mut self, _now: Mono, _session: SessionId) {}

    /// A reconnected gateway takes over reservations. Returns those still held.
    pub fn adopt(&mut self, _now: Mono, _session: SessionId, _ids: &[ReservationId]) -> Vec<ReservationId> {
        Vec::new()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, _now: Mono) {}

    /// When [`Self::handle_timeout`] is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        None
    }

    /// Events.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Decisions.
    #[must_use]
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// The id behind a reference, while it is remembered.
    #[must_use]
    pub fn resolve(&self, of: Reference<'_>) -> Option<ReservationId> {
        match of {
            Reference::Id(id) => Some(id),
            Reference::Request { .. } => None,
        }
    }

    /// Where a reservation stands.
    #[must_use]
    pub fn standing(&self, _id: ReservationId) -> Standing {
        Standing::Ended
    }

    /// The node as it stands.
    pub fn snapshot(&mut self, now: Mono) -> Snapshot {
        let reservations_limit = u64::try_from(self.settings.reservations).unwrap_or(u64::MAX);
        Snapshot { at: now, epoch: self.epoch, reservations_limit, ..Snapshot::default() }
    }
}
