//! What a replay found.

use std::{collections::BTreeMap, fmt};

use gpuadmit_core::{
    request::{Reason, Request},
    units::Mono,
};
use serde::Serialize;

use crate::records::line::Decided;

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Decisions compared.
    pub decisions: u64,
    /// Of those, the same: verdict, reason, engine and granted tokens.
    pub same: u64,
    /// Recorded as admitted, and denied by this policy, by its reason.
    pub now_denied: BTreeMap<String, u64>,
    /// Recorded as denied, and admitted by this policy, by the recorded reason.
    pub now_admitted: BTreeMap<String, u64>,
    /// Denied by both, for another reason.
    pub other_reason: u64,
    /// Admitted by both, at another engine.
    pub other_engine: u64,
    /// Admitted by both, with other granted tokens.
    pub other_grant: u64,
    /// Decisions of which only the sum differs; counted as the same. Only where the decisions themselves were carried out.
    pub other_terms: u64,
    /// Runs whose beginning is missing: what was admitted before is bypass traffic to the replay.
    pub begins_later: u64,
    /// Recorded admissions that this policy could not be made to follow.
    pub not_followed: u64,
    /// Lines that were lost when they were recorded.
    pub lost_lines: u64,
    /// The first decisions that differ.
    pub examples: Vec<Change>,
    #[serde(skip)]
    most_examples: usize,
}

/// A decision that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// When, nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Model asked for.
    pub model: String,
    /// Request id, where it has one.
    pub request_id: Option<String>,
    /// As it was recorded: `admitted`, or the reason of the denial.
    pub recorded: String,
    /// By this policy.
    pub replayed: String,
}

impl Report {
    pub(super) fn new(most_examples: usize) -> Self {
        Self { most_examples, ..Self::default() }
    }

    pub(super) const fn begins(&mut self, part: u64) {
        if part > 0 {
            self.begins_later += 1;
        }
    }

    /// `carried_out`: both were, so that their sums can be compared as well.
    pub(super) fn compare(
        &mut self,
        now: Mono,
        request: &Request<'_>,
        recorded: &Decided,
        replayed: &Decided,
        carried_out: bool,
    ) {
        self.decisions += 1;
        if carried_out && recorded.terms != replayed.terms {
            self.other_terms += 1;
        }
        match self.difference(recorded, replayed) {
            Some(count) => *count += 1,
            None => {
                self.same += 1;
                return;
            }
        }
        if self.examples.len() < self.most_examples {
            self.examples.push(Change {
                at_ns: now.0,
                model: request.model.into(),
                request_id: request.request_id.map(Into::into),
                recorded: verdict(recorded),
                replayed: verdict(replayed),
            });
        }
    }
}

impl Report {
    /// Where a difference is counted; `None`: there is none. What observe mode would have denied counts as denied.
    fn difference(&mut self, recorded: &Decided, replayed: &Decided) -> Option<&mut u64> {
        let reason = |one: &Decided| one.denied.or(one.observed);
        match (reason(recorded), reason(replayed)) {
            (None, Some(reason)) => Some(self.now_denied.entry(word(reason)).or_default()),
            (Some(reason), None) => Some(self.now_admitted.entry(word(reason)).or_default()),
            (Some(one), Some(other)) => (one != other).then_some(&mut self.other_reason),
            (None, None) if recorded.engine != replayed.engine => Some(&mut self.other_engine),
            (None, None) => (recorded.max_tokens != replayed.max_tokens).then_some(&mut self.other_grant),
        }
    }
}

fn word(reason: i32) -> String {
    let known = Reason::ALL.into_iter().find(|known| known.number() == reason);
    known.map_or_else(|| format!("reason {reason}"), |known| known.as_str().into())
}

fn verdict(decided: &Decided) -> String {
    match (decided.denied.or(decided.observed), &decided.engine) {
        (Some(reason), _) => word(reason),
        (None, Some(engine)) => format!("admitted at {engine}"),
        (None, None) => "admitted".into(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, count: u64, what: &str| {
            if count == 0 { Ok(()) } else { writeln!(f, "{count:>10}  {what}") }
        };
        writeln!(f, "{:>10}  decisions", self.decisions)?;
        writeln!(f, "{:>10}  the same", self.same)?;
        for (reason, count) in &self.now_denied {
            row(f, *count, &format!("admitted, now denied: {reason}"))?;
        }
        for (reason, count) in &self.now_admitted {
            row(f, *count, &format!("denied, now admitted: {reason}"))?;
        }
        row(f, self.other_reason, "denied for another reason")?;
        row(f, self.other_engine, "admitted at another engine")?;
        row(f, self.other_grant, "admitted with other max_tokens")?;
        row(f, self.other_terms, "the same by another sum")?;
        row(f, self.not_followed, "admissions that this policy could not follow: later ones rest on less")?;
        row(f, self.begins_later, "runs without their beginning: what was admitted before counts as bypass")?;
        row(f, self.lost_lines, "lines lost when they were recorded")?;
        for Change { at_ns, model, request_id, recorded, replayed } in &self.examples {
            let id = request_id.as_deref().unwrap_or("-");
            writeln!(f, "{:>10.3} s  {model:?} {id:?}: {recorded}, now {replayed}", seconds(*at_ns))?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "for the eye")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
