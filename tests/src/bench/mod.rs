//! What the benches share: sample sets, tables, an allocation count, and an engine that is ready.
//!
//! A harness of our own, because the questions are not criterion's: the worst call of a million, allocations per call,
//! and two kinds of calls compared within one run.

pub mod allocations;
pub mod engine;
pub mod samples;
pub mod table;

use std::env;

/// Whether the benches are only to show that they run (`make bench-smoke`).
#[must_use]
pub fn smoke() -> bool {
    env::var_os("GPUADMIT_BENCH_SMOKE").is_some()
}
