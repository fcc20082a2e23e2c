//! Does somebody's memory grow without end? Tells a leak from an allocation, a model that is loaded, and noise.

use std::{collections::VecDeque, time::Duration};

use crate::units::{Bytes, Mono, real};

/// Samples kept.
const SAMPLES: usize = 256;
/// Growth counts from here on; below it is noise.
const LEAST_STEP: Bytes = Bytes(1 << 20);
/// A fall by more than this share of what was grown ends a run of growth.
const TOLERATED_FALL: f64 = 0.1;
/// A run is believed after so many samples that grew, over so long a time.
const LEAST_STEPS: u32 = 4;
const LEAST_TIME: Duration = Duration::from_secs(10);
/// Without growth for so long, or for a third of the run, the run is over.
const PAUSE: Duration = Duration::from_secs(15);
/// What has grown for a time is expected to go on for this share of it, and no longer: who loads a model stops by himself.
const LINDY: f64 = 0.6;
/// What is further away is not warned of yet.
const HORIZON: Duration = Duration::from_mins(10);

/// A forecast that there will be nothing left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exhaustion {
    /// Time until then, at the pace of the run.
    pub(crate) within: Duration,
    /// Bytes per second.
    pub(crate) pace: f64,
    /// For how long it has grown.
    pub(crate) grown_for: Duration,
}

/// Somebody's memory over time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growth {
    samples: VecDeque<(Mono, Bytes)>,
}

/// Growth without a fall.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: Mono,
    from: Bytes,
    /// The most there was before.
    peak: Bytes,
    steps: u32,
    last_step: Mono,
}

impl Growth {
    pub(crate) fn take(&mut self, at: Mono, level: Bytes) {
        if self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((at, level));
    }

    /// The growth that goes on now.
    fn run(&self) -> Option<Run> {
        let mut run: Option<Run> = None;
        let mut before: Option<(Mono, Bytes)> = None;
        let (mut top, mut peak) = (Bytes::ZERO, Bytes::ZERO);
        for (at, level) in &self.samples {
            let Some((since, low)) = before.replace((*at, *level)) else {
                (top, peak) = (*level, *level);
                continue;
            };
            let grew = level.saturating_sub(low) >= LEAST_STEP;
            let fallen = run.is_some_and(|run| {
                let grown = real(top.saturating_sub(run.from).0);
                real(top.saturating_sub(*level).0) > grown * TOLERATED_FALL
            });
            let paused = run.is_some_and(|run| at.since(run.last_step) > PAUSE.max(run.time(*at) / 3));
            if fallen || paused {
                run = None;
            }
            if grew {
                let run = run.get_or_insert(Run { start: since, from: low, peak, steps: 0, last_step: *at });
                (run.steps, run.last_step) = (run.steps.saturating_add(1), *at);
            }
            peak = peak.max(*level);
            top = if run.is_some() { top.max(*level) } else { *level };
        }
        run
    }

    /// Whether it goes on growing just now.
    pub(crate) fn grows(&self) -> bool {
        self.run().is_some()
    }

    /// When `left` will be used up, where that is near.
    pub(crate) fn exhaustion(&self, left: Bytes) -> Option<Exhaustion> {
        let (now, level) = *self.samples.back()?;
        // Up to where it has been before it may go again without going further.
        let run = self.run().filter(|run| run.steps >= LEAST_STEPS && level > run.peak + LEAST_STEP)?;
        let grown_for = run.time(now);
        if grown_for < LEAST_TIME {
            return None;
        }
        let pace = real(level.saturating_sub(run.from).0) / grown_for.as_secs_f64();
        let within = Duration::try_from_secs_f64(real(left.0) / pace).ok()?;
        (within <= grown_for.mul_f64(LINDY).min(HORIZON)).then_some(Exhaustion { within, pace, grown_for })
    }
}

impl Run {
    const fn time(&self, now: Mono) -> Duration {
        now.since(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    const MIB: u64 = 1 << 20;

    /// One sample a second of `level` (MiB), which leaves what is left of `room`. When it first warns, and how soon it
    /// expects the end.
    fn warned(room: u64, seconds: u32, level: impl Fn(f64) -> f64) -> Option<(u32, Exhaustion)> {
        let mut growth = Growth::default();
        (0..seconds).find_map(|second| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "levels are small")]
            let mib = level(f64::from(second)) as u64;
            growth.take(at(second.into()), Bytes(mib * MIB));
            let left = Bytes(room.saturating_sub(mib) * MIB);
            Some((second, growth.exhaustion(left)?))
        })
    }

    #[test]
    fn a_steady_leak_is_warned_of_when_five_eighths_of_the_room_are_gone() {
        // 50 MiB a second into 6,400 MiB: full after 128 s. After t seconds 128 - t are left, and 0.6 t = 128 - t at 80.
        let (second, end) = warned(6400, 128, |second| 50.0 * second).unwrap();
        assert_eq!(second, 80);
        assert_eq!(end.within, Duration::from_secs(48));
    }

    #[test]
    fn a_leak_in_steps_is_one_too() {
        let steps = |second: f64| (second / 10.0).floor() * 500.0;
        let (second, _) = warned(6000, 120, steps).unwrap();
        assert!((70..=100).contains(&second), "{second}");
    }

    #[test]
    fn one_allocation_and_a_model_that_fits_are_none() {
        assert_eq!(warned(6000, 600, |second| if second < 30.0 { 0.0 } else { 4000.0 }), None);
        assert_eq!(warned(30_000, 600, |second| (1000.0 * second).min(14_000.0)), None);
    }

    #[test]
    fn what_goes_up_and_down_is_none() {
        let wave = |second: f64| 2000.0 + 1000.0 * (1.0 - libm::cos(second / 8.0));
        assert_eq!(warned(6000, 600, wave), None);
        // Where it has been before it may go again, however little is left there.
        let high = |second: f64| if second < 50.0 { 5500.0 } else { wave(second) + 1400.0 };
        assert_eq!(warned(6000, 600, high), None);
    }

    #[test]
    fn a_leak_that_is_far_from_the_end_is_not_told_yet() {
        assert_eq!(warned(100_000, 600, |second| 2.0 * second), None);
    }
}
