//! What comes before trouble in an engine: a KV cache that fills, preemption that begins, figures that are stuck.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{
    alarm::{Level, Patience},
    event::EventKind,
    host::{CgroupMemory, HostFact, Pressure},
    node::Node,
    observation::RankReading,
    snapshot::{About, EngineState},
    units::{Bytes, Mono, real},
};

/// Readings of a rank that are kept: 20 a second for so long as the slope looks back, at most.
const KEPT: usize = 320;
/// The slope of a KV cache is that of the last so many seconds, or of the shorter time where that is less steep: what
/// levels off is not forecast to overflow.
const SLOPES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(15)];
/// Below this use nothing is forecast, for what begins is steep.
const FILLING_FROM: f64 = 0.8;
/// A cache that is full within this time is told.
const FULL_SOON: Duration = Duration::from_secs(30);
/// And it is no danger any more when it takes so many times as long.
const FULL_LATE: u32 = 4;
const FILLING: Patience = Patience { raise: Duration::from_secs(2), lower: Duration::from_secs(10) };
/// Use from which requests that move back to the queue are preempted ones.
const TIGHT: f64 = 0.9;
/// Preemptions within [`ONSET_TIME`] that are told. One alone may be an abort that met an arrival.
const ONSET: u64 = 2;
const ONSET_TIME: Duration = Duration::from_secs(10);
const PREEMPTING: Patience = Patience { raise: Duration::ZERO, lower: Duration::from_secs(30) };
/// An idle engine whose cache is in use beyond this share says something wrong.
const STUCK_USE: f64 = 0.05;
const STUCK: Patience = Patience { raise: Duration::from_secs(10), lower: Duration::ZERO };
/// Share of time in which all waited for memory, percent: systemd-oomd acts at 60 for 30 s.
const PRESSURE_DANGER: f64 = 20.0;
const PRESSURE_CALM: f64 = 5.0;
const PRESSED: Patience = Patience { raise: Duration::from_secs(5), lower: Duration::from_secs(30) };
/// Share of a cgroup's limit, and of shared memory, that is near it.
const NEAR: f64 = 0.92;
const FAR: f64 = 0.85;
const NEARING: Patience = Patience { raise: Duration::from_secs(3), lower: Duration::from_secs(10) };
/// Swapped in per second.
const SWAP_DANGER: Bytes = Bytes(16 << 20);
const SWAP_CALM: Bytes = Bytes(2 << 20);
const SWAPPED: Patience = Patience { raise: Duration::from_secs(5), lower: Duration::from_secs(30) };

/// What is followed of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followed {
    rank: u32,
    used: VecDeque<(Mono, f64)>,
    before: Option<RankReading>,
    preempted: VecDeque<(Mono, u64)>,
}

/// What the ranks of an engine show together.
#[derive(Clone, Copy, Debug, Default)]
struct Signs {
    /// Use of the fullest.
    usage: f64,
    /// Shortest time until one is full.
    full_in: Option<Duration>,
    preempted: u64,
    /// Nothing runs or waits, yet the cache is in use.
    stuck: bool,
}

impl Followed {
    fn take(&mut self, now: Mono, reading: &RankReading) {
        if let Some(usage) = reading.kv_usage {
            if self.used.len() >= KEPT {
                self.used.pop_front();
            }
            self.used.push_back((now, usage));
        }
        let preempted = self.before.as_ref().map_or(0, |before| preempted(before, reading));
        if preempted > 0 {
            self.preempted.push_back((now, preempted));
        }
        while self.preempted.front().is_some_and(|(at, _)| now.since(*at) > ONSET_TIME) {
            self.preempted.pop_front();
        }
        self.before = Some(reading.clone());
    }

    fn signs(&self, now: Mono) -> Signs {
        let Some(reading) = &self.before else { return Signs::default() };
        let usage = reading.kv_usage.unwrap_or(0.0);
        let slopes = SLOPES.iter().map(|back| slope(&self.used, now, *back));
        let slope = slopes.min_by(f64::total_cmp).filter(|slope| *slope > 0.0);
        let full_in =
            slope.and_then(|slope| Duration::try_from_secs_f64((1.0 - usage).max(0.0) / slope).ok());
        let idle = reading.running == Some(0) && reading.waiting == Some(0);
        Signs {
            usage,
            full_in: full_in.filter(|_| !idle),
            preempted: self.preempted.iter().map(|(_, count)| count).sum(),
            stuck: idle && usage > STUCK_USE,
        }
    }
}

