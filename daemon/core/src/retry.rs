//! When a denied caller should come back: what the sums foresee, set right by what became of those told before.
//!
//! The room that will be free by then is wanted by others too, who come in between or were told to come back earlier. How
//! much longer that makes the wait is not worked out but learned: of the denials of a kind some are kept, and weighed
//! again when their callers were told to come. Whether they would be admitted then moves the factor by which waits are told
//! longer than foreseen, until the share that is admitted is what it should be.

use std::time::Duration;

use crate::{
    node::Node,
    queue::Question,
    request::{Reason, Request},
    units::Mono,
};

/// Share of those who come back at the named time that should be let in.
const WANTED: f64 = 0.8;
/// How far one of them moves the logarithm of the factor.
const STEP: f64 = 0.1;
/// Most that are kept.
const KEPT: usize = 16;
/// Most of a kind that are weighed again at once; the next ones follow with the next tick.
const AT_ONCE: usize = 8;
/// Bounds of the factor.
const FACTORS: (f64, f64) = (0.5, 64.0);
/// No caller is told to come back later: beyond it nothing can be foreseen.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);
/// No caller is told to come back sooner: a completion takes at least a step.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);

/// One kind of denial of one engine.
#[derive(Clone, Debug)]
pub(crate) struct Later {
    factor: f64,
    /// Denied requests, and when their callers were told to come back.
    kept: Vec<(Mono, Question)>,
}

impl Default for Later {
    fn default() -> Self {
        Self { factor: 1.0, kept: Vec::new() }
    }
}

impl Later {
    /// When `request`, which could be admitted after `foreseen` if nobody else came, should come back.
    fn tell(&mut self, now: Mono, request: &Request<'_>, foreseen: Duration) -> Duration {
        let wait = foreseen.mul_f64(self.factor).clamp(SHORTEST, LONGEST);
        if self.kept.len() < KEPT {
            self.kept.push((now + wait, Question::new(request)));
        }
        wait
    }

    /// One that should be back by now.
    fn due(&mut self, now: Mono) -> Option<Question> {
        let index = self.kept.iter().position(|(due, _)| now >= *due)?;
        Some(self.kept.swap_remove(index).1)
    }

    fn learn(&mut self, admitted: bool) {
        let step = if admitted { WANTED - 1.0 } else { WANTED };
        self.factor = (self.factor * (STEP * step).exp()).clamp(FACTORS.0, FACTORS.1);
    }
}

/// What is learned of the callers that one engine denied.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComeBack {
    for_room: Later,
    for_time: Later,
}

impl ComeBack {
    fn kind(&mut self, reason: Reason) -> Option<&mut Later> {
        match reason {
            Reason::KvFull => Some(&mut self.for_room),
            Reason::Ttft => Some(&mut self.for_time),
            _ => None,
        }
    }
}

impl Node {
    /// When a caller denied for `reason` by the engine at `index` should come back.
    pub(crate) fn come_back(
        &mut self,
        now: Mono,
        request: &Request<'_>,
        reason: Reason,
        index: Option<usize>,
        foreseen: Duration,
    ) -> Duration {
        let later = index.and_then(|index| self.later(index, reason));
        later.map_or(foreseen, |later| later.tell(now, request, foreseen))
    }

    fn later(&mut self, index: usize, reason: Reason) -> Option<&mut Later> {
        self.engines.get_mut(index)?.come_back.kind(reason)
    }

    /// Weighs again those who should be back by now, and learns from it.
    pub(crate) fn look_back(&mut self, now: Mono) {
        for index in 0..self.engines.len() {
            for reason in [Reason::KvFull, Reason::Ttft] {
                for _ in 0..AT_ONCE {
                    let Some(question) = self.later(index, reason).and_then(|later| later.due(now)) else {
                        break;
                    };
                    self.look_back_at(now, index, reason, &question);
                }
            }
        }
    }

    fn look_back_at(&mut self, now: Mono, index: usize, reason: Reason, question: &Question) {
        let admitted = match self.foretell(now, &question.request(Duration::ZERO)) {
            Ok(_) => true,
            Err(reason) if reason.http_status() == 429 => false,
            // What is broken says nothing of room.
            Err(_) => return,
        };
        if let Some(later) = self.later(index, reason) {
            later.learn(admitted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, request};

    #[test]
    fn waits_grow_until_those_who_come_back_are_let_in() {
        let mut later = Later::default();
        // Room comes after four times what is foreseen.
        let mut let_in = 0;
        for tick in 0..400_u32 {
            let now = at(f64::from(tick) * 100.0);
            let wait = later.tell(now, &request(10), Duration::from_secs(2));
            assert!(later.due(now).is_none());
            assert!(later.due(now + wait).is_some());
            let admitted = wait >= Duration::from_secs(8);
            later.learn(admitted);
            let_in += u32::from(admitted && tick >= 100);
        }
        // Of the last 300 some four in five.
        assert!((220..=260).contains(&let_in), "{let_in}");
    }

    #[test]
    fn no_wait_is_longer_than_can_be_foreseen_nor_shorter_than_a_step() {
        let mut later = Later::default();
        for _ in 0..1000 {
            later.learn(false);
        }
        assert_eq!(later.tell(at(0.0), &request(10), Duration::from_secs(30)), LONGEST);
        for _ in 0..1000 {
            later.learn(true);
        }
        assert_eq!(later.tell(at(0.0), &request(10), Duration::from_millis(10)), SHORTEST);
    }
}
