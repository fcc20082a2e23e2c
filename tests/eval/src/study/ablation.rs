//! What each learned part is worth: the least useful is removed, then the least useful of those left, and so on.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};
use gpuadmit_core::parts::Parts;

use crate::{
    estimation::quantile,
    measure::Figure,
    policy::{Candidate, family},
    run::Wanted,
    schedule,
    situation::Situation,
};

/// Good requests over all situations, percent of those with all parts.
#[derive(Clone, Copy, Debug)]
struct Score {
    mean: f64,
    worst_tenth: f64,
}

/// The parts in the order of their removal: the least useful first.
struct Round {
    removed: &'static str,
    /// Without it and all before it.
    score: Score,
    /// The most useful part then, and what removing it would cost, percent.
    most_useful: Option<(&'static str, f64)>,
}

/// Removes part after part, and writes the table into `folder`.
pub(crate) fn ablate(situations: &[Situation], threads: Option<usize>, folder: &Path) -> Result<()> {
    let base = family("gpuadmit-installed").and_then(|family| family.candidates(true).first().copied());
    let base = base.context("there is no rule gpuadmit-installed")?;
    let study = Study { situations, threads, base };
    let all = study.good(&[base.parts])?.remove(0);
    let (mut parts, mut left) = (base.parts, Parts::NAMES.to_vec());
    let (mut rounds, mut current) = (Vec::new(), 100.0);
    while !left.is_empty() {
        let without: Vec<_> = left.iter().filter_map(|name| parts.without(name)).collect();
        let goods = study.good(&without)?;
        let scores: Vec<_> = goods.iter().map(|good| Score::of(good, &all)).collect();
        let order = |one: &usize, other: &usize| scores[*one].mean.total_cmp(&scores[*other].mean);
        let least_useful = (0..left.len()).max_by(order).context("a part is left")?;
        let most_useful = (0..left.len()).min_by(order).filter(|index| *index != least_useful);
        let most_useful = most_useful.map(|index| (left[index], current - scores[index].mean));
        let removed = left.remove(least_useful);
        (parts, current) = (without[least_useful], scores[least_useful].mean);
        rounds.push(Round { removed, score: scores[least_useful], most_useful });
        eprintln!("without {removed}: {current:.2} %");
    }
    let text = table(&rounds, situations.len());
    print!("{text}");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("ablation.md"), text)?;
    fs::write(folder.join("ablation.csv"), csv(&rounds))?;
    Ok(())
}

struct Study<'a> {
    situations: &'a [Situation],
    threads: Option<usize>,
    base: Candidate,
}

impl Study<'_> {
    /// Good requests in each situation, for each set of parts.
    fn good(&self, parts: &[Parts]) -> Result<Vec<Vec<f64>>> {
        let candidates: Vec<_> = parts.iter().map(|parts| Candidate { parts: *parts, ..self.base }).collect();
        let outcomes = schedule::run_all(self.situations, &candidates, self.threads, &Wanted::default())?;
        let of = |index: usize| outcomes.iter().map(|one| one.measured[index].value(Figure::Good)).collect();
        Ok((0..parts.len()).map(of).collect())
    }
}

impl Score {
    fn of(good: &[f64], all: &[f64]) -> Self {
        let share = |(good, all): (&f64, &f64)| if *all > 0.0 { good / all * 100.0 } else { 100.0 };
        let mut shares: Vec<_> = good.iter().zip(all).map(share).collect();
        shares.sort_by(f64::total_cmp);
        let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
        Self { mean, worst_tenth: quantile(&shares, 0.1) }
    }
}

fn table(rounds: &[Round], situations: usize) -> String {
    let mut text = format!(
        "\n### gpuadmit as installed without its learned parts, over {situations} situations\n\n\
         Good requests in percent of those with all parts. Each row removes one more part: the one that costs least.\n\n\
         | removed | mean | worst tenth | costs most then | by |\n|---|--:|--:|---|--:|\n"
    );
    for Round { removed, score, most_useful } in rounds {
        let (name, cost) =
            most_useful.map_or(("–", String::new()), |(name, cost)| (name, format!("{cost:.2}")));
        let _ =
            writeln!(text, "| {removed} | {:.2} | {:.2} | {name} | {cost} |", score.mean, score.worst_tenth);
    }
    text
}

fn csv(rounds: &[Round]) -> String {
    let mut text = String::from("removed,mean_percent,worst_tenth_percent\n");
    for Round { removed, score, .. } in rounds {
        let _ = writeln!(text, "{removed},{:.4},{:.4}", score.mean, score.worst_tenth);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        situation::{drawn, retry},
        time::SECOND,
    };

    #[test]
    fn every_switch_of_the_core_is_connected() {
        // Two parts are of callers that come back.
        let situations: Vec<_> = (1..=24).map(drawn).chain(retry(300 * SECOND)).collect();
        let base = family("gpuadmit-installed").unwrap().candidates(true)[0];
        let without = |name: &&str| Candidate { parts: base.parts.without(name).unwrap(), ..base };
        let mut left: Vec<_> = Parts::NAMES.to_vec();
        for situation in &situations {
            let candidates: Vec<_> = std::iter::once(base).chain(left.iter().map(without)).collect();
            let wanted = Wanted::default();
            let outcomes =
                schedule::run_all(std::slice::from_ref(situation), &candidates, None, &wanted).unwrap();
            let runs = &outcomes[0].measured;
            let figures = |run: &crate::measure::Measured| {
                Figure::ALL.iter().map(|figure| run.value(*figure).to_bits()).collect::<Vec<_>>()
            };
            let same: Vec<_> = runs[1..].iter().map(|run| figures(run) == figures(&runs[0])).collect();
            left = left.into_iter().zip(same).filter(|(_, same)| *same).map(|(name, _)| name).collect();
            if left.is_empty() {
                return;
            }
        }
        panic!("without effect in {} situations: {left:?}", situations.len());
    }
}
