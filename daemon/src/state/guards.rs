//! Learned guards as they stand in the file. Their times run on while the daemon is down.

use std::time::Duration;

use gpuadmit_core::guard::{Held, Kept, SizeClass, Suspected};
use serde::{Deserialize, Serialize};

/// Guards, and first deaths that may lead to one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guards {
    held: Vec<OfSize>,
    suspected: Vec<OfDeath>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OfSize {
    engine: String,
    size_class: u8,
    deaths: u32,
    configuration: String,
    left_ms: u64,
    probe_in_ms: u64,
    pause_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OfDeath {
    engine: String,
    configuration: String,
    in_flight: u64,
    served: u64,
    left_ms: u64,
}

impl From<Kept> for Guards {
    fn from(kept: Kept) -> Self {
        let of_size = |held: Held| OfSize {
            engine: held.engine.as_ref().into(),
            size_class: held.size.number(),
            deaths: held.deaths,
            configuration: held.configuration,
            left_ms: millis(held.left),
            probe_in_ms: millis(held.probe_in),
            pause_ms: millis(held.pause),
        };
        let of_death = |suspected: Suspected| OfDeath {
            engine: suspected.engine.as_ref().into(),
            configuration: suspected.configuration,
            in_flight: suspected.in_flight,
            served: suspected.served,
            left_ms: millis(suspected.left),
        };
        Self {
            held: kept.held.into_iter().map(of_size).collect(),
            suspected: kept.suspected.into_iter().map(of_death).collect(),
        }
    }
}

impl Guards {
    /// As they stand `age` later: those whose time is over are left out, and so are sizes that there are none of.
    #[must_use]
    pub fn after(self, age: Duration) -> Kept {
        let left = |ms| Duration::from_millis(ms).checked_sub(age).filter(|left| !left.is_zero());
        let held = |one: OfSize| {
            Some(Held {
                engine: one.engine.into(),
                size: SizeClass::numbered(one.size_class)?,
                deaths: one.deaths,
                configuration: one.configuration,
                left: left(one.left_ms)?,
                probe_in: Duration::from_millis(one.probe_in_ms).saturating_sub(age),
                pause: Duration::from_millis(one.pause_ms),
            })
        };
        let suspected = |one: OfDeath| {
            Some(Suspected {
                engine: one.engine.into(),
                configuration: one.configuration,
                in_flight: one.in_flight,
                served: one.served,
                left: left(one.left_ms)?,
            })
        };
        Kept {
            held: self.held.into_iter().filter_map(held).collect(),
            suspected: self.suspected.into_iter().filter_map(suspected).collect(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guards_time_runs_on_while_the_daemon_is_down() {
        let hours = Duration::from_hours;
        let held = |left| Held {
            engine: "e".into(),
            size: SizeClass::numbered(20).unwrap(),
            deaths: 2,
            configuration: "c".into(),
            left,
            probe_in: hours(1),
            pause: hours(2),
        };
        let kept = Kept { held: vec![held(hours(20)), held(hours(3))], suspected: Vec::new() };
        let text = serde_json::to_string(&Guards::from(kept.clone())).unwrap();
        let read = || serde_json::from_str::<Guards>(&text).unwrap();
        assert_eq!(read().after(Duration::ZERO), kept);
        let later = read().after(hours(4));
        assert_eq!(later.held, [Held { left: hours(16), probe_in: Duration::ZERO, ..held(hours(20)) }]);
    }

    #[test]
    fn a_size_that_there_is_none_of_is_left_out() {
        let text = r#"{"held":[{"engine":"e","size_class":200,"deaths":2,"configuration":"","left_ms":1000,
            "probe_in_ms":0,"pause_ms":0}],"suspected":[]}"#;
        assert_eq!(serde_json::from_str::<Guards>(text).unwrap().after(Duration::ZERO), Kept::default());
    }
}
