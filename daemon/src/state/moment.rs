//! Times that outlive the daemon: the monotonic clock begins anew at each boot, so they carry the boot's id.

use std::{fs, sync::LazyLock, time::SystemTime};

use gpuadmit_core::units::Mono;
use serde::{Deserialize, Serialize};

use crate::clock;

/// A moment, by both clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// `/proc/sys/kernel/random/boot_id`; empty where that cannot be read.
    pub boot_id: String,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub mono_ns: u64,
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
}

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(unix.as_millis()).unwrap_or(u64::MAX);
        Self { boot_id: boot_id().to_owned(), mono_ns: clock::now().0, unix_ms }
    }

    /// The moment on this boot's monotonic clock: exactly where it was of this boot, else by the wall clock; one before
    /// the boot is the clock's origin, one in the future is now.
    #[must_use]
    pub fn to_mono(&self) -> Mono {
        self.to_mono_at(&Self::now())
    }

    fn to_mono_at(&self, now: &Self) -> Mono {
        if !self.boot_id.is_empty() && self.boot_id == now.boot_id {
            return Mono(self.mono_ns.min(now.mono_ns));
        }
        let ago_ns = now.unix_ms.saturating_sub(self.unix_ms).saturating_mul(1_000_000);
        Mono(now.mono_ns.saturating_sub(ago_ns))
    }
}

/// This boot's id.
pub(crate) fn boot_id() -> &'static str {
    static BOOT_ID: LazyLock<String> = LazyLock::new(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    });
    &BOOT_ID
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot_id: &str, mono_ns: u64, unix_ms: u64) -> Moment {
        Moment { boot_id: boot_id.into(), mono_ns, unix_ms }
    }

    #[test]
    fn a_moment_of_this_boot_is_exact_whatever_the_wall_clock_says() {
        let now = moment("a", 10_000_000_000, 5_000);
        assert_eq!(moment("a", 7_000_000_123, 9_999_999).to_mono_at(&now), Mono(7_000_000_123));
    }

    #[test]
    fn a_moment_of_another_boot_is_found_by_the_wall_clock() {
        let now = moment("b", 10_000_000_000, 100_000);
        assert_eq!(moment("a", 77, 98_000).to_mono_at(&now), Mono(8_000_000_000));
        assert_eq!(moment("a", 77, 1_000).to_mono_at(&now), Mono(0));
        assert_eq!(moment("a", 77, 200_000).to_mono_at(&now), Mono(10_000_000_000));
    }
}
