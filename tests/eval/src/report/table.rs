//! Tables as Markdown and CSV.

use std::fmt::Write as _;

use super::{best::best, gates::Judged};
use crate::{
    measure::{Figure, Measured},
    policy::Candidate,
    schedule::Outcome,
};

/// All tables.
pub(crate) fn markdown(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let _ = writeln!(text, "\n### {}\n", outcome.situation.name());
        rules(&mut text, outcome);
    }
    estimates(&mut text, outcomes);
    text
}

fn rules(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(
        text,
        "| rule | goodput tok/s | of ceiling | good | of reference | least third | preempted % | late % | TTFT p50 s | p99 s \
         | denied % | false % | with room % | missed % | use % | slots unused % | use when denied % | waiting p99 |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    let ceiling = outcome.ceiling();
    for measured in best(&outcome.measured, Figure::Goodput) {
        let relative = ceiling
            .map_or("–".into(), |most| format!("{:.1} %", measured.value(Figure::Goodput) / most * 100.0));
        let judged = Judged::of(outcome, measured);
        let judged =
            judged.map_or("– | –".into(), |one| format!("{:.1} % | {:.1} %", one.good, one.least_third));
        let percent = |figure| match measured.get(figure) {
            Some(share) => format!("{:.2}", share * 100.0),
            None => "–".into(),
        };
        let _ = write!(
            text,
            "| {} | {:.0} | {relative} | {:.0} | {judged} | {} | {} | {:.2} | {:.2}",
            measured.candidate.title(),
            measured.value(Figure::Goodput),
            measured.value(Figure::Good),
            percent(Figure::Preempted),
            percent(Figure::Late),
            measured.value(Figure::TtftP50),
            measured.value(Figure::TtftP99),
        );
        for figure in [
            Figure::Denied,
            Figure::FalselyDenied,
            Figure::FalselyDeniedWithRoom,
            Figure::Missed,
            Figure::Utilisation,
            Figure::SlotsUnused,
            Figure::PoolUsed,
        ] {
            let _ = write!(text, " | {}", percent(figure));
        }
        let _ = writeln!(text, " | {:.0} |", measured.value(Figure::WaitingP99));
    }
    for measured in &outcome.measured {
        remarks(text, measured);
    }
}

/// What only some situations have.
fn remarks(text: &mut String, measured: &Measured) {
    let rule = measured.candidate.rule();
    if let (Some(good), Some(ttft)) = (measured.get(Figure::OthersGood), measured.get(Figure::OthersTtft)) {
        let good = good * 100.0;
        let _ = writeln!(
            text,
            "\n{rule}: {good:.1} % of the other tenants' requests were good; first tokens within {ttft:.2} s (p99)."
        );
    }
    if let Some(phantoms) = measured.get(Figure::Phantoms) {
        let _ =
            writeln!(text, "\n{rule}: {phantoms} reservations left after two readings of an idle engine.");
    }
    if let Some(share) = measured.get(Figure::RetryAdmitted) {
        let share = share * 100.0;
        let _ = writeln!(
            text,
            "\n{rule}: {share:.1} % of those that came back at their Retry-After were admitted."
        );
    }
}

/// gpuadmit's estimate of the blocks in use.
fn estimates(text: &mut String, outcomes: &[Outcome]) {
    let runs = outcomes.iter().flat_map(|outcome| outcome.measured.iter().map(move |one| (outcome, one)));
    let rows: Vec<_> = runs.filter(|(_, measured)| measured.get(Figure::ErrorMean).is_some()).collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n### Estimate of the blocks in use, error in % of the pool\n\n| situation | rule | mean | p99 | bias \
         | band covers % | band width | raw gauge mean | p99 | ledger alone mean | p99 |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    for (outcome, measured) in rows {
        let of = |figure| measured.value(figure);
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {:.2} | {:+.2} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} |",
            outcome.situation.name(),
            measured.candidate.rule(),
            of(Figure::ErrorMean),
            of(Figure::ErrorP99),
            of(Figure::Bias),
            of(Figure::Coverage) * 100.0,
            of(Figure::BandWidth),
            of(Figure::GaugeErrorMean),
            of(Figure::GaugeErrorP99),
            of(Figure::LedgerErrorMean),
            of(Figure::LedgerErrorP99),
        );
    }
}

/// One row per run.
pub(crate) fn csv(outcomes: &[Outcome]) -> String {
    let mut text =
        String::from("situation,rule,value,ttft_rule,of_ceiling,good_of_reference,least_third_of_reference");
    for figure in Figure::ALL {
        let _ = write!(text, ",{}", figure.name());
    }
    text.push('\n');
    for outcome in outcomes {
        for measured in &outcome.measured {
            csv_row(&mut text, outcome, measured);
        }
    }
    text
}

fn csv_row(text: &mut String, outcome: &Outcome, measured: &Measured) {
    let optional = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.5}"));
    let Candidate { family, value, ttft, .. } = measured.candidate;
    // Commas separate columns.
    let name = outcome.situation.name().replace(',', ";");
    let ceiling = outcome.ceiling().map(|most| measured.value(Figure::Goodput) / most);
    let judged = Judged::of(outcome, measured);
    let _ = write!(
        text,
        "{name},{family},{value},{ttft},{},{},{}",
        optional(ceiling),
        optional(judged.map(|one| one.good / 100.0)),
        optional(judged.map(|one| one.least_third / 100.0)),
    );
    for figure in Figure::ALL {
        let _ = write!(text, ",{}", optional(measured.get(*figure)));
    }
    text.push('\n');
}
