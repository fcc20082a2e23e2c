//! Figures over time, for the sparklines.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use gpuadmit_client::v1::{DecisionCounts, Device, Engine, StatusResponse};

/// Most values kept of one figure: more than a screen is wide.
const MAX_VALUES: usize = 512;
/// Most figures kept; a daemon has at most 64 engines.
const MAX_FIGURES: usize = 256;

/// Values of one figure, oldest first; `None`: unknown then.
pub(super) type Values = VecDeque<Option<f64>>;

/// Decisions in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) admitted: f64,
    pub(super) denied: f64,
}

/// All that is remembered.
#[derive(Debug, Default)]
pub(crate) struct History {
    before: Option<Before>,
    /// The last one.
    rate: Option<Rate>,
    /// Admitted and denied together, per second.
    decisions: Values,
    /// By engine, share of its KV cache in use, 0 to 1.
    engines: BTreeMap<String, Values>,
    /// By device, share of time in which it was busy, 0 to 1.
    devices: BTreeMap<String, Values>,
}

/// Counts that the next ones are set against.
#[derive(Clone, Copy, Debug)]
struct Before {
    at: Instant,
    epoch: u32,
    admitted: u64,
    denied: u64,
}

impl History {
    /// Adds what a daemon said at `at`.
    pub(super) fn add(&mut self, at: Instant, status: &StatusResponse) {
        self.rate = status.decisions.as_ref().and_then(|counts| self.rate_until(at, status.epoch, counts));
        push(&mut self.decisions, self.rate.map(|rate| rate.admitted + rate.denied));
        let engines = status.engines.iter().map(|engine| (engine.id.as_str(), in_use(engine)));
        add_to(&mut self.engines, engines);
        let devices = status.devices.iter().map(|device| (device.uuid.as_str(), busy(device)));
        add_to(&mut self.devices, devices);
    }

    /// Nothing was said.
    pub(super) fn add_gap(&mut self, _at: Instant) {
        self.rate = None;
        push(&mut self.decisions, None);
        for values in self.engines.values_mut().chain(self.devices.values_mut()) {
            push(values, None);
        }
    }

    fn rate_until(&mut self, at: Instant, epoch: u32, counts: &DecisionCounts) -> Option<Rate> {
        let now = Before { at, epoch, admitted: counts.admitted, denied: counts.denied };
        // Another daemon counts from zero.
        let before = self.before.replace(now).filter(|before| before.epoch == epoch)?;
        let seconds = at.saturating_duration_since(before.at).as_secs_f64();
        let per_second = |now: u64, before: u64| {
            let count = u32::try_from(now.checked_sub(before)?).ok()?;
            Some(f64::from(count) / seconds).filter(|rate| rate.is_finite())
        };
        Some(Rate {
            admitted: per_second(now.admitted, before.admitted)?,
            denied: per_second(now.denied, before.denied)?,
        })
    }

    pub(super) const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    pub(super) const fn decisions(&self) -> &Values {
        &self.decisions
    }

    pub(super) fn engine(&self, id: &str) -> Option<&Values> {
        self.engines.get(id)
    }

    pub(super) fn device(&self, uuid: &str) -> Option<&Values> {
        self.devices.get(uuid)
    }
}

/// Adds a value to each figure that is there, and forgets the others.
fn add_to<'a>(figures: &mut BTreeMap<String, Values>, values: impl Iterator<Item = (&'a str, Option<f64>)>) {
    let mut kept = BTreeMap::new();
    for (name, value) in values.take(MAX_FIGURES) {
        let mut values = figures.remove(name).unwrap_or_default();
        push(&mut values, value);
        kept.insert(name.to_owned(), values);
    }
    *figures = kept;
}

fn push(values: &mut Values, value: Option<f64>) {
    if values.len() >= MAX_VALUES {
        values.pop_front();
    }
    values.push_back(value);
}

/// Share of an engine's KV cache in use, all ranks together; unknown when any rank's is.
pub(super) fn in_use(engine: &Engine) -> Option<f64> {
    let mut sums = (0_u64, 0_u64);
    for pool in &engine.pools {
        sums.0 = sums.0.saturating_add(pool.blocks_corrected?);
        sums.1 = sums.1.saturating_add(pool.blocks_total?);
    }
    share(sums.0, sums.1)
}

pub(super) fn busy(device: &Device) -> Option<f64> {
    device.utilisation_percent.map(|percent| f64::from(percent.min(100)) / 100.0)
}

/// `part` of `whole`, to a ten-thousandth.
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    let scaled = (u128::from(part) * 10_000).checked_div(u128::from(whole))?;
    Some(f64::from(u32::try_from(scaled).ok()?) / 10_000.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn counts(epoch: u32, admitted: u64, denied: u64) -> StatusResponse {
        let decisions = DecisionCounts { admitted, denied, ..DecisionCounts::default() };
        StatusResponse { epoch, decisions: Some(decisions), ..StatusResponse::default() }
    }

    #[test]
    fn rates_are_differences_over_time_and_begin_anew_with_another_daemon() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut history = History::default();
        history.add(start, &counts(1, 100, 10));
        assert_eq!(history.rate(), None);
        history.add(after(2_000), &counts(1, 130, 11));
        assert_eq!(history.rate(), Some(Rate { admitted: 15.0, denied: 0.5 }));
        history.add(after(3_000), &counts(2, 140, 11));
        assert_eq!(history.rate(), None);
        history.add_gap(after(4_000));
        history.add(after(5_000), &counts(2, 150, 11));
        assert_eq!(history.rate(), Some(Rate { admitted: 5.0, denied: 0.0 }));
        let expected = [None, Some(15.5), None, None, Some(5.0)];
        assert_eq!(history.decisions().iter().copied().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_remembered_has_a_bound_and_ends_with_its_engine() {
        let mut history = History::default();
        let engine = Engine { id: "a".into(), ..Engine::default() };
        let with = StatusResponse { engines: vec![engine], ..StatusResponse::default() };
        for _ in 0..MAX_VALUES + 5 {
            history.add(Instant::now(), &with);
        }
        assert_eq!(history.engine("a").map(VecDeque::len), Some(MAX_VALUES));
        history.add(Instant::now(), &StatusResponse::default());
        assert_eq!(history.engine("a"), None);
    }
}
