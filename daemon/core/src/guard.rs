//! What kept killing an engine is held back from it.

use crate::units::Tokens;

/// Prompts whose lengths lie within half an octave of each other, by position from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SizeClass(u32);

impl SizeClass {
    /// Class of a prompt.
    pub(crate) const fn of(prompt: Tokens) -> Self {
        let octave = u64::BITS - prompt.0.leading_zeros();
        Self(octave)
    }

    /// Its bit in a set of classes.
    pub(crate) fn bit(self) -> u64 {
        1 << self.0.min(63)
    }
}
