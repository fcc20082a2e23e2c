//! All situations in one table: median, worst tenth, and the share in which every promise is met.

use std::fmt::Write as _;

use super::gates::{Judged, rival};
use crate::{
    estimation::quantile,
    measure::{Figure, Measured},
    policy::{CLAIRVOYANT, Candidate, STATE},
    schedule::Outcome,
    situation::Situation,
};

/// Fewer situations say nothing of a tenth of them.
const ENOUGH: usize = 10;

/// One rule over many situations: a name and how it is judged in each.
pub(crate) struct Row {
    pub(crate) name: String,
    /// Whether the situation is clean, and the judgement.
    pub(crate) judged: Vec<(bool, Judged)>,
}

/// The rows of the summary: gpuadmit, references, the best baseline of each situation and the best single one.
pub(crate) fn rows(outcomes: &[Outcome]) -> Vec<Row> {
    let families = ["gpuadmit-installed", "gpuadmit", "gpuadmit-ends", STATE, CLAIRVOYANT, "none"];
    let mut rows: Vec<_> =
        families.map(|family| row(family, outcomes, |one| one.most(family, Figure::Good))).into();
    rows.push(row("best baseline of each situation", outcomes, rival));
    if let Some(single) = best_single(outcomes) {
        let name = format!("best single baseline: {}", single.title());
        rows.push(row(&name, outcomes, |outcome| of(outcome, &single)));
    }
    rows.retain(|row| !row.judged.is_empty());
    rows
}

fn row<'a>(name: &str, outcomes: &'a [Outcome], run: impl Fn(&'a Outcome) -> Option<&'a Measured>) -> Row {
    let judged = |outcome: &'a Outcome| {
        let judged = Judged::of(outcome, run(outcome)?)?;
        Some((outcome.situation.clean(), judged))
    };
    Row { name: name.into(), judged: outcomes.iter().filter_map(judged).collect() }
}

/// The run of exactly this candidate.
fn of<'a>(outcome: &'a Outcome, candidate: &Candidate) -> Option<&'a Measured> {
    outcome.measured.iter().find(|measured| measured.candidate == *candidate)
}

/// The baseline that has the most good requests on average, in percent of the reference's, with one parameter for all.
fn best_single(outcomes: &[Outcome]) -> Option<Candidate> {
    let first = outcomes.first()?;
    let mean = |candidate: &Candidate| {
        let good = |outcome| Some(Judged::of(outcome, of(outcome, candidate)?)?.good);
        let values: Vec<f64> = outcomes.iter().filter_map(good).collect();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    };
    let baselines = first.measured.iter().filter(|measured| measured.baseline());
    let means = baselines.map(|measured| (mean(&measured.candidate), measured.candidate));
    means.reduce(|best, one| if one.0 > best.0 { one } else { best }).map(|(_, candidate)| candidate)
}

/// Percentiles of one figure of a row.
fn at(row: &[&Judged], share: f64, value: impl Fn(&Judged) -> f64) -> f64 {
    let mut values: Vec<_> = row.iter().map(|judged| value(judged)).collect();
    values.sort_by(f64::total_cmp);
    quantile(&values, share)
}

