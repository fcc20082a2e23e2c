//! By the hour and engine: what was decided, what observe mode would have denied, and how the engine fared meanwhile.
//!
//! An engine under pressure is one for which a denial was due a short while ago. What it does in that time set against
//! what it does otherwise tells whether those denials would have been right.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{request::Reason, units::Mono};

/// Hours kept.
pub const HOURS_KEPT: usize = 48;
/// Engines reported on; beyond it the one not heard of for longest is forgotten.
const MAX_ENGINES: usize = 64;
/// An engine is under pressure for so long after a denial was due.
const PRESSURE: Duration = Duration::from_secs(10);
/// Nothing is known of the time between two readings that are further apart.
const LONGEST_GAP: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

/// How an engine fared over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fared {
    /// Time covered by readings.
    pub time: Duration,
    /// Of that, time in which requests waited in the engine.
    pub queued: Duration,
    /// Preemptions that the engine counted.
    pub preemptions: u64,
}

impl Fared {
    const fn add(&mut self, span: Self) {
        self.time = self.time.saturating_add(span.time);
        self.queued = self.queued.saturating_add(span.queued);
        self.preemptions = self.preemptions.saturating_add(span.preemptions);
    }
}

/// One hour of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hour {
    /// When it began, or the first thing in it happened.
    pub start: Mono,
    /// Admitted.
    pub admitted: u64,
    /// Of those, the ones that enforce mode would have denied.
    pub would_have_denied: u64,
    /// Denied.
    pub denied: u64,
    /// Denied, or would have been, by [`Reason::number`] less one.
    by_reason: [u64; Reason::ALL.len()],
    /// While denials were due.
    pub pressed: Fared,
    /// Otherwise.
    pub calm: Fared,
}

impl Hour {
    const fn new(start: Mono) -> Self {
        let fared = Fared { time: Duration::ZERO, queued: Duration::ZERO, preemptions: 0 };
        Self {
            start,
            admitted: 0,
            would_have_denied: 0,
            denied: 0,
            by_reason: [0; Reason::ALL.len()],
            pressed: fared,
            calm: fared,
        }
    }

    /// Denied, or would have been, by reason; only those that occurred.
    pub fn by_reason(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.by_reason).filter(|(_, count)| *count > 0)
    }

    fn count(&mut self, reason: Reason) {
        let mut counts = Reason::ALL.into_iter().zip(&mut self.by_reason);
        if let Some((_, count)) = counts.find(|(known, _)| *known == reason) {
            *count = count.saturating_add(1);
        }
    }
}

/// The hours of one engine, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineReport {
    /// Engine id.
    pub engine: Arc<str>,
    /// Hours in which something happened.
    pub hours: Vec<Hour>,
}

/// What a reading says of how an engine fares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Mono,
    pub(crate) preemptions: Option<u64>,
    pub(crate) queued: bool,
}

#[derive(Clone, Debug)]
struct Engine {
    name: Arc<str>,
    hours: VecDeque<Hour>,
    heard: Mono,
    /// When a denial was last due.
    pressed_at: Option<Mono>,
    seen: Option<Seen>,
    /// Since it was first heard of.
    pressed: Fared,
    calm: Fared,
}

impl Engine {
    fn hour(&mut self, at: Mono) -> Option<&mut Hour> {
        let same = |hour: &Hour| hours_of(hour.start) == hours_of(at);
        if !self.hours.back().is_some_and(same) {
            if self.hours.len() >= HOURS_KEPT {
                self.hours.pop_front();
            }
            self.hours.push_back(Hour::new(at));
        }
        self.hours.back_mut()
    }
}

