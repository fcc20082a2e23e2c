//! How much of the engine is in use, second by second, and what was denied meanwhile.

use crate::{
    estimation::quantile,
    time::{Nanos, SECOND},
};

/// What a request is denied for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Slots,
    Memory,
    /// Tokens a step.
    Time,
}

impl Resource {
    /// From a rule's reason and the truth: who is denied for time is denied for slots where all are taken, or where no
    /// more prompts wait than a step can take. `None`: for something else.
    pub(crate) fn of(reason: &str, slots_full: bool, prompts_wait: bool) -> Option<Self> {
        match reason {
            "KV_FULL" | "LEARNED_GUARD" | "memory" => Some(Self::Memory),
            "SLOTS" | "slots" => Some(Self::Slots),
            "TTFT" | "PACE" | "time" if slots_full || !prompts_wait => Some(Self::Slots),
            "TTFT" | "PACE" | "time" => Some(Self::Time),
            _ => None,
        }
    }
}

/// What is in use at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InUse {
    pub(crate) blocks: u64,
    pub(crate) slots: u64,
    /// Requests that wait in the engine.
    pub(crate) waiting: u64,
}

/// Use, second by second, while requests arrive.
#[derive(Debug)]
pub(crate) struct Usage {
    /// The whole of it.
    blocks: u64,
    slots: u64,
    from: Nanos,
    until: Nanos,
    /// Up to when it is summed up.
    at: Nanos,
    seconds: Vec<Second>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Second {
    /// Shares of the pool and of the slots, times the share of the second.
    pool: f64,
    slots: f64,
    /// The most that waited.
    waiting: u64,
    denied_for_slots: bool,
    denied_for_memory: bool,
}

impl Usage {
    /// Of an engine with so many blocks and slots.
    pub(super) fn new(blocks: u64, slots: u64, from: Nanos, until: Nanos) -> Self {
        let count = (until - from).div_ceil(SECOND) as usize;
        Self { blocks, slots, from, until, at: from, seconds: vec![Second::default(); count] }
    }

    /// So much was in use since the last call, until `at`.
    pub(super) fn account(&mut self, at: Nanos, used: InUse) {
        let until = at.min(self.until);
        while self.at < until {
            let index = ((self.at - self.from) / SECOND) as usize;
            let end = (self.from + (index as u64 + 1) * SECOND).min(until);
            let part = (end - self.at) as f64 / SECOND as f64;
            let second = &mut self.seconds[index];
            second.pool += part * used.blocks as f64 / self.blocks as f64;
            second.slots += part * used.slots as f64 / self.slots as f64;
            second.waiting = second.waiting.max(used.waiting);
            self.at = end;
        }
    }

    /// Somebody was denied for this at `at`.
    pub(super) fn denied(&mut self, at: Nanos, resource: Resource) {
        let Some(since) = at.checked_sub(self.from) else { return };
        let Some(second) = self.seconds.get_mut((since / SECOND) as usize) else { return };
        second.denied_for_slots |= resource == Resource::Slots;
        second.denied_for_memory |= resource == Resource::Memory;
    }

    /// Mean use of the pool.
    pub(crate) fn pool(&self) -> f64 {
        self.mean(|_| true, |second| second.pool).unwrap_or(0.0)
    }

    /// Share of the slots that nobody had, in seconds in which somebody was denied for slots.
    pub(crate) fn slots_unused_while_denied(&self) -> Option<f64> {
        self.mean(|second| second.denied_for_slots, |second| 1.0 - second.slots)
    }

    /// Mean use of the pool in seconds in which somebody was denied for memory.
    pub(crate) fn pool_while_denied(&self) -> Option<f64> {
        self.mean(|second| second.denied_for_memory, |second| second.pool)
    }

    /// Of the most that waited in each second, the 99th percentile.
    pub(crate) fn waiting_p99(&self) -> f64 {
        let mut waiting: Vec<_> = self.seconds.iter().map(|second| second.waiting as f64).collect();
        waiting.sort_by(f64::total_cmp);
        quantile(&waiting, 0.99)
    }

    fn mean(&self, which: impl Fn(&Second) -> bool, value: impl Fn(&Second) -> f64) -> Option<f64> {
        let values: Vec<_> = self.seconds.iter().filter(|second| which(second)).map(value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_summed_up_second_by_second() {
        let mut usage = Usage::new(100, 4, SECOND, 4 * SECOND);
        let used = |blocks, slots, waiting| InUse { blocks, slots, waiting };
        usage.account(SECOND / 2, used(90, 4, 9));
        // Half of the first second 40 blocks; then 80 and two of four slots until the end.
        usage.account(SECOND * 3 / 2, used(40, 4, 0));
        usage.account(9 * SECOND, used(80, 2, 3));
        assert!((usage.pool() - (0.6 + 0.8 + 0.8) / 3.0).abs() < 1e-9);
        assert_eq!(usage.waiting_p99(), 3.0);
        assert_eq!(usage.slots_unused_while_denied(), None);
        usage.denied(SECOND, Resource::Slots);
        usage.denied(3 * SECOND, Resource::Slots);
        usage.denied(2 * SECOND, Resource::Memory);
        assert!((usage.slots_unused_while_denied().unwrap() - (0.25 + 0.5) / 2.0).abs() < 1e-9);
        assert!((usage.pool_while_denied().unwrap() - 0.8).abs() < 1e-9);
    }

    #[test]
    fn a_denial_for_time_is_one_for_slots_where_no_prompt_waits() {
        let of = Resource::of;
        assert_eq!(of("TTFT", false, true), Some(Resource::Time));
        assert_eq!(of("TTFT", false, false), Some(Resource::Slots));
        assert_eq!(of("TTFT", true, true), Some(Resource::Slots));
        assert_eq!(of("KV_FULL", true, true), Some(Resource::Memory));
        assert_eq!(of("TENANT_SHARE", true, true), None);
    }
}
