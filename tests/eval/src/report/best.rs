//! Of every rule its best parameter, and what rules are judged against.

use super::gates::harmless;
use crate::{
    measure::{Figure, Measured},
    policy::{CLAIRVOYANT, STATE},
    schedule::Outcome,
};

/// Of every rule, with and without the TTFT rule, the run with the most of `figure`, in the order of the rules.
pub(crate) fn best(measured: &[Measured], figure: Figure) -> Vec<&Measured> {
    let mut best: Vec<&Measured> = Vec::new();
    for one in measured {
        let rule = one.candidate.rule();
        match best.iter_mut().find(|other| other.candidate.rule() == rule) {
            Some(other) if other.value(figure) >= one.value(figure) => {}
            Some(other) => *other = one,
            None => best.push(one),
        }
    }
    best
}

impl Outcome {
    /// Of the rule `family`, the run with the most of `figure`.
    pub(crate) fn most(&self, family: &str, figure: Figure) -> Option<&Measured> {
        let runs = self.measured.iter().filter(|measured| measured.candidate.family == family);
        runs.reduce(|best, one| if one.value(figure) > best.value(figure) { one } else { best })
    }

    /// The highest goodput of the clairvoyant rules, and of every other rule that stays within the gates. `None`: no
    /// clairvoyant rule ran.
    pub(crate) fn ceiling(&self) -> Option<f64> {
        let clairvoyant = self.most(CLAIRVOYANT, Figure::Goodput)?;
        let others = self.measured.iter().filter(|run| harmless(self, run));
        let goodput =
            others.chain([clairvoyant]).map(|run| run.value(Figure::Goodput)).max_by(f64::total_cmp);
        goodput.filter(|goodput| *goodput > 0.0)
    }

    /// The run that good requests are judged against: the state reference where it ran, else the clairvoyant.
    pub(crate) fn reference(&self) -> Option<&Measured> {
        self.most(STATE, Figure::Good).or_else(|| self.most(CLAIRVOYANT, Figure::Good))
    }
}

impl Measured {
    /// Whether this is a run of a rule that others have published.
    pub(crate) fn baseline(&self) -> bool {
        let family = self.candidate.family;
        !family.starts_with("gpuadmit") && family != CLAIRVOYANT && family != STATE
    }
}
