//! The one clock: `CLOCK_MONOTONIC`, as the kernel's tracing uses it.

use gpuadmit_core::units::Mono;
use nix::time::{ClockId, clock_gettime};

/// Now. The clock exists on every Linux; were it ever to fail, time stands still rather than the daemon.
#[must_use]
pub fn now() -> Mono {
    let Ok(time) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return Mono(0) };
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
    Mono(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
