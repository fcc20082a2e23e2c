//! How much more careful than the forecast's own spread it is wise to be, by what has really happened: a forecast knows the
//! chances that it counts, not those of being wrong itself.

use crate::{figures::Change, units::real};

/// Share of requests that may be preempted, and how much more where all come by other ways: what they bring is not ours to
/// prevent.
const ACCEPTED: f64 = 0.0015;
const ACCEPTED_OF_OTHERS: f64 = 0.035;
/// Standard deviations that one preemption adds.
const STEP: f64 = 0.04;
/// Bounds, standard deviations.
const BOUNDS: (f64, f64) = (-0.5, 1.0);
/// Most preemptions of one reading that count: one overflow preempts several.
const AT_ONCE: f64 = 5.0;

/// Standard deviations that are kept free beyond those of the accepted risk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Caution(f64);

impl Caution {
    /// Takes in what a reading tells of preemptions, where `others` is the share of requests that come by other ways.
    pub(crate) fn learn(&mut self, change: &Change, others: f64) {
        let preempted = real(change.preempted).min(AT_ONCE);
        let accepted = (ACCEPTED + ACCEPTED_OF_OTHERS * others) * real(change.finished);
        self.0 = (self.0 + STEP * (preempted - accepted)).clamp(BOUNDS.0, BOUNDS.1);
    }

    /// With it, standard deviations to be kept free where `sigmas` are by the accepted risk.
    pub(crate) fn of(self, sigmas: f64) -> f64 {
        (sigmas + self.0).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(readings: u32, preempted: u64, finished: u64, others: f64) -> f64 {
        let mut caution = Caution::default();
        for _ in 0..readings {
            caution.learn(&Change { preempted, finished, ..Change::default() }, others);
        }
        caution.of(1.5)
    }

    #[test]
    fn preemptions_make_it_careful_and_their_absence_makes_it_bolder() {
        // Three in a hundred, where 1.5 in a thousand are accepted; and none.
        assert!(after(10, 3, 100, 0.0) > 2.4);
        let bolder = after(10, 0, 100, 0.0);
        assert!((1.4..1.5).contains(&bolder), "{bolder}");
        // What others may have brought about counts less.
        assert!(after(10, 3, 100, 0.8) < 1.6);
    }

    #[test]
    fn it_stays_within_its_bounds_and_one_overflow_is_one() {
        assert_eq!(after(1000, 9, 10, 0.0), 2.5);
        assert_eq!(after(1000, 0, 1000, 0.0), 1.0);
        assert!(after(1, 500, 10, 0.0) < 1.71);
        assert_eq!(Caution::default().of(f64::INFINITY), f64::INFINITY);
    }
}