/// The summary; empty with few situations or without a reference.
pub(crate) fn markdown(outcomes: &[Outcome]) -> String {
    let rows = rows(outcomes);
    if outcomes.len() < ENOUGH || rows.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n### All situations\n");
    for (name, which) in [("all", None), ("clean", Some(true)), ("in dirt", Some(false))] {
        let _ = writeln!(
            text,
            "\nGood requests in percent of the reference's, {name}:\n\n\
             | rule | situations | median | worst tenth | worst | least third: median | worst tenth \
             | preempted: median | worst tenth | late: median | worst tenth | false denials: median | worst tenth \
             | meets every gate |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        );
        for row in &rows {
            let there = |pair: &&(bool, Judged)| which.is_none_or(|clean| pair.0 == clean);
            let judged: Vec<_> = row.judged.iter().filter(there).map(|pair| &pair.1).collect();
            if !judged.is_empty() {
                line(&mut text, &row.name, &judged);
            }
        }
    }
    text + &strata(outcomes)
}

fn line(text: &mut String, name: &str, judged: &[&Judged]) {
    let met = judged.iter().filter(|one| one.met).count() as f64 / judged.len() as f64 * 100.0;
    let _ = write!(
        text,
        "| {name} | {} | {:.1} | {:.1} | {:.1}",
        judged.len(),
        at(judged, 0.5, |one| one.good),
        at(judged, 0.1, |one| one.good),
        at(judged, 0.0, |one| one.good),
    );
    let _ = write!(
        text,
        " | {:.1} | {:.1}",
        at(judged, 0.5, |one| one.least_third),
        at(judged, 0.1, |one| one.least_third),
    );
    for value in [|one: &Judged| one.preempted, |one: &Judged| one.late, |one: &Judged| one.falsely_denied] {
        let _ = write!(text, " | {:.2} | {:.2}", at(judged, 0.5, value), at(judged, 0.9, value));
    }
    let _ = writeln!(text, " | {met:.0} % |");
}

/// One way to divide situations: a name for the part that a situation is in.
type Division = (&'static str, fn(&Situation) -> String);

const DIVISIONS: &[Division] = &[
    ("requests", |one| one.source.name().split(" in ").next().unwrap_or_default().into()),
    ("tightest", |one| one.offered.map_or(String::new(), |offered| offered.of.name().into())),
    ("load", |one| {
        let times = one.offered.map_or(one.speed, |offered| offered.times);
        if times < 1.0 { "below 1" } else { "1 and more" }.into()
    }),
    ("objective", |one| if one.objective.named { "named" } else { one.objective.class().name() }.into()),
    ("reports", |one| if one.gateway.first_tokens { "first tokens" } else { "ends only" }.into()),
    ("delivery", |one| if one.gateway.delivery.1 <= 50_000_000 { "up to 50 ms" } else { "longer" }.into()),
    ("slots", |one| if one.engine.max_num_seqs < 32 { "below 32" } else { "32 and more" }.into()),
    ("dirt", |one| if one.clean() { "clean" } else { "dirty" }.into()),
];

/// Where gpuadmit is good and where it is not.
fn strata(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "\nWhere gpuadmit as installed is good and where it is not, good requests in percent of the reference's:\n\n\
         | | | situations | median | worst tenth | meets every gate |\n|---|---|--:|--:|--:|--:|\n",
    );
    for (name, part) in DIVISIONS {
        let mut parts: Vec<(String, Vec<Judged>)> = Vec::new();
        for outcome in outcomes {
            let run = outcome.most("gpuadmit-installed", Figure::Good);
            let Some(judged) = run.and_then(|run| Judged::of(outcome, run)) else { continue };
            let part = part(&outcome.situation);
            match parts.iter_mut().find(|(name, _)| *name == part) {
                Some((_, there)) => there.push(judged),
                None => parts.push((part, vec![judged])),
            }
        }
        parts.sort_by(|one, other| one.0.cmp(&other.0));
        for (part, judged) in &parts {
            let judged: Vec<_> = judged.iter().collect();
            let met = judged.iter().filter(|one| one.met).count() as f64 / judged.len() as f64 * 100.0;
            let good = |share| at(&judged, share, |one| one.good);
            let count = judged.len();
            let _ = writeln!(
                text,
                "| {name} | {part} | {count} | {:.1} | {:.1} | {met:.0} % |",
                good(0.5),
                good(0.1)
            );
        }
    }
    text
}

/// One row per rule and situation: how it is judged.
pub(crate) fn csv(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "rule,clean,good_percent,least_third_percent,preempted_percent,late_percent,falsely_denied_percent,met\n",
    );
    for row in rows(outcomes) {
        for (clean, judged) in row.judged {
            let Judged { good, least_third, preempted, late, falsely_denied, met } = judged;
            let _ = writeln!(
                text,
                "{},{clean},{good:.3},{least_third:.3},{preempted:.3},{late:.3},{falsely_denied:.3},{met}",
                row.name
            );
        }
    }
    text
}