/// Requests that left the batch without having finished, and came back to the queue. The counter of preemptions counts
/// them only when they generate again.
fn preempted(before: &RankReading, now: &RankReading) -> u64 {
    let tight = [before, now].iter().any(|rank| rank.kv_usage.is_some_and(|usage| usage >= TIGHT));
    let left = before.running.zip(now.running).map_or(0, |(before, now)| before.saturating_sub(now));
    let finished = before.finished.zip(now.finished).map(|(before, now)| now.saturating_sub(before));
    let queued = before.waiting.zip(now.waiting).map_or(0, |(before, now)| now.saturating_sub(before));
    let Some(finished) = finished.filter(|_| tight) else { return 0 };
    left.saturating_sub(finished).min(queued)
}

/// Slope per second over the last `back`, by least squares; 0 where there is too little to tell.
fn slope(samples: &VecDeque<(Mono, f64)>, now: Mono, back: Duration) -> f64 {
    let recent = samples.iter().filter(|(at, _)| now.since(*at) <= back);
    let points: Vec<(f64, f64)> = recent.map(|(at, value)| (-now.since(*at).as_secs_f64(), *value)).collect();
    let covers = points.first().is_some_and(|(first, _)| -first >= back.as_secs_f64() * 0.6);
    if points.len() < 4 || !covers {
        return 0.0;
    }
    let count = real(u64::try_from(points.len()).unwrap_or(u64::MAX));
    let (mean_x, mean_y) = points.iter().fold((0.0, 0.0), |(x, y), (a, b)| (x + a / count, y + b / count));
    let (above, below) = points.iter().fold((0.0, 0.0), |(above, below), (x, y)| {
        (above + (x - mean_x) * (y - mean_y), below + (x - mean_x).powi(2))
    });
    if below > 0.0 { above / below } else { 0.0 }
}

impl Node {
    /// Follows what the readings of an engine that serves foretell.
    pub(crate) fn follow_engine(&mut self, now: Mono, index: usize, ranks: &[RankReading]) {
        let Some(engine) = self.engines.get_mut(index) else { return };
        let name = Arc::clone(&engine.facts.engine);
        if engine.live.state != EngineState::Ready {
            engine.followed.clear();
            return;
        }
        let mut all = Signs::default();
        for reading in ranks {
            let known = engine.followed.iter().position(|followed| followed.rank == reading.rank);
            let position = known.unwrap_or_else(|| {
                engine.followed.push(Followed { rank: reading.rank, ..Followed::default() });
                engine.followed.len() - 1
            });
            let Some(followed) = engine.followed.get_mut(position) else { continue };
            followed.take(now, reading);
            let signs = followed.signs(now);
            all.usage = all.usage.max(signs.usage);
            all.full_in = [all.full_in, signs.full_in].into_iter().flatten().min();
            all.preempted = all.preempted.saturating_add(signs.preempted);
            all.stuck |= signs.stuck;
        }
        self.judge_engine(now, &name, all);
    }

    fn judge_engine(&mut self, now: Mono, name: &Arc<str>, signs: Signs) {
        let subject = About::Engine(Arc::clone(name));
        let percent = signs.usage * 100.0;
        let soon = signs.full_in.is_some_and(|full| full <= FULL_SOON) && signs.usage >= FILLING_FROM;
        let late = signs.full_in.is_none_or(|full| full > FULL_SOON * FULL_LATE) && signs.usage < TIGHT;
        let filling = (EventKind::KvFilling, subject.clone());
        self.judge(now, filling, Level::of(soon, late), FILLING, || match signs.full_in {
            Some(full) if soon => {
                let seconds = full.as_secs_f64();
                format!("engine {name}: its KV cache is {percent:.0} % full, and will be in {seconds:.0} s at this slope")
            }
            _ => format!("engine {name}: its KV cache is {percent:.0} % full"),
        });
        let preempting = (EventKind::PreemptionOnset, subject.clone());
        let count = signs.preempted;
        self.judge(now, preempting, Level::of(count >= ONSET, count == 0), PREEMPTING, || {
            let seconds = ONSET_TIME.as_secs();
            format!("engine {name}: {count} requests went back to its queue within {seconds} s; KV cache {percent:.0} %")
        });
        let stuck = (EventKind::MetricsStuck, subject);
        self.judge(now, stuck, Level::of(signs.stuck, true), STUCK, || {
            format!("engine {name}: nothing runs or waits, and its KV cache reads {percent:.0} %")
        });
    }

