//! What is promised, situation by situation.

use std::fmt::Write as _;

use crate::{
    measure::{Figure, Measured},
    schedule::Outcome,
    situation::Situation,
};

/// The promises of one situation, percent.
struct Gates {
    good: f64,
    third: f64,
    preempted: f64,
    late: f64,
    falsely_denied: f64,
}

impl Gates {
    fn of(situation: &Situation) -> Self {
        let (good, preempted, late) = if situation.clean() { (97.0, 0.3, 1.0) } else { (95.0, 1.0, 2.0) };
        Self { good, third: 95.0, preempted, late, falsely_denied: 1.0 }
    }
}

/// Whether `run` preempts few enough and is late with few enough, as one of `outcome`.
pub(super) fn harmless(outcome: &Outcome, run: &Measured) -> bool {
    let gates = Gates::of(&outcome.situation);
    run.value(Figure::Preempted) * 100.0 <= gates.preempted && run.value(Figure::Late) * 100.0 <= gates.late
}

/// A run by what is promised, percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    /// Good requests, of the reference's.
    pub(crate) good: f64,
    /// The same per third of prompt length: the least.
    pub(crate) least_third: f64,
    pub(crate) preempted: f64,
    pub(crate) late: f64,
    pub(crate) falsely_denied: f64,
    /// Whether all is met.
    pub(crate) met: bool,
}

impl Judged {
    /// `run` as one of `outcome`; `None`: no reference ran.
    pub(crate) fn of(outcome: &Outcome, run: &Measured) -> Option<Self> {
        let reference = outcome.reference()?;
        let thirds = run.thirds().into_iter().zip(reference.thirds());
        let percent = |figure| run.value(figure) * 100.0;
        let mut judged = Self {
            good: relative(run.value(Figure::Good), reference.value(Figure::Good)),
            least_third: thirds.map(|(own, its)| relative(own, its)).fold(f64::INFINITY, f64::min),
            preempted: percent(Figure::Preempted),
            late: percent(Figure::Late),
            falsely_denied: percent(Figure::FalselyDenied),
            met: false,
        };
        let gates = Gates::of(&outcome.situation);
        judged.met = judged.good >= gates.good
            && judged.least_third >= gates.third
            && judged.preempted <= gates.preempted
            && judged.late <= gates.late
            && judged.falsely_denied <= gates.falsely_denied;
        Some(judged)
    }

    /// Cells of a table; what misses its gate is bold.
    fn cells(&self, gates: &Gates) -> String {
        let cell =
            |value: f64, met: bool| if met { format!("{value:.2}") } else { format!("**{value:.2}**") };
        [
            cell(self.good, self.good >= gates.good),
            cell(self.least_third, self.least_third >= gates.third),
            cell(self.preempted, self.preempted <= gates.preempted),
            cell(self.late, self.late <= gates.late),
            cell(self.falsely_denied, self.falsely_denied <= gates.falsely_denied),
        ]
        .join(" | ")
    }
}

/// Percent; all of nothing is 100.
fn relative(own: f64, reference: f64) -> f64 {
    if reference > 0.0 { own / reference * 100.0 } else { 100.0 }
}

/// Table of gpuadmit's promises, a row for each situation. Empty without gpuadmit or a reference.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let rows: Vec<_> = outcomes.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n### gpuadmit's promises, situation by situation\n\nMissed ones are bold. Good requests, and those of the third of \
         prompt lengths with the fewest, in percent of the reference's: at least 97 (95 in dirt) and 95. Preempted at most 0.3 % \
         (1 % in dirt) and late at most 1 % (2 %) of the admitted. Falsely denied at most 1 % of those that asked.\n\n\
         | situation | rule | good % | least third % | preempted % | late % | false denials % | most good of the baselines % |\n\
         |---|---|--:|--:|--:|--:|--:|---|\n",
    );
    let met = rows.iter().filter(|row| row.1).count();
    let count = rows.len();
    text.extend(rows.into_iter().map(|row| row.0));
    let _ = writeln!(text, "\n{met} of {count} situations meet every promise.");
    text
}

/// The row, and whether everything in it is met.
fn row(outcome: &Outcome) -> Option<(String, bool)> {
    let of = |family| outcome.most(family, Figure::Good);
    let own = of("gpuadmit-installed").or_else(|| of("gpuadmit"))?;
    let judged = Judged::of(outcome, own)?;
    let rival = rival(outcome).and_then(|rival| {
        let good = Judged::of(outcome, rival)?.good;
        let name = format!("{}: {good:.1}", rival.candidate.title());
        Some(if good > judged.good { format!("**{name}**") } else { name })
    });
    let row = format!(
        "| {} | {} | {} | {} |\n",
        outcome.situation.name(),
        own.candidate.rule(),
        judged.cells(&Gates::of(&outcome.situation)),
        rival.unwrap_or_else(|| "–".into()),
    );
    Some((row, judged.met))
}

/// The baseline with the most good requests.
pub(crate) fn rival(outcome: &Outcome) -> Option<&Measured> {
    let baselines = outcome.measured.iter().filter(|measured| measured.baseline());
    baselines.reduce(|best, one| if one.value(Figure::Good) > best.value(Figure::Good) { one } else { best })
}
