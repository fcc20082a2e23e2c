//! The node's side of the learned guard: which deaths count, and what is told.

use std::sync::Arc;

use crate::{
    event::EventKind,
    guard::{self, Held, Kept, SizeClass},
    node::Node,
    request::{Outcome, ReservationId},
    units::{Mono, Tokens},
    verdict::{Cause, Verdict},
};

impl Node {
    /// Guards that hold.
    #[must_use]
    pub fn guards(&self, now: Mono) -> Vec<Held> {
        self.guard.held(now)
    }

    /// Lifts the guards of `engine`, or of all; returns how many.
    pub fn clear_guards(&mut self, now: Mono, engine: Option<&str>) -> usize {
        let held = self.guard.held(now);
        let mut engines: Vec<_> = held.into_iter().map(|held| held.engine).collect();
        engines.dedup();
        let wanted = engines.into_iter().filter(|name| engine.is_none_or(|engine| **name == *engine));
        let mut lifted = 0;
        for name in wanted.collect::<Vec<_>>() {
            for size in self.guard.clear(&name) {
                self.tell_lifted(now, &name, size, "by the operator");
                lifted += 1;
            }
        }
        lifted
    }

    /// The guards, for the next run.
    #[must_use]
    pub fn keep_guards(&self, now: Mono) -> Kept {
        self.guard.keep(now)
    }

    /// Takes up the guards of an earlier run.
    pub fn take_up_guards(&mut self, now: Mono, kept: Kept) {
        self.guard.take_up(now, kept);
    }

    /// An engine was lost.
    pub(crate) fn blame(&mut self, now: Mono, index: usize, verdict: &Verdict) {
        let Some(engine) = self.engines.get(index) else { return };
        let name = Arc::clone(&engine.facts.engine);
        let squeezed = engine.squeezed(now, &self.settings).is_some();
        match verdict.cause {
            Cause::Stopped => {}
            Cause::CudaOom if !squeezed => {
                let Some(configuration) = guard::configuration(&engine.facts) else { return };
                let size = self.guard.ran_out(now, &name, configuration, verdict.in_flight);
                if let Some(size) = size {
                    self.tell_set(now, &name, size);
                }
            }
            _ => self.guard.exonerate(&name),
        }
    }

    /// A request of `prompt` tokens ended.
    pub(crate) fn absolve(
        &mut self,
        now: Mono,
        engine: &Arc<str>,
        prompt: Tokens,
        id: ReservationId,
        outcome: Outcome,
    ) {
        if let Some(size) = self.guard.ended(engine, prompt, id, outcome) {
            self.tell_lifted(now, engine, size, "one that was let through ended well");
        }
    }

    /// The configuration of an engine may have changed.
    pub(crate) fn reconsider(&mut self, now: Mono, index: usize) {
        let Some(engine) = self.engines.get(index) else { return };
        let Some(configuration) = guard::configuration(&engine.facts) else { return };
        let name = Arc::clone(&engine.facts.engine);
        for size in self.guard.configured(&name, &configuration) {
            self.tell_lifted(now, &name, size, "its configuration changed");
        }
    }

    /// Lifts what has had its time.
    pub(crate) fn expire_guards(&mut self, now: Mono) {
        for (name, size) in self.guard.expire(now) {
            self.tell_lifted(now, &name, size, "after 24 hours");
        }
    }

    fn tell_set(&mut self, now: Mono, engine: &Arc<str>, size: SizeClass) {
        let message = format!(
            "engine {engine}: {} are held back for 24 hours: twice it ran out of device memory with such prompts in \
             flight and nothing else to explain it",
            prompts(size)
        );
        let down = self.engines.iter().find(|known| known.facts.engine == *engine);
        let down = down.and_then(|engine| engine.down_event);
        self.history.push(now, EventKind::GuardSet, Some(engine), None, message);
        self.history.explain_newest(None, down);
    }

    fn tell_lifted(&mut self, now: Mono, engine: &Arc<str>, size: SizeClass, why: &str) {
        let message = format!("engine {engine}: {} are no longer held back: {why}", prompts(size));
        self.history.push(now, EventKind::GuardLifted, Some(engine), None, message);
    }
}

/// Prompts of a size, for sentences.
pub(crate) fn prompts(size: SizeClass) -> String {
    format!("prompts of {} to {}", size.shortest().0, size.longest())
}
