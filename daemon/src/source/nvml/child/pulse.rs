//! Whether a thread is inside NVML, since when, and how long it was there in all.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::wire::{Span, What};
use crate::clock;

/// One thread's calls. Written by that thread, read by the main one.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Start of the present call, ns; 0 outside.
    since_ns: AtomicU64,
    /// Time spent in calls that returned, ns.
    busy_ns: AtomicU64,
}

impl Pulse {
    /// Makes a call into NVML.
    pub(super) fn call<T>(&self, call: impl FnOnce() -> T) -> (T, Span) {
        let not_before_ns = clock::now().0;
        self.since_ns.store(not_before_ns, Ordering::Release);
        let answer = call();
        let not_after_ns = clock::now().0;
        self.since_ns.store(0, Ordering::Release);
        self.busy_ns.fetch_add(not_after_ns.saturating_sub(not_before_ns), Ordering::Relaxed);
        (answer, Span { not_before_ns, not_after_ns })
    }

    /// Start of the present call, ns.
    pub(super) fn since_ns(&self) -> Option<u64> {
        Some(self.since_ns.load(Ordering::Acquire)).filter(|since| *since > 0)
    }

    /// Time spent in calls that returned, ns.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns.load(Ordering::Relaxed)
    }
}

/// Tells once when a pulse stops, and once when it beats again.
#[derive(Debug, Default)]
pub(super) struct Watch {
    hung: bool,
}

impl Watch {
    /// What changed, if anything, with a deadline of `deadline_ns` for a call.
    pub(super) fn check(&mut self, since_ns: Option<u64>, now_ns: u64, deadline_ns: u64) -> Option<What> {
        let hung = since_ns.is_some_and(|since| now_ns.saturating_sub(since) > deadline_ns);
        let changed = hung != self.hung;
        self.hung = hung;
        changed.then_some(if hung { What::Hung } else { What::Recovered })
    }

    pub(super) const fn hung(&self) -> bool {
        self.hung
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_is_told_once_and_so_is_its_end() {
        let mut watch = Watch::default();
        assert_eq!(watch.check(None, 100, 50), None);
        assert_eq!(watch.check(Some(100), 150, 50), None);
        assert_eq!(watch.check(Some(100), 151, 50), Some(What::Hung));
        assert_eq!(watch.check(Some(100), 900, 50), None);
        assert_eq!(watch.check(Some(899), 900, 50), Some(What::Recovered));
        assert_eq!(watch.check(None, 901, 50), None);
    }

    #[test]
    fn time_is_counted_inside_calls_only() {
        let pulse = Pulse::default();
        let (inside, span) = pulse.call(|| pulse.since_ns());
        assert_eq!(inside, Some(span.not_before_ns));
        assert_eq!(pulse.since_ns(), None);
        assert_eq!(pulse.busy_ns(), span.not_after_ns - span.not_before_ns);
    }
}
