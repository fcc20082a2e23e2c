//! What is promised, situation by situation.

use std::fmt::Write as _;

use crate::{measure::Measured, schedule::Outcome, time::SECOND};

/// Preemption rates up to this much above gpuadmit's own count as the same.
const SAME_RATE: f64 = 0.0005;

/// One promise in one situation.
struct Gate {
    shown: String,
    met: bool,
}

impl Gate {
    fn at_least(percent: f64, gate: f64) -> Self {
        Self { shown: format!("{percent:.1}"), met: percent >= gate }
    }

    fn at_most(percent: f64, gate: f64) -> Self {
        Self { shown: format!("{percent:.2}"), met: percent <= gate }
    }

    fn cell(&self) -> String {
        if self.met { self.shown.clone() } else { format!("**{}**", self.shown) }
    }
}

/// Table of gpuadmit's promises; what misses its gate is bold. Empty without gpuadmit and the ceiling.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let rows: Vec<_> = outcomes.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n### gpuadmit's promises (missed ones are bold)\n\nGoodput ≥ 96 % of the ceiling with ≤ 0.3 % preempted, with dirt \
         ≥ 95 % with ≤ 1 %; false denials ≤ 1 %, none with room; error of the use ≤ 1.5 % of the pool at 1 s, ≤ 3 % at 5 s, \
         ≤ 5 % with traffic that does not ask; band covers 92 to 98 %.\n\n\
         | situation | goodput % | preempted % | false denials % | with room % | error % | band covers % \
         | best other at no more preemption |\n|---|--:|--:|--:|--:|--:|--:|---|\n",
    );
    let count = rows.len();
    let met = rows.iter().filter(|row| row.1).count();
    text.extend(rows.into_iter().map(|row| row.0));
    let _ = writeln!(text, "\n{met} of {count} situations meet every promise.");
    text
}

/// The row, and whether everything in it is met.
fn row(outcome: &Outcome) -> Option<(String, bool)> {
    let ceiling = outcome.ceiling()?;
    let own = outcome.measured.iter().find(|measured| measured.candidate.family == "gpuadmit")?;
    let situation = &outcome.situation;
    let (goodput, preempted) = if situation.clean() { (96.0, 0.3) } else { (95.0, 1.0) };
    let error = match (situation.clients.bypass > 0.0, situation.telemetry.interval <= SECOND) {
        (true, _) => 5.0,
        (false, true) => 1.5,
        (false, false) => 3.0,
    };
    let mut gates = vec![
        Gate::at_least(own.goodput / ceiling * 100.0, goodput),
        Gate::at_most(own.preempted * 100.0, preempted),
        Gate::at_most(own.falsely_denied * 100.0, 1.0),
        Gate::at_most(own.falsely_denied_with_room * 100.0, 0.0),
    ];
    if let Some(estimation) = &own.estimation {
        gates.push(Gate::at_most(estimation.corrected.mean, error));
        let coverage = estimation.coverage * 100.0;
        gates.push(Gate { shown: format!("{coverage:.1}"), met: (92.0..=98.0).contains(&coverage) });
    }
    let rival = rival(outcome, own);
    let beaten = rival.is_none_or(|rival| rival.goodput <= own.goodput);
    let rival = rival.map_or("–".into(), |rival| {
        format!(
            "{} {}: {:.1}",
            rival.candidate.rule(),
            rival.candidate.value,
            rival.goodput / ceiling * 100.0
        )
    });
    let rival = if beaten { rival } else { format!("**{rival}**") };
    let cells: Vec<_> = gates.iter().map(Gate::cell).collect();
    let met = beaten && gates.iter().all(|gate| gate.met);
    Some((format!("| {} | {} | {rival} |\n", situation.name(), cells.join(" | ")), met))
}

/// The best other rule that preempts no more than gpuadmit does.
fn rival<'a>(outcome: &'a Outcome, own: &Measured) -> Option<&'a Measured> {
    let others = outcome.measured.iter().filter(|measured| {
        let family = measured.candidate.family;
        !family.starts_with("gpuadmit")
            && family != "ceiling"
            && measured.preempted <= own.preempted + SAME_RATE
    });
    others.max_by(|one, other| one.goodput.total_cmp(&other.goodput))
}
