//! Every rule as a curve over the situations, the worst first.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::summary::Row;

const SIZE: (u32, u32) = (1100, 560);
/// Percent beyond are drawn at the edge.
const MOST: f64 = 130.0;

/// Draws good requests, percent of the reference's: a curve for each row.
pub(crate) fn draw(path: &Path, rows: &[Row]) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "Good requests, % of the reference's: each rule's situations, the worst first",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(40)
        .build_cartesian_2d(0.0..100.0, 0.0..MOST)?;
    chart.configure_mesh().light_line_style(WHITE).x_desc("% of the situations").draw()?;
    for (index, row) in rows.iter().enumerate() {
        let mut good: Vec<_> = row.judged.iter().map(|(_, judged)| judged.good.min(MOST)).collect();
        good.sort_by(f64::total_cmp);
        let last = good.len().saturating_sub(1).max(1) as f64;
        let points = good.iter().enumerate().map(|(place, good)| (place as f64 / last * 100.0, *good));
        let colour = Palette99::pick(index).to_rgba();
        let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        let key = move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2));
        series.label(row.name.clone()).legend(key);
    }
    let place = SeriesLabelPosition::LowerRight;
    chart.configure_series_labels().position(place).background_style(WHITE).border_style(BLACK).draw()?;
    root.present()?;
    Ok(())
}
