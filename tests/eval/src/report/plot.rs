//! Plots as SVG.

use std::path::Path;

use anyhow::Result;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::best::best;
use crate::{
    measure::{Figure as Of, Measured},
    schedule::Outcome,
};

const WIDTH: u32 = 1100;
const ROW: u32 = 20;
const HEAD: u32 = 90;
const OWN: RGBColor = RGBColor(0, 110, 80);
const OTHER: RGBColor = RGBColor(110, 120, 135);

/// One figure of every rule, over all situations.
pub(crate) struct Figure {
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    /// From run and ceiling's goodput.
    pub(crate) value: fn(&Measured, f64) -> f64,
    /// Values beyond are drawn at the edge.
    pub(crate) most: f64,
}

/// All of them; the first is the main one.
pub(crate) const FIGURES: &[Figure] = &[
    Figure {
        file: "goodput.svg",
        title: "Goodput within SLO, % of the clairvoyant rule",
        value: |measured, ceiling| measured.value(Of::Goodput) / ceiling * 100.0,
        most: 115.0,
    },
    Figure {
        file: "preempted.svg",
        title: "Preempted, % of admitted",
        value: |measured, _| measured.value(Of::Preempted) * 100.0,
        most: 20.0,
    },
    Figure {
        file: "ttft-p99.svg",
        title: "99th percentile of the time to first token, s",
        value: |measured, _| measured.value(Of::TtftP99),
        most: 12.0,
    },
    Figure {
        file: "false-denials.svg",
        title: "False denials, % of requests",
        value: |measured, _| measured.value(Of::FalselyDenied) * 100.0,
        most: 60.0,
    },
    Figure {
        file: "denied.svg",
        title: "Denied, % of requests",
        value: |measured, _| measured.value(Of::Denied) * 100.0,
        most: 100.0,
    },
    Figure {
        file: "utilisation.svg",
        title: "Mean use of the pool, %",
        value: |measured, _| measured.value(Of::Utilisation) * 100.0,
        most: 100.0,
    },
];

/// The first run in a situation that has an estimate of the pool.
pub(crate) fn estimate(outcome: &Outcome) -> Option<&Measured> {
    outcome.measured.iter().find(|measured| measured.get(Of::ErrorMean).is_some())
}

/// Errors beyond are drawn at the edge, % of the pool.
const MOST_ERROR: f64 = 25.0;

/// Draws the mean error of the corrected use, of the raw gauge and of the ledger alone: three bars per situation.
pub(crate) fn draw_errors(folder: &Path, outcomes: &[Outcome]) -> Result<()> {
    let rows: Vec<_> =
        outcomes.iter().filter_map(|outcome| Some((outcome.situation.name(), estimate(outcome)?))).collect();
    let height = HEAD + 2 * ROW * rows.len() as u32;
    let path = folder.join("estimation.svg");
    let root = SVGBackend::new(&path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = "Mean error of the blocks in use, % of the pool: corrected, raw gauge, ledger alone";
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(300)
        .build_cartesian_2d(0.0..MOST_ERROR, 0.0..rows.len() as f64)?;
    chart.configure_mesh().disable_y_mesh().light_line_style(WHITE).y_labels(0).draw()?;
    for (index, (name, run)) in rows.iter().enumerate() {
        let base = (rows.len() - index - 1) as f64;
        let bars = [
            (run.value(Of::ErrorMean), OWN),
            (run.value(Of::GaugeErrorMean), OTHER),
            (run.value(Of::LedgerErrorMean), RGBColor(200, 150, 80)),
        ];
        let bar = |(place, (mean, colour)): (usize, &(f64, RGBColor))| {
            let top = base + 0.9 - 0.27 * place as f64;
            Rectangle::new([(0.0, top - 0.24), (mean.min(MOST_ERROR), top)], colour.mix(0.7).filled())
        };
        chart.draw_series(bars.iter().enumerate().map(bar))?;
        let (x, y) = chart.backend_coord(&(0.0, base + 0.5));
        root.draw(&label(format!("{name}  {:.1}", run.value(Of::ErrorMean)), x, y))?;
    }
    root.present()?;
    Ok(())
}

/// Text that ends left of (x, y).
fn label(text: String, x: i32, y: i32) -> Text<'static, (i32, i32), String> {
    let anchor = Pos::new(HPos::Right, VPos::Center);
    Text::new(text, (x - 6, y), ("sans-serif", 13).into_font().color(&BLACK).pos(anchor))
}

/// Draws a figure: a row for every rule with a light dot for every situation, its mean as a bar, its worst as a number.
pub(crate) fn draw(folder: &Path, figure: &Figure, outcomes: &[Outcome]) -> Result<()> {
    let rows = rows(figure, outcomes);
    let height = HEAD + ROW * rows.len() as u32;
    let path = folder.join(figure.file);
    let root = SVGBackend::new(&path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(figure.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(230)
        .build_cartesian_2d(0.0..figure.most, 0.0..rows.len() as f64)?;
    chart.configure_mesh().disable_y_mesh().light_line_style(WHITE).y_labels(0).draw()?;
    for (index, (name, values)) in rows.iter().enumerate() {
        let base = (rows.len() - index - 1) as f64;
        let own = name == "gpuadmit" || name == "ceiling";
        let colour = if own { OWN } else { OTHER };
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let clamp = |value: f64| value.clamp(0.0, figure.most);
        chart.draw_series([Rectangle::new(
            [(0.0, base + 0.2), (clamp(mean), base + 0.8)],
            colour.mix(0.55).filled(),
        )])?;
        let dot = |value: &f64| Circle::new((clamp(*value), base + 0.5), 3, colour.filled());
        chart.draw_series(values.iter().map(dot))?;
        let (x, y) = chart.backend_coord(&(0.0, base + 0.5));
        root.draw(&label(format!("{name}  {mean:.1}"), x, y))?;
    }
    root.present()?;
    Ok(())
}

/// Rules and their values in all situations in which they ran.
fn rows(figure: &Figure, outcomes: &[Outcome]) -> Vec<(String, Vec<f64>)> {
    let mut rows: Vec<(String, Vec<f64>)> = Vec::new();
    for outcome in outcomes {
        let ceiling = outcome.ceiling().unwrap_or(f64::NAN);
        for measured in best(&outcome.measured, Of::Goodput) {
            let value = (figure.value)(measured, ceiling);
            let rule = measured.candidate.rule();
            match rows.iter_mut().find(|(name, _)| *name == rule) {
                Some((_, values)) => values.push(value),
                None => rows.push((rule, vec![value])),
            }
        }
    }
    for (_, values) in &mut rows {
        values.retain(|value| !value.is_nan());
    }
    rows
}

/// Draws a real engine's use of the pool beside the model's, in percent by step.
pub(crate) fn plot_beside(path: &Path, real: &[(f64, f64)], model: &[(f64, f64)]) -> Result<()> {
    let root = SVGBackend::new(path, (WIDTH, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let last = real.last().map_or(1.0, |point| point.0);
    let mut chart = ChartBuilder::on(&root)
        .caption("Blocks in use, % of the pool, by step: vLLM on a CPU and the model", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(40)
        .build_cartesian_2d(0.0..last, 0.0..100.0)?;
    chart.configure_mesh().light_line_style(WHITE).draw()?;
    chart.draw_series(LineSeries::new(real.iter().copied(), OTHER.stroke_width(3)))?;
    chart.draw_series(LineSeries::new(model.iter().copied(), OWN.stroke_width(1)))?;
    root.present()?;
    Ok(())
}
