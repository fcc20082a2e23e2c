//! Newtypes for the quantities of the core. At the edges they become raw integers with the unit in the name.

use std::{
    fmt,
    ops::{Add, AddAssign},
    time::Duration,
};

/// Instant on `CLOCK_MONOTONIC`, nanoseconds: the clock of `bpf_ktime_get_ns`, so that NVML, the kernel's events and
/// requests share one timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

impl Mono {
    /// Time from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` moved back by `by`, not below the clock's origin.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }
}

impl Add<Duration> for Mono {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }
}

/// Whole nanoseconds of `d`; saturates after 584 years.
fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// The span of time in which a fact was true at some point: between asking and having the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Not observed before this instant.
    pub not_before: Mono,
    /// Not observed after this instant.
    pub not_after: Mono,
}

impl Span {
    /// A fact observed at exactly `at`.
    #[must_use]
    pub const fn at(at: Mono) -> Self {
        Self { not_before: at, not_after: at }
    }
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// None of it.
            pub const ZERO: Self = Self(0);

            /// `self - other`, not below zero.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// `self × factor`; saturates.
            #[must_use]
            pub const fn times(self, factor: u64) -> Self {
                Self(self.0.saturating_mul(factor))
            }
        }

        impl Add for $name {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                all.fold(Self::ZERO, |sum, one| sum + one)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{} ", $unit), self.0)
            }
        }
    };
}

quantity!(
    /// KV cache blocks. Sums saturate: a peer's number can be absurd but never wraps.
    Blocks,
    "blocks"
);
quantity!(
    /// Tokens, of a prompt or generated.
    Tokens,
    "tokens"
);
quantity!(
    /// Bytes, of device memory or of text.
    Bytes,
    "bytes"
);

impl Tokens {
    /// Blocks of `block_size` tokens that hold these tokens in one sequence: the one place where tokens become blocks,
    /// rounding up. A `block_size` of zero counts as one.
    #[must_use]
    pub fn to_blocks(self, block_size: u64) -> Blocks {
        Blocks(self.0.div_ceil(block_size.max(1)))
    }
}

impl Blocks {
    /// Tokens that fit these blocks.
    #[must_use]
    pub const fn to_tokens(self, block_size: u64) -> Tokens {
        Tokens(self.0.saturating_mul(block_size))
    }
}

/// `count` as a real number, for estimates: exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "an estimate; counts stay far below 2^53")]
pub(crate) const fn real(count: u64) -> f64 {
    count as f64
}

/// `value` rounded up to a count; negative and NaN become 0, too large saturates.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as wanted")]
pub(crate) fn count_up(value: f64) -> u64 {
    value.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_up_to_blocks() {
        assert_eq!(Tokens(0).to_blocks(16), Blocks(0));
        assert_eq!(Tokens(1).to_blocks(16), Blocks(1));
        assert_eq!(Tokens(16).to_blocks(16), Blocks(1));
        assert_eq!(Tokens(17).to_blocks(16), Blocks(2));
        assert_eq!(Tokens(5).to_blocks(0), Blocks(5));
    }

    #[test]
    fn time_never_runs_below_its_origin() {
        assert_eq!(Mono(5).since(Mono(9)), Duration::ZERO);
        assert_eq!(Mono(5).before(Duration::from_secs(1)), Mono(0));
        assert_eq!(Mono(u64::MAX) + Duration::from_secs(1), Mono(u64::MAX));
    }
}
