//! What knowing more is worth: each situation with less and with more known, in several draws with the same arrivals.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::Result;

use super::interval::Interval;
use crate::{
    measure::Figure,
    policy::family,
    run::Wanted,
    schedule::{self, Outcome},
    situation::{Gateway, Objective, Situation, Telemetry},
    time::{MILLISECOND, SECOND},
};

/// Draws of each situation.
const DRAWS: u64 = 4;
/// Seeds of draws lie so far apart: no situation's draw is that of another one.
const APART: u64 = 1_000_000;

/// One thing that may be known or not.
struct Question {
    name: &'static str,
    less: fn(&Situation) -> Situation,
    more: fn(&Situation) -> Situation,
}

const QUESTIONS: [Question; 3] = [
    Question {
        name: "readings every 120 ms, not every second",
        less: |one| read_every(one, SECOND),
        more: |one| read_every(one, 120 * MILLISECOND),
    },
    Question {
        name: "first tokens reported, not ends only",
        less: |one| reporting(one, false),
        more: |one| reporting(one, true),
    },
    Question {
        name: "objective named, not the class alone",
        less: |one| naming(one, false),
        more: |one| naming(one, true),
    },
];

fn read_every(one: &Situation, interval: u64) -> Situation {
    Situation { telemetry: Telemetry { interval, ..one.telemetry }, ..one.clone() }
}

fn reporting(one: &Situation, first_tokens: bool) -> Situation {
    Situation { gateway: Gateway { first_tokens, ..one.gateway }, ..one.clone() }
}

/// By what requests are judged stays the same.
fn naming(one: &Situation, named: bool) -> Situation {
    Situation { objective: Objective { named, ..one.objective }, ..one.clone() }
}

/// Runs gpuadmit and writes what knowing more changed into `folder`.
pub(crate) fn paired(situations: &[Situation], threads: Option<usize>, folder: &Path) -> Result<()> {
    let mut runs = Vec::new();
    for situation in situations {
        for question in &QUESTIONS {
            for draw in 0..DRAWS {
                let drawn = Situation { seed: situation.seed + draw * APART, ..situation.clone() };
                runs.extend([(question.less)(&drawn), (question.more)(&drawn)]);
            }
        }
    }
    let candidates = family("gpuadmit").map(|family| family.candidates(true)).unwrap_or_default();
    let outcomes = schedule::run_all(&runs, &candidates, threads, &Wanted::default())?;
    let per_question = 2 * DRAWS as usize;
    let rows: Vec<_> = outcomes.chunks(per_question).map(difference).collect();
    let mut text = String::from(
        "\n### What knowing more changes, good requests in percent\n\n\
         Four draws of each situation, both sides with the same arrivals; ± is the 95 % interval.\n\n\
         | | situations | mean | ± | better beyond chance | worse beyond chance |\n|---|--:|--:|--:|--:|--:|\n",
    );
    let mut csv = String::from("situation,question,mean_percent,around_percent\n");
    for (index, question) in QUESTIONS.iter().enumerate() {
        let of_question: Vec<_> = rows.iter().skip(index).step_by(QUESTIONS.len()).copied().collect();
        summary(&mut text, question.name, &of_question);
        for (situation, interval) in situations.iter().zip(&of_question) {
            let Interval { mean, around } = interval;
            let name = situation.name().replace(',', ";");
            let _ = writeln!(csv, "{name},{},{mean:.3},{around:.3}", question.name.replace(',', ";"));
        }
    }
    worst(&mut text, situations, &rows);
    print!("{text}");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("paired.md"), text)?;
    fs::write(folder.join("paired.csv"), csv)?;
    Ok(())
}

/// More's good requests over less's, percent of the mean of both, over the draws of one situation.
fn difference(draws: &[Outcome]) -> Interval {
    let good = |outcome: &Outcome| outcome.measured.first().map_or(0.0, |run| run.value(Figure::Good));
    let change = |pair: &[Outcome]| {
        let (less, more) = (good(&pair[0]), good(&pair[1]));
        if less + more > 0.0 { (more - less) / ((less + more) / 2.0) * 100.0 } else { 0.0 }
    };
    Interval::of(&draws.chunks_exact(2).map(change).collect::<Vec<_>>())
}

fn summary(text: &mut String, name: &str, rows: &[Interval]) {
    let means: Vec<_> = rows.iter().map(|row| row.mean).collect();
    let all = if means.len() > 1 { Interval::of(&means) } else { rows[0] };
    let _ = writeln!(
        text,
        "| {name} | {} | {:+.2} | {:.2} | {} | {} |",
        rows.len(),
        all.mean,
        all.around,
        rows.iter().filter(|row| row.better()).count(),
        rows.iter().filter(|row| row.worse()).count(),
    );
}

/// Where knowing more is worse beyond chance.
fn worst(text: &mut String, situations: &[Situation], rows: &[Interval]) {
    let names = situations.iter().flat_map(|one| QUESTIONS.iter().map(move |question| (one, question.name)));
    let mut worse: Vec<_> = names.zip(rows).filter(|(_, row)| row.worse()).collect();
    worse.sort_by(|one, other| one.1.mean.total_cmp(&other.1.mean));
    if worse.is_empty() {
        return;
    }
    text.push_str("\nWorse beyond chance:\n\n| situation | | mean | ± |\n|---|---|--:|--:|\n");
    for ((situation, question), Interval { mean, around }) in worse {
        let _ = writeln!(text, "| {} | {question} | {mean:+.1} | {around:.1} |", situation.name());
    }
}
