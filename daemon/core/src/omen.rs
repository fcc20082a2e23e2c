//! Facts that may explain an end that follows: Xid errors, failed allocations.

use crate::units::Mono;

/// Most omens of one kind that are kept; the oldest makes room.
const MAX_OMENS: usize = 16;

/// A fact that may explain an end that follows.
#[derive(Clone, Debug)]
pub(crate) struct Omen<T> {
    pub(crate) at: Mono,
    /// Event that told it.
    pub(crate) event: u64,
    pub(crate) what: T,
}

/// The newest omens of one kind, by the time at which they happened.
#[derive(Clone, Debug)]
pub(crate) struct Omens<T>(Vec<Omen<T>>);

impl<T> Default for Omens<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Omens<T> {
    pub(crate) fn note(&mut self, omen: Omen<T>) {
        let place = self.0.partition_point(|known| (known.at, known.event) <= (omen.at, omen.event));
        self.0.insert(place, omen);
        self.0.drain(..self.0.len().saturating_sub(MAX_OMENS));
    }

    /// The newest that fits.
    pub(crate) fn newest(&self, fits: impl Fn(&Omen<T>) -> bool) -> Option<&Omen<T>> {
        self.0.iter().rev().find(|omen| fits(omen))
    }
}
