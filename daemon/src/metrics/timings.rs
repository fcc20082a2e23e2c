//! How long decisions take, and how long requests wait for room.

use std::{fmt, time::Duration};

use super::{histogram::Histogram, sheet::Sheet};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;

/// Counted into by the handle, outside the node's lock.
#[derive(Debug)]
pub(crate) struct Timings {
    decisions: Histogram<16>,
    waits: Histogram<14>,
}

impl Default for Timings {
    fn default() -> Self {
        let decisions = [
            US,
            2 * US,
            3 * US,
            5 * US,
            7 * US,
            10 * US,
            20 * US,
            30 * US,
            50 * US,
            100 * US,
            200 * US,
            500 * US,
            MS,
            2 * MS,
            10 * MS,
            100 * MS,
        ];
        let waits = [
            MS,
            5 * MS,
            10 * MS,
            25 * MS,
            50 * MS,
            100 * MS,
            250 * MS,
            500 * MS,
            S,
            2 * S,
            5 * S,
            10 * S,
            30 * S,
            60 * S,
        ];
        Self { decisions: Histogram::new(decisions), waits: Histogram::new(waits) }
    }
}

impl Timings {
    /// A request was asked: the time in the node's call, the wait for its lock included.
    pub(crate) fn asked(&self, took: Duration) {
        self.decisions.observe(took);
    }

    /// A request that waited for room was answered.
    pub(crate) fn waited(&self, time: Duration) {
        self.waits.observe(time);
    }

    pub(super) fn write(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        sheet.histogram(
            "gpuadmit_decision_duration_seconds",
            "Time inside the node's call for an admit request, the wait for its lock included.",
            &self.decisions.counted(),
        )?;
        sheet.histogram(
            "gpuadmit_queue_wait_seconds",
            "Time that answered requests waited for room.",
            &self.waits.counted(),
        )
    }
}
