//! Tables as Markdown and CSV.

use std::fmt::Write as _;

use super::best::best;
use crate::{estimation::Estimation, measure::Measured, schedule::Outcome};

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
        "| rule | goodput tok/s | of ceiling | preempted % | (all %) | TTFT p50 s | p99 s | denied % \
         | false % | with room % | against ceiling % | missed % | use % |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    let ceiling = outcome.ceiling();
    for measured in best(&outcome.measured) {
        let percent = |share: f64| format!("{:.2}", share * 100.0);
        let relative =
            ceiling.map_or("–".into(), |most| format!("{:.1} %", measured.goodput / most * 100.0));
        let _ = writeln!(
            text,
            "| {} | {:.0} | {relative} | {} | {} | {:.2} | {:.2} | {} | {} | {} | {} | {} | {} |",
            title(measured),
            measured.goodput,
            percent(measured.preempted),
            percent(measured.preempted_all),
            measured.ttft_p50,
            measured.ttft_p99,
            percent(measured.denied),
            percent(measured.falsely_denied),
            percent(measured.falsely_denied_with_room),
            percent(measured.denied_against_ceiling),
            percent(measured.missed),
            percent(measured.utilisation),
        );
    }
    for measured in &outcome.measured {
        if let Some((good, ttft)) = measured.others {
            let rule = measured.candidate.rule();
            let good = good * 100.0;
            let _ = writeln!(
                text,
                "\n{rule}: of the other tenants' requests {good:.1} % were good; first tokens within {ttft:.2} s (p99)."
            );
        }
        if let Some(phantoms) = measured.phantoms {
            let rule = measured.candidate.rule();
            let _ = writeln!(
                text,
                "\n{rule}: {phantoms} reservations left after two readings of an idle engine."
            );
        }
        if let Some(share) = measured.retry_admitted {
            let rule = measured.candidate.rule();
            let _ = writeln!(
                text,
                "\n{rule}: {:.1} % of those that came back at their Retry-After were let in.",
                share * 100.0
            );
        }
    }
}

/// Rule, and its parameter where one was chosen.
fn title(measured: &Measured) -> String {
    let candidate = &measured.candidate;
    let parameter = crate::policy::family(candidate.family).map_or("", |family| family.parameter);
    if parameter.is_empty() {
        return candidate.rule();
    }
    format!("{} ({} {parameter})", candidate.rule(), candidate.value)
}

fn estimates(text: &mut String, outcomes: &[Outcome]) {
    let rows: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| outcome.measured.iter().map(move |measured| (outcome, measured)))
        .filter_map(|(outcome, measured)| Some((outcome.situation.name(), measured.estimation?)))
        .collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n### Blocks in use as gpuadmit believes, error in % of the pool\n\n| situation | mean | p99 | bias \
         | band covers % | band width | raw gauge mean | p99 | ledger alone mean | p99 |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    for (name, estimation) in rows {
        let Estimation { corrected, gauge, ledger, bias, coverage, width, .. } = estimation;
        let _ = writeln!(
            text,
            "| {name} | {:.2} | {:.2} | {bias:+.2} | {:.1} | {width:.1} | {:.2} | {:.2} | {:.2} | {:.2} |",
            corrected.mean,
            corrected.p99,
            coverage * 100.0,
            gauge.mean,
            gauge.p99,
            ledger.mean,
            ledger.p99,
        );
    }
}

/// One row per run.
pub(crate) fn csv(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "situation,rule,value,ttft_rule,goodput,goodput_admitted,of_ceiling,preempted,preempted_all,ttft_p50_s,ttft_p99_s,\
         denied,falsely_denied,falsely_denied_with_room,denied_against_ceiling,missed,utilisation,asked,retry_admitted,\
         error_mean,error_p99,coverage,gauge_error_mean,ledger_error_mean\n",
    );
    for outcome in outcomes {
        for measured in &outcome.measured {
            csv_row(&mut text, outcome, measured);
        }
    }
    text
}

fn csv_row(text: &mut String, outcome: &Outcome, measured: &Measured) {
    let optional = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.5}"));
    let estimation = measured.estimation.as_ref();
    let _ = writeln!(
        text,
        "{},{},{},{},{:.2},{:.2},{},{:.5},{:.5},{:.3},{:.3},{:.5},{:.5},{:.5},{:.5},{:.5},{:.4},{},{},{},{},{},{},{}",
        outcome.situation.name(),
        measured.candidate.family,
        measured.candidate.value,
        measured.candidate.ttft,
        measured.goodput,
        measured.goodput_admitted,
        optional(outcome.ceiling().map(|most| measured.goodput / most)),
        measured.preempted,
        measured.preempted_all,
        measured.ttft_p50,
        measured.ttft_p99,
        measured.denied,
        measured.falsely_denied,
        measured.falsely_denied_with_room,
        measured.denied_against_ceiling,
        measured.missed,
        measured.utilisation,
        measured.asked,
        optional(measured.retry_admitted),
        optional(estimation.map(|one| one.corrected.mean)),
        optional(estimation.map(|one| one.corrected.p99)),
        optional(estimation.map(|one| one.coverage)),
        optional(estimation.map(|one| one.gauge.mean)),
        optional(estimation.map(|one| one.ledger.mean)),
    );
}