    /// Follows the host's memory.
    pub(crate) fn follow_host(&mut self, now: Mono, fact: &HostFact) {
        match fact {
            HostFact::Processes { .. } => {}
            HostFact::Pressure(pressure) => self.pressure(now, pressure),
            HostFact::Cgroup(cgroup) => self.cgroup(now, cgroup),
            HostFact::SharedMemory { mount, total, used, .. } => {
                let share = real(used.0) / real(total.0.max(1));
                let key = (EventKind::SharedMemoryNearFull, About::Host(Arc::clone(mount)));
                self.judge(now, key, Level::of(share >= NEAR, share < FAR), NEARING, || {
                    format!("{mount} holds {used} of at most {total}")
                });
            }
            HostFact::SwapIn { per_second, .. } => {
                let level = Level::of(*per_second >= SWAP_DANGER, *per_second < SWAP_CALM);
                self.judge(
                    now,
                    (EventKind::MemoryPressure, About::Host("swap".into())),
                    level,
                    SWAPPED,
                    || format!("{per_second} are swapped in per second"),
                );
            }
        }
    }

    fn pressure(&mut self, now: Mono, pressure: &Pressure) {
        let Pressure { cgroup, some_percent, full_percent, .. } = pressure;
        let subject = cgroup.clone().unwrap_or_else(|| "machine".into());
        let level = Level::of(*full_percent >= PRESSURE_DANGER, *full_percent < PRESSURE_CALM);
        let key = (EventKind::MemoryPressure, About::Host(Arc::clone(&subject)));
        self.judge(now, key, level, PRESSED, || {
            format!("{subject}: all processes waited for memory {full_percent:.0} % of the last 10 s, some {some_percent:.0} %")
        });
    }

    fn cgroup(&mut self, now: Mono, cgroup: &CgroupMemory) {
        let CgroupMemory { path, engines, limit, in_use, .. } = cgroup;
        let Some(limit) = limit else { return };
        let share = real(in_use.0) / real(limit.0.max(1));
        let key = (EventKind::CgroupNearLimit, About::Host(Arc::clone(path)));
        self.judge(now, key, Level::of(share >= NEAR, share < FAR), NEARING, || {
            let engines = engines.join(", ");
            format!("memory cgroup {path} of {engines} holds {in_use} of at most {limit}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, rank};

    #[test]
    fn requests_that_leave_the_batch_unfinished_for_the_queue_are_preempted() {
        // Of 10 running 7 are left and 1 finished: 2 left; 3 more wait.
        assert_eq!(preempted(&rank(95, 10, 0, 5), &rank(92, 7, 3, 6)), 2);
    }

    #[test]
    fn ends_aborts_and_arrivals_are_no_preemptions() {
        assert_eq!(preempted(&rank(95, 10, 0, 5), &rank(90, 8, 2, 7)), 0, "two finished, two came");
        assert_eq!(preempted(&rank(95, 10, 0, 5), &rank(80, 7, 0, 5)), 0, "three were cancelled");
        assert_eq!(preempted(&rank(50, 10, 0, 5), &rank(45, 7, 3, 5)), 0, "there is room");
    }

    #[test]
    fn the_slope_is_that_of_the_line_through_the_points() {
        let samples =
            (0..=20).map(|step| (at(f64::from(step) * 0.5), 0.3 + 0.01 * f64::from(step))).collect();
        let found = slope(&samples, at(10.0), Duration::from_secs(5));
        assert!((found - 0.02).abs() < 1e-9, "{found}");
        assert!(slope(&samples, at(30.0), Duration::from_secs(5)).abs() < 1e-9, "nothing recent");
    }
}
