//! Decision records: why a decision came out as it did.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{
    request::{Class, Reason, ReservationId},
    units::{Blocks, Mono, Tokens},
};

/// Records kept.
pub const RECORDS: usize = 1024;

/// The terms of the sum that was compared with the limit, in blocks of one rank.
///
/// `reported + growth + unseen − ended + bypass + need ≤ limit` admits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Data-parallel rank.
    pub rank: u32,
    /// Use in the last reading.
    pub reported: Option<Blocks>,
    /// Age of that reading.
    pub age: Option<Duration>,
    /// What reservations that the reading shows may still grow by.
    pub growth: Blocks,
    /// All that reservations may need that the reading does not show.
    pub unseen: Blocks,
    /// Held by requests that ended after the reading.
    pub ended: Blocks,
    /// Room kept for traffic that does not come through admission.
    pub bypass: Blocks,
    /// What this request may need.
    pub need: Blocks,
    /// Most that may be committed; `None`: the pool's size is unknown.
    pub limit: Option<Blocks>,
    /// Prompt tokens counted.
    pub prompt: Tokens,
    /// Output tokens reserved for, per sequence.
    pub output: Tokens,
    /// Reservations on the engine before this one.
    pub reservations: u64,
}

/// One decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When.
    pub at: Mono,
    /// Reservation, where one was made.
    pub reservation: Option<ReservationId>,
    /// Model asked for.
    pub model: Arc<str>,
    /// Engine considered.
    pub engine: Option<Arc<str>>,
    /// Tenant; empty for the anonymous one.
    pub tenant: Arc<str>,
    /// Class.
    pub class: Class,
    /// `None`: admitted.
    pub denied: Option<Reason>,
    /// What enforce mode would have denied for.
    pub observed: Option<Reason>,
    /// The sum, where one was made.
    pub terms: Option<Terms>,
}

/// The newest decisions.
#[derive(Clone, Debug, Default)]
pub struct Records {
    ring: VecDeque<Record>,
}

impl Records {
    /// Adds a decision; forgets the oldest beyond [`RECORDS`].
    pub fn push(&mut self, record: Record) {
        if self.ring.len() >= RECORDS {
            self.ring.pop_front();
        }
        self.ring.push_back(record);
    }

    /// The newest `most`, newest first.
    pub fn newest(&self, most: usize) -> impl Iterator<Item = &Record> {
        self.ring.iter().rev().take(most)
    }

    /// The one that made `reservation`.
    #[must_use]
    pub fn of(&self, reservation: ReservationId) -> Option<&Record> {
        self.ring.iter().rev().find(|record| record.reservation == Some(reservation))
    }
}
