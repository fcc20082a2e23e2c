//! When a denied caller should come back: what the sums foresee, set right by what became of those told before.
//!
//! The room that will be free by then is wanted by others too, who come in between or were told to come back earlier. How
//! much longer that makes the wait is not worked out but learned: those denied are kept, and weighed
//! again when their callers were told to come. Whether they would be admitted then moves the factor by which waits are told
//! longer than foreseen, until the share that is admitted is what it should be. (`expected` keeps room for them.)

use std::time::Duration;

use libm::exp;

use crate::{
    decision::Weighed,
    engine::Engine,
    expected::{Expected, Expecting},
    idempotency,
    node::Node,
    queue::Question,
    request::{Reason, Request},
    units::Mono,
};

/// Share of those who come back at the named time that should be let in.
const WANTED: f64 = 0.8;
/// How far one of them moves the logarithm of the factor.
const STEP: f64 = 0.1;
/// Most of an engine's that are weighed again at once; the next ones follow with the next tick.
const AT_ONCE: usize = 8;
/// Bounds of the factor.
const FACTORS: (f64, f64) = (0.5, 64.0);
/// No caller is told to come back later: beyond it nothing can be foreseen.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);
/// No caller is told to come back sooner: a completion takes at least a step.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);

/// How much longer than foreseen one kind of denial takes.
#[derive(Clone, Copy, Debug)]
struct Later(f64);

impl Default for Later {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Later {
    /// When one should come back that could be admitted after `foreseen` if nobody else came.
    fn of(self, foreseen: Duration) -> Duration {
        foreseen.mul_f64(self.0).clamp(SHORTEST, LONGEST)
    }

    fn learn(&mut self, admitted: bool) {
        let step = if admitted { WANTED - 1.0 } else { WANTED };
        self.0 = (self.0 * exp(STEP * step)).clamp(FACTORS.0, FACTORS.1);
    }
}

/// What is known of the callers that one engine denied.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComeBack {
    for_room: Later,
    for_time: Later,
    /// Those who were told when.
    pub(crate) expecting: Expecting,
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
    /// When a caller denied for `reason` by the engine that weighed it should come back.
    pub(crate) fn come_back(
        &mut self,
        now: Mono,
        request: &Request<'_>,
        reason: Reason,
        of: Option<(usize, &Weighed)>,
        foreseen: Duration,
    ) -> Duration {
        let Some((engine, weighed)) =
            of.and_then(|(index, weighed)| Some((self.engines.get_mut(index)?, weighed)))
        else {
            return foreseen;
        };
        let (room, time) = engine.needs(weighed);
        let Some(later) = engine.come_back.kind(reason) else { return foreseen };
        let wait = later.of(foreseen);
        let question = (idempotency::question(request), Question::new(request));
        engine.come_back.expecting.add(Expected::new(now, wait, question, reason).needing(room, time));
        wait
    }

    /// Fingerprint of a request's question, where somebody is expected back.
    pub(crate) fn key(&self, request: &Request<'_>) -> Option<u64> {
        let nobody = self.engines.iter().all(|engine| engine.come_back.expecting.is_empty());
        (!nobody).then(|| idempotency::question(request))
    }

    /// Whether a request is one that was told to come back about now.
    pub(crate) fn returning(&self, now: Mono, key: Option<u64>) -> bool {
        let Some(key) = key else { return false };
        self.engines.iter().any(|engine| engine.come_back.expecting.expects(now, key))
    }

    /// A request is answered, or waits: if it was told to come, it has. From whether it is let in is learned.
    pub(crate) fn came_back(&mut self, now: Mono, key: Option<u64>, denied: Option<Reason>) {
        let Some(key) = key else { return };
        let came = |engine: &mut Engine| {
            let one = engine.come_back.expecting.take(now, key)?;
            let learns = engine.parts.retry_after;
            let later = engine.come_back.kind(one.reason).filter(|_| learns)?;
            match denied {
                None if !one.learned => later.learn(true),
                Some(reason) if !one.learned && reason.http_status() == 429 => later.learn(false),
                _ => {}
            }
            Some(())
        };
        let _ = self.engines.iter_mut().find_map(came);
    }

    /// Weighs those again who should be back by now, learns from it, and forgets those who did not come.
    pub(crate) fn look_back(&mut self, now: Mono) {
        for index in 0..self.engines.len() {
            for _ in 0..AT_ONCE {
                let Some(engine) = self.engines.get_mut(index) else { break };
                let Some(one) = engine.come_back.expecting.due(now) else { break };
                one.learned = true;
                let (reason, question) = (one.reason, one.question.clone());
                self.look_back_at(now, index, reason, &question);
            }
            if let Some(engine) = self.engines.get_mut(index) {
                engine.come_back.expecting.forget(now);
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
        let engine = self.engines.get_mut(index).filter(|engine| engine.parts.retry_after);
        if let Some(later) = engine.and_then(|engine| engine.come_back.kind(reason)) {
            later.learn(admitted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        observation::{EngineReading, Observation},
        request::Verdict,
        settings::Settings,
        testing::{at, facts, rank, request},
        units::Span,
    };

    /// A pool that others have filled, read every five seconds, last at 0 s.
    #[test]
    fn who_finds_it_full_before_anything_is_known_of_what_it_gives_back_comes_with_the_next_reading() {
        let mut node = Node::new(Settings::default(), 1);
        node.observe(at(0.0), Observation::Engine(Box::new(facts(at(0.0)))));
        let reading = EngineReading {
            span: Span::at(at(0.0)),
            ranks: vec![rank(100, 5, 0, 0)],
            interval: Duration::from_secs(5),
            ..EngineReading::default()
        };
        node.observe(at(0.0), Observation::Reading { engine: "e".into(), reading: Box::new(reading) });
        let mut ask = |seconds| match node.admit(at(seconds), &request(16)).unwrap().verdict {
            Verdict::Deny(deny) => (deny.reason, deny.retry_after.unwrap()),
            Verdict::Admit(admit) => panic!("{admit:?}"),
        };
        assert_eq!(ask(1.0), (Reason::KvFull, Duration::from_secs(4)));
        // It comes when it was told, in vain: the next wait, of a second at least, is told longer by e^(0.1 × 0.8).
        let (reason, wait) = ask(5.0);
        assert_eq!(reason, Reason::KvFull);
        assert!((wait.as_secs_f64() - 1.083_287).abs() < 1e-6, "{wait:?}");
    }

    #[test]
    fn waits_grow_until_those_who_come_back_are_let_in() {
        let mut later = Later::default();
        // Room comes after four times what is foreseen.
        let mut let_in = 0;
        for round in 0..400 {
            let admitted = later.of(Duration::from_secs(2)) >= Duration::from_secs(8);
            later.learn(admitted);
            let_in += u32::from(admitted && round >= 100);
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
        assert_eq!(later.of(Duration::from_secs(30)), LONGEST);
        for _ in 0..1000 {
            later.learn(true);
        }
        assert_eq!(later.of(Duration::from_millis(10)), SHORTEST);
    }
}
