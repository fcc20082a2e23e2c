//! Of every rule its best parameter.

use crate::{measure::Measured, schedule::Outcome};

/// Of every rule, with and without the TTFT rule, the run with the highest goodput, in the order of the rules.
pub(crate) fn best(measured: &[Measured]) -> Vec<&Measured> {
    let mut best: Vec<&Measured> = Vec::new();
    for one in measured {
        let rule = one.candidate.rule();
        match best.iter_mut().find(|other| other.candidate.rule() == rule) {
            Some(other) if other.goodput >= one.goodput => {}
            Some(other) => *other = one,
            None => best.push(one),
        }
    }
    best
}

impl Outcome {
    /// Goodput of the clairvoyant.
    pub(crate) fn ceiling(&self) -> Option<f64> {
        let ceiling = self.measured.iter().find(|measured| measured.candidate.family == "ceiling");
        ceiling.map(|measured| measured.goodput).filter(|goodput| *goodput > 0.0)
    }
}