fn hours_of(at: Mono) -> u64 {
    at.0 / u64::try_from(HOUR.as_nanos()).unwrap_or(u64::MAX)
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reports {
    engines: Vec<Engine>,
}

impl Reports {
    fn of(&mut self, name: &Arc<str>, at: Mono) -> Option<&mut Engine> {
        let index = match self.engines.iter().position(|engine| engine.name == *name) {
            Some(index) => index,
            None => self.open(name),
        };
        let engine = self.engines.get_mut(index)?;
        engine.heard = at;
        Some(engine)
    }

    fn open(&mut self, name: &Arc<str>) -> usize {
        if self.engines.len() >= MAX_ENGINES {
            let oldest = self.engines.iter().enumerate().min_by_key(|(_, engine)| engine.heard);
            if let Some((oldest, _)) = oldest {
                self.engines.swap_remove(oldest);
            }
        }
        let (name, hours) = (Arc::clone(name), VecDeque::new());
        self.engines.push(Engine {
            name,
            hours,
            heard: Mono::default(),
            pressed_at: None,
            seen: None,
            pressed: Fared::default(),
            calm: Fared::default(),
        });
        self.engines.len() - 1
    }

    /// A decision was made: `denied`, or `observed` as what enforce mode would have denied for.
    pub(crate) fn decided(
        &mut self,
        engine: &Arc<str>,
        at: Mono,
        denied: Option<Reason>,
        observed: Option<Reason>,
    ) {
        let Some(engine) = self.of(engine, at) else { return };
        if denied.or(observed).is_some_and(|reason| reason.http_status() == 429) {
            engine.pressed_at = Some(at);
        }
        let Some(hour) = engine.hour(at) else { return };
        let count = if denied.is_some() { &mut hour.denied } else { &mut hour.admitted };
        *count = count.saturating_add(1);
        if denied.is_none() && observed.is_some() {
            hour.would_have_denied = hour.would_have_denied.saturating_add(1);
        }
        if let Some(reason) = denied.or(observed) {
            hour.count(reason);
        }
    }

    /// An engine was read.
    pub(crate) fn read(&mut self, engine: &Arc<str>, seen: Seen) {
        let Some(engine) = self.of(engine, seen.at) else { return };
        let Some(before) = engine.seen.replace(seen) else { return };
        let pressed = engine.pressed_at.is_some_and(|at| before.at.since(at) <= PRESSURE);
        let elapsed = seen.at.since(before.at);
        // A count that fell began anew.
        let preemptions = before
            .preemptions
            .zip(seen.preemptions)
            .map_or(0, |(before, now)| now.checked_sub(before).unwrap_or(now));
        let time = if elapsed <= LONGEST_GAP { elapsed } else { Duration::ZERO };
        let queued = if before.queued { time } else { Duration::ZERO };
        let span = Fared { time, queued, preemptions };
        let total = if pressed { &mut engine.pressed } else { &mut engine.calm };
        total.add(span);
        let Some(hour) = engine.hour(seen.at) else { return };
        if pressed { &mut hour.pressed } else { &mut hour.calm }.add(span);
    }

    /// How engine `name` fared since it was first heard of: while denials were due, and otherwise.
    pub(crate) fn fared(&self, name: &str) -> (Fared, Fared) {
        let engine = self.engines.iter().find(|engine| &*engine.name == name);
        engine.map(|engine| (engine.pressed, engine.calm)).unwrap_or_default()
    }

    /// The newest `hours` hours of each engine, by name.
    pub(crate) fn newest(&self, now: Mono, hours: usize) -> Vec<EngineReport> {
        let first = (hours_of(now) + 1).saturating_sub(u64::try_from(hours).unwrap_or(u64::MAX));
        let mut reports: Vec<_> = self
            .engines
            .iter()
            .map(|engine| EngineReport {
                engine: Arc::clone(&engine.name),
                hours: engine.hours.iter().filter(|hour| hours_of(hour.start) >= first).cloned().collect(),
            })
            .collect();
        reports.sort_by(|one, other| one.engine.cmp(&other.engine));
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn seen(seconds: f64, preemptions: u64, queued: bool) -> Seen {
        Seen { at: at(seconds), preemptions: Some(preemptions), queued }
    }

    #[test]
    fn what_an_engine_does_while_denials_are_due_is_told_apart() {
        let (mut reports, engine): (_, Arc<str>) = (Reports::default(), "e".into());
        reports.read(&engine, seen(0.0, 5, false));
        reports.read(&engine, seen(1.0, 5, false));
        reports.decided(&engine, at(1.5), None, Some(Reason::KvFull));
        reports.decided(&engine, at(1.6), None, None);
        reports.read(&engine, seen(2.0, 6, true)); // begun before
        reports.read(&engine, seen(4.0, 9, true));
        reports.read(&engine, seen(14.0, 9, false));
        reports.read(&engine, seen(15.0, 9, false));
        let report = &reports.newest(at(15.0), 1)[0];
        let hour = &report.hours[0];
        assert_eq!((hour.admitted, hour.would_have_denied, hour.denied), (2, 1, 0));
        assert_eq!(hour.by_reason().collect::<Vec<_>>(), [(Reason::KvFull, 1)]);
        let fared = |time, queued, preemptions| Fared {
            time: Duration::from_secs(time),
            queued: Duration::from_secs(queued),
            preemptions,
        };
        // Each span counts by how it began: pressed are those begun at 1, 2 and 4 seconds.
        assert_eq!(hour.pressed, fared(13, 12, 4));
        assert_eq!(hour.calm, fared(2, 0, 0));
        assert_eq!(reports.fared("e"), (hour.pressed, hour.calm));
    }

    #[test]
    fn hours_and_engines_are_bounded() {
        let mut reports = Reports::default();
        for hour in 0..100_u32 {
            reports.decided(&"e".into(), at(f64::from(hour) * 3600.0), None, None);
        }
        let now = at(99.0 * 3600.0);
        assert_eq!(reports.newest(now, 1000)[0].hours.len(), HOURS_KEPT);
        assert_eq!(reports.newest(now, 24)[0].hours.len(), 24);
        for number in 0..100_u32 {
            reports.decided(&number.to_string().into(), now + Duration::from_secs(number.into()), None, None);
        }
        assert_eq!(reports.engines.len(), MAX_ENGINES);
    }

    #[test]
    fn a_counter_that_began_anew_counts_from_nothing() {
        let (mut reports, engine): (_, Arc<str>) = (Reports::default(), "e".into());
        reports.read(&engine, seen(0.0, 50, false));
        reports.read(&engine, seen(1.0, 3, false));
        assert_eq!(reports.newest(at(1.0), 1)[0].hours[0].calm.preemptions, 3);
    }
}
