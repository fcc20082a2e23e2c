//! Conversions between counts and the floats that metrics and distributions are made of.

/// A count as a float.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts of a simulation stay far below 2^53")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

/// The nearest count; zero for what is negative or not a number.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float casts saturate, and NaN becomes 0: what the name promises"
)]
pub(crate) const fn count(float: f64) -> u64 {
    float.round() as u64
}

/// A length of a collection as a count.
#[must_use]
pub(crate) fn len(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
