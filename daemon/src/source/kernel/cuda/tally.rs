//! How much each process took and gave back since it was last asked.

use std::collections::BTreeMap;

use aya::maps::{HashMap, MapData};
use gpuadmit_abi::Totals;
use gpuadmit_core::units::Mono;

/// [`Totals`] as they lie in the kernel's map.
type Words = [u64; 6];

const _: () = assert!(size_of::<Words>() == size_of::<Totals>());

/// What a process did between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
    pub(crate) since: Mono,
    pub(crate) allocated: u64,
    pub(crate) freed: u64,
    pub(crate) failed: u64,
}

/// The totals, and what was told of them.
pub(crate) struct Tally {
    totals: HashMap<MapData, u32, Words>,
    told: BTreeMap<u32, Totals>,
    looked: Mono,
}

impl Tally {
    pub(crate) fn new(totals: HashMap<MapData, u32, Words>, now: Mono) -> Self {
        Self { totals, told: BTreeMap::new(), looked: now }
    }

    /// What has changed since the last time; at most one step for each watched process.
    pub(crate) fn steps(&mut self, now: Mono) -> Vec<Step> {
        let known: Vec<(u32, Words)> = self.totals.iter().filter_map(Result::ok).collect();
        let since = std::mem::replace(&mut self.looked, now);
        let steps = known.into_iter().filter_map(|(pid, words)| {
            let totals = totals(words);
            let before = self.told.insert(pid, totals).filter(|before| before.start == totals.start);
            step(pid, since, &before.unwrap_or_default(), &totals)
        });
        steps.collect()
    }

    /// A process ended.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.told.remove(&pid);
        // It may never have called.
        let _ = self.totals.remove(&pid);
    }

    /// Calls and frees of unknown size of all processes that are there.
    pub(crate) fn calls(&self) -> (u64, u64) {
        self.told.values().fold((0, 0), |(calls, unknown), totals| {
            (totals.calls.saturating_add(calls), totals.unknown.saturating_add(unknown))
        })
    }
}

fn totals([start, allocated, freed, failed, calls, unknown]: Words) -> Totals {
    Totals { start, allocated, freed, failed, calls, unknown }
}

fn step(pid: u32, since: Mono, before: &Totals, now: &Totals) -> Option<Step> {
    let step = Step {
        pid,
        start_ticks: now.start,
        since,
        allocated: now.allocated.saturating_sub(before.allocated),
        freed: now.freed.saturating_sub(before.freed),
        failed: now.failed.saturating_sub(before.failed),
    };
    (step.allocated | step.freed | step.failed != 0).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_the_difference_and_nothing_is_none() {
        let before = totals([7, 100, 40, 1, 9, 0]);
        let now = totals([7, 160, 40, 2, 12, 0]);
        let told = step(42, Mono(5), &before, &now);
        let expected = Step { pid: 42, start_ticks: 7, since: Mono(5), allocated: 60, freed: 0, failed: 1 };
        assert_eq!(told, Some(expected));
        assert_eq!(step(42, Mono(5), &now, &now), None);
    }
}
