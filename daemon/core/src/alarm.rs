//! Alarms with hysteresis: raised when danger lasts, lowered when calm lasts, told once each time.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    event::EventKind,
    node::Node,
    snapshot::{About, Warning},
    units::Mono,
};

/// Most alarms kept; those of subjects beyond are not judged.
const MAX_ALARMS: usize = 1024;

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Danger,
    /// Neither: an alarm stays as it is.
    Between,
    Calm,
}

impl Level {
    /// Danger, or calm.
    pub(crate) const fn of(danger: bool, calm: bool) -> Self {
        match (danger, calm) {
            (true, _) => Self::Danger,
            (false, true) => Self::Calm,
            (false, false) => Self::Between,
        }
    }
}

/// How long danger must last before an alarm is raised, and calm before it is lowered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) raise: Duration,
    pub(crate) lower: Duration,
}

/// One alarm.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alarm {
    danger_since: Option<Mono>,
    calm_since: Option<Mono>,
    /// The event that told it.
    raised: Option<u64>,
    /// Another event had told its cause already.
    consequence: bool,
}

/// What a judgement changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Stays,
    Raise,
    Lower,
}

impl Alarm {
    fn judge(&mut self, now: Mono, level: Level, patience: Patience) -> Turn {
        let lasting = |since: &mut Option<Mono>, is: bool, for_: Duration| {
            *since = is.then(|| since.unwrap_or(now));
            since.is_some_and(|since| now.since(since) >= for_)
        };
        let danger = lasting(&mut self.danger_since, level == Level::Danger, patience.raise);
        let calm = lasting(&mut self.calm_since, level == Level::Calm, patience.lower);
        match self.raised {
            None if danger => Turn::Raise,
            Some(_) if calm => Turn::Lower,
            _ => Turn::Stays,
        }
    }
}

/// Kinds that have one cause when they come together.
const fn family(kind: EventKind) -> u8 {
    match kind {
        EventKind::MemoryPressure | EventKind::CgroupNearLimit | EventKind::SharedMemoryNearFull => 1,
        EventKind::CoTenantGrowth | EventKind::DeviceMemoryLow => 2,
        EventKind::KvFilling | EventKind::PreemptionOnset => 3,
        _ => 0,
    }
}

/// All alarms.
#[derive(Debug, Default)]
pub(crate) struct Alarms(BTreeMap<(EventKind, About), Alarm>);

impl Alarms {
    /// The event of a raised alarm with the same cause. The parts of the host are one; engines and devices are not.
    fn cause(&self, kind: EventKind, subject: &About) -> Option<u64> {
        let same = |other: &About| match (subject, other) {
            (About::Host(_), About::Host(_)) => true,
            (subject, other) => subject == other,
        };
        let related = |(other, about): &&(EventKind, About)| {
            family(kind) != 0
                && family(*other) == family(kind)
                && (*other, about) != (kind, subject)
                && same(about)
        };
        self.0.iter().filter(|(key, _)| related(key)).filter_map(|(_, alarm)| alarm.raised).min()
    }

    /// Those that are raised.
    pub(crate) fn raised(&self) -> impl Iterator<Item = Warning> {
        let raised = self.0.iter().filter(|(_, alarm)| alarm.raised.is_some());
        raised.map(|((kind, about), alarm)| Warning {
            kind: *kind,
            about: about.clone(),
            consequence: alarm.consequence,
        })
    }

    /// Forgets the alarms of a subject: what follows from its own end is no news.
    pub(crate) fn forget(&mut self, subject: &About) {
        self.0.retain(|(_, about), _| about != subject);
    }
}

impl Node {
    /// Judges an alarm, and tells when it is raised or lowered. Calls `message` only then.
    pub(crate) fn judge(
        &mut self,
        now: Mono,
        (kind, subject): (EventKind, About),
        level: Level,
        patience: Patience,
        message: impl FnOnce() -> String,
    ) {
        let key = (kind, subject);
        if !self.alarms.0.contains_key(&key) {
            if level != Level::Danger || self.alarms.0.len() >= MAX_ALARMS {
                return;
            }
            self.alarms.0.insert(key.clone(), Alarm::default());
        }
        let Some(alarm) = self.alarms.0.get_mut(&key) else { return };
        let turn = alarm.judge(now, level, patience);
        let told = alarm.raised;
        let (engine, device) = match &key.1 {
            About::Engine(engine) => (Some(engine), None),
            About::Device(device) => (None, Some(device)),
            About::Host(_) => (None, None),
        };
        match turn {
            Turn::Stays => {}
            Turn::Raise => {
                let cause = self.alarms.cause(kind, &key.1);
                let event = self.history.push(now, kind, engine, device, message());
                self.history.explain_newest(None, cause);
                if let Some(alarm) = self.alarms.0.get_mut(&key) {
                    (alarm.raised, alarm.consequence) = (Some(event), cause.is_some());
                }
            }
            Turn::Lower => {
                let over = if kind == EventKind::CoTenantGrowth {
                    EventKind::CoTenantReceded
                } else {
                    EventKind::AlertOver
                };
                let text = format!("{} is over: {}", kind.as_str(), message());
                self.history.push(now, over, engine, device, text);
                self.history.explain_newest(None, told);
                self.alarms.0.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    const PATIENCE: Patience = Patience { raise: Duration::from_secs(3), lower: Duration::from_secs(10) };

    #[test]
    fn an_alarm_is_raised_when_danger_lasts_and_lowered_when_calm_lasts() {
        let mut alarm = Alarm::default();
        let mut judge = |seconds, level| {
            let turn = alarm.judge(at(seconds), level, PATIENCE);
            match turn {
                Turn::Raise => alarm.raised = Some(1),
                Turn::Lower => alarm.raised = None,
                Turn::Stays => {}
            }
            turn
        };
        assert_eq!(judge(0.0, Level::Danger), Turn::Stays);
        assert_eq!(judge(2.0, Level::Calm), Turn::Stays);
        assert_eq!(judge(3.0, Level::Danger), Turn::Stays, "it had gone in between");
        assert_eq!(judge(6.0, Level::Danger), Turn::Raise);
        assert_eq!(judge(7.0, Level::Danger), Turn::Stays, "told once");
        assert_eq!(judge(8.0, Level::Calm), Turn::Stays);
        assert_eq!(judge(12.0, Level::Between), Turn::Stays);
        assert_eq!(judge(19.0, Level::Calm), Turn::Stays, "calm begins anew");
        assert_eq!(judge(29.0, Level::Calm), Turn::Lower);
    }
}
