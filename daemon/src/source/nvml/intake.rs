//! Lines and messages in, observations out; what cannot be used is counted and told.

use gpuadmit_core::{
    observation::{Observation, SourceHealth},
    units::Span,
};

use super::{
    super::Observe,
    lines::Line,
    translate::{Translator, Unusable},
    wire::{Bye, Message},
};
use crate::clock;

/// Takes what a child says.
pub(super) struct Intake {
    translator: Translator,
    observe: Observe,
    unusable: u32,
}

impl Intake {
    pub(super) fn new(observe: Observe) -> Self {
        Self { translator: Translator::default(), observe, unusable: 0 }
    }

    /// Takes a line; returns the farewell if it is one.
    pub(super) fn line(&mut self, line: &Line<'_>) -> Option<Bye> {
        let Line::Whole(bytes) = line else {
            self.leave_out(&"a line is too long");
            return None;
        };
        match serde_json::from_slice(bytes) {
            Ok(message) => self.message(message),
            Err(error) => {
                self.leave_out(&error);
                None
            }
        }
    }

    /// Takes a message; returns the farewell if it is one.
    pub(super) fn message(&mut self, message: Message) -> Option<Bye> {
        if let Message::Bye(bye) = message {
            return Some(bye);
        }
        match self.translator.observation(message) {
            Ok(Some(observation)) => (self.observe)(self.told(observation)),
            Ok(None) => {}
            Err(unusable) => self.leave_out::<Unusable>(&unusable),
        }
        None
    }

    /// Messages of this child that could not be used.
    pub(super) const fn unusable(&self) -> u32 {
        self.unusable
    }

    /// The child is gone.
    pub(super) fn child_ended(&mut self) {
        self.translator.child_ended();
        self.unusable = 0;
    }

    /// Says how the source fares when no child can say it.
    pub(super) fn report(&self, health: SourceHealth, detail: String) {
        let report = self.translator.report(Span::at(clock::now()), health, detail);
        (self.observe)(Observation::Source(report));
    }

    fn leave_out<E: std::fmt::Display + ?Sized>(&mut self, why: &E) {
        if self.unusable == 0 {
            tracing::warn!(%why, "a message of the NVML child cannot be used");
        }
        self.unusable = self.unusable.saturating_add(1);
    }

    fn told(&self, mut observation: Observation) -> Observation {
        if let Observation::Source(report) = &mut observation
            && self.unusable > 0
        {
            report.health = report.health.max(SourceHealth::Degraded);
            report.detail = format!("{}; {} messages could not be used", report.detail, self.unusable);
        }
        observation
    }
}
