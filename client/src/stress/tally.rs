//! Requests added up.

use std::{collections::BTreeMap, time::Duration};

use super::load::Phase;

/// What became of one request.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// How long the decision took.
    pub(super) decided: Option<Duration>,
    pub(super) admitted: bool,
    pub(super) denied: Option<Denied>,
    pub(super) ended: Option<Ended>,
    pub(super) times: Option<Times>,
}

/// A denial.
#[derive(Debug)]
pub(super) struct Denied {
    /// Its number in the API.
    pub(super) reason: i32,
    pub(super) come_back: Option<Duration>,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Ended {
    Finished,
    /// By the end of the load.
    Cancelled,
    Failed(String),
}

/// How its stream went.
#[derive(Debug)]
pub(super) struct Times {
    /// From sending it to the first token.
    pub(super) ttft: Duration,
    /// Mean time between two tokens, where there were two.
    pub(super) pace: Option<Duration>,
    pub(super) tokens: u64,
}

/// One part of the load.
#[derive(Debug, Default)]
pub(crate) struct Row {
    /// Requests that asked.
    pub(crate) asked: u64,
    /// Of those, admitted.
    pub(crate) admitted: u64,
    /// Denied.
    pub(crate) denied: u64,
    /// Admitted and finished.
    pub(crate) finished: u64,
    /// Times to the first token.
    pub(crate) ttft: Quantiles,
    /// Times between tokens.
    pub(crate) pace: Quantiles,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By part.
    pub(crate) rows: BTreeMap<Phase, Row>,
    /// Denials by the reason's number in the API.
    pub(crate) denied: BTreeMap<i32, u64>,
    /// Requests that were cancelled at the end.
    pub(crate) cancelled: u64,
    /// Requests that failed, and what the first of them died of.
    pub(crate) failed: u64,
    /// What the first failure was.
    pub(crate) failure: Option<String>,
    /// Output tokens.
    pub(crate) tokens: u64,
    /// Times of the decisions.
    pub(crate) decided: Quantiles,
}

impl Tally {
    pub(super) fn add(&mut self, phase: Phase, done: Done) {
        let row = self.rows.entry(phase).or_default();
        row.asked += 1;
        row.admitted += u64::from(done.admitted);
        if let Some(denied) = done.denied {
            row.denied += 1;
            *self.denied.entry(denied.reason).or_default() += 1;
        }
        match done.ended {
            Some(Ended::Finished) => row.finished += 1,
            Some(Ended::Cancelled) => self.cancelled += 1,
            Some(Ended::Failed(why)) => {
                self.failed += 1;
                self.failure.get_or_insert(why);
            }
            None => {}
        }
        if let Some(times) = done.times {
            row.ttft.add(times.ttft);
            row.pace.0.extend(times.pace);
            self.tokens = self.tokens.saturating_add(times.tokens);
        }
        self.decided.0.extend(done.decided);
    }

    /// A figure of all parts together.
    pub(crate) fn sum(&self, figure: fn(&Row) -> u64) -> u64 {
        self.rows.values().map(figure).sum()
    }
}

/// Durations, of which quantiles are asked.
#[derive(Debug, Default)]
pub(crate) struct Quantiles(Vec<Duration>);

impl Quantiles {
    fn add(&mut self, one: Duration) {
        self.0.push(one);
    }

    /// Percentiles by the nearest rank; `None`: there is nothing.
    pub(crate) fn percentiles<const N: usize>(&self, wanted: [usize; N]) -> Option<[Duration; N]> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or_default()
        };
        (!sorted.is_empty()).then(|| wanted.map(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let ms = Duration::from_millis;
        assert_eq!(Quantiles::default().percentiles([50]), None);
        let hundred = Quantiles((1..=100).rev().map(ms).collect());
        assert_eq!(hundred.percentiles([1, 50, 99, 100]), Some([ms(1), ms(50), ms(99), ms(100)]));
        assert_eq!(Quantiles(vec![ms(7)]).percentiles([50, 99]), Some([ms(7), ms(7)]));
    }

    #[test]
    fn every_request_is_counted_once() {
        let mut tally = Tally::default();
        let denied = || Some(Denied { reason: 13, come_back: None });
        tally.add(Phase::Mixed, Done { admitted: true, ended: Some(Ended::Finished), ..Done::default() });
        tally.add(Phase::Mixed, Done { denied: denied(), ..Done::default() });
        tally.add(Phase::Burst, Done { denied: denied(), ..Done::default() });
        tally.add(Phase::Burst, Done { admitted: true, ended: Some(Ended::Cancelled), ..Done::default() });
        tally.add(Phase::Long, Done { ended: Some(Ended::Failed("a".into())), ..Done::default() });
        tally.add(Phase::Long, Done { ended: Some(Ended::Failed("b".into())), ..Done::default() });
        assert_eq!((tally.sum(|row| row.asked), tally.sum(|row| row.admitted)), (6, 2));
        assert_eq!((tally.sum(|row| row.denied), tally.sum(|row| row.finished)), (2, 1));
        assert_eq!(tally.denied, BTreeMap::from([(13, 2)]));
        assert_eq!((tally.cancelled, tally.failed, tally.failure.as_deref()), (1, 2, Some("a")));
    }
}
