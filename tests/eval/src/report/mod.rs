//! Tables and plots.

mod best;
mod curves;
mod gates;
mod plot;
pub(crate) mod requests;
mod summary;
mod table;

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

pub(crate) use plot::plot_beside;

use crate::schedule::Outcome;

/// Writes everything into `folder` and prints the tables.
pub(crate) fn write(folder: &Path, outcomes: &[Outcome]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let text = table::markdown(outcomes) + &gates::table(outcomes) + &summary::markdown(outcomes);
    print!("{text}");
    fs::write(folder.join("eval.md"), text)?;
    fs::write(folder.join("eval.csv"), table::csv(outcomes))?;
    fs::write(folder.join("summary.csv"), summary::csv(outcomes))?;
    curves::draw(&folder.join("situations.svg"), &summary::rows(outcomes))?;
    for figure in plot::FIGURES {
        plot::draw(folder, figure, outcomes)?;
    }
    if outcomes.iter().any(|outcome| plot::estimate(outcome).is_some()) {
        plot::draw_errors(folder, outcomes)?;
    }
    Ok(())
}
