//! Virtual time: nanoseconds since the start of a run.

/// Nanoseconds since the start of a run.
pub(crate) type Nanos = u64;

/// One second.
pub(crate) const SECOND: Nanos = 1_000_000_000;
/// One millisecond.
pub(crate) const MILLISECOND: Nanos = 1_000_000;

/// `seconds` as virtual time; negative is zero.
pub(crate) fn nanos(seconds: f64) -> Nanos {
    (seconds * SECOND as f64) as Nanos
}

/// `at` in seconds.
pub(crate) fn seconds(at: Nanos) -> f64 {
    at as f64 / SECOND as f64
}
