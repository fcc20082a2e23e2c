//! The record as an SVG picture: blocks above, decisions below, the engine's state as bands behind both.

use std::fmt::Write;

use gpuadmit_proto::v1::EngineState;

use crate::record::Sample;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
/// Most points of a line; more would only make the file larger.
const POINTS_MAX: usize = 500;

/// A rectangle of the picture with its own vertical scale from 0 to `top`.
#[derive(Clone, Copy)]
struct Panel {
    y: f64,
    height: f64,
    top: f64,
    seconds: f64,
}

impl Panel {
    fn x(&self, at: f64) -> f64 {
        LEFT + at / self.seconds * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        self.y + self.height * (1.0 - value / self.top)
    }

    /// A line through the known values, broken where there are none.
    fn line(&self, samples: &[Sample], style: &str, value: impl Fn(&Sample) -> Option<u32>) -> String {
        let mut path = String::new();
        let mut pen = 'M';
        for sample in samples {
            let Some(value) = value(sample) else {
                pen = 'M';
                continue;
            };
            let _ = write!(path, "{pen}{:.1} {:.1}", self.x(sample.at), self.y(f64::from(value)));
            pen = 'L';
        }
        format!("<path d=\"{path}\" fill=\"none\" {style}/>\n")
    }

    /// The area between the bounds of the corrected figure.
    fn band(&self, samples: &[Sample]) -> String {
        let known: Vec<_> =
            samples.iter().filter_map(|sample| Some((sample.at, sample.corrected?))).collect();
        let upper = known.iter().map(|(at, (_, _, high))| (*at, *high));
        let lower = known.iter().rev().map(|(at, (low, _, _))| (*at, *low));
        let points: String = upper
            .chain(lower)
            .map(|(at, value)| format!("{:.1},{:.1} ", self.x(at), self.y(f64::from(value))))
            .collect();
        format!("<polygon points=\"{}\" fill=\"#1f6feb\" fill-opacity=\"0.22\"/>\n", points.trim_end())
    }

    /// Frame, scale and title.
    fn frame(&self, title: &str, step: u32) -> String {
        let mut out = String::new();
        let right = WIDTH - RIGHT;
        for value in (0..)
            .step_by(usize::try_from(step).unwrap_or(1))
            .take_while(|value| f64::from(*value) <= self.top)
        {
            let y = self.y(f64::from(value));
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#d0d7de\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        let _ =
            writeln!(out, "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{title}</text>", self.y - 8.0);
        out
    }
}

/// The picture of a run on a pool of `pool` blocks.
pub(crate) fn svg(samples: &[Sample], pool: u32) -> String {
    let stride = samples.len().div_ceil(POINTS_MAX).max(1);
    let samples: Vec<Sample> = samples.iter().copied().step_by(stride).collect();
    let seconds = samples.last().map_or(1.0, |sample| sample.at.max(1.0));
    let decisions =
        samples.iter().map(|sample| sample.admitted.max(sample.denied_kv)).max().unwrap_or(0).max(1);
    let blocks = Panel { y: 60.0, height: 270.0, top: f64::from(pool) * 1.08, seconds };
    let counts = Panel { y: 390.0, height: 90.0, top: f64::from(decisions) * 1.08, seconds };

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    out += &states(&samples, &blocks, counts.y + counts.height);
    out += &blocks.frame("KV cache blocks", 32);
    out += &counts.frame("decisions since start", decisions.div_ceil(4).next_multiple_of(5));
    out += &blocks.band(&samples);
    out += &blocks.line(&samples, "stroke=\"#8250df\" stroke-dasharray=\"5 3\"", |sample| sample.committed);
    out += &blocks.line(&samples, "stroke=\"#57606a\" stroke-width=\"2.5\"", |sample| Some(sample.streamed));
    out += &blocks.line(&samples, "stroke=\"#bc4c00\"", |sample| sample.reported);
    out += &blocks.line(&samples, "stroke=\"#1f6feb\" stroke-width=\"1.5\"", |sample| {
        sample.corrected.map(|(_, now, _)| now)
    });
    out += &blocks.line(&samples, "stroke=\"#cf222e\"", |_| Some(pool));
    out += &counts.line(&samples, "stroke=\"#1a7f37\" stroke-width=\"1.5\"", |sample| Some(sample.admitted));
    out += &counts.line(&samples, "stroke=\"#cf222e\" stroke-width=\"1.5\"", |sample| Some(sample.denied_kv));
    out +=
        &counts.line(&samples, "stroke=\"#9a6700\" stroke-width=\"1.5\"", |sample| Some(sample.denied_other));
    out += &seconds_axis(&counts);
    out += &legend(
        &[
            ("#cf222e", "pool"),
            ("#8250df", "committed"),
            ("#57606a", "streamed to clients (truth)"),
            ("#bc4c00", "reported by vLLM"),
            ("#1f6feb", "corrected, with its band"),
        ],
        20.0,
    );
    out += &legend(
        &[("#1a7f37", "admitted"), ("#cf222e", "denied: KV_FULL"), ("#9a6700", "denied: engine state")],
        362.0,
    );
    out + "</svg>\n"
}

/// A band for every stretch of time in which the engine was not ready.
fn states(samples: &[Sample], panel: &Panel, bottom: f64) -> String {
    let mut out = String::new();
    for stretch in samples.chunk_by(|a, b| a.state == b.state) {
        let (Some(first), Some(last)) = (stretch.first(), stretch.last()) else { continue };
        if matches!(first.state, EngineState::Ready | EngineState::Unspecified) {
            continue;
        }
        let (x, end) = (panel.x(first.at), panel.x(last.at).max(panel.x(first.at) + 1.0));
        let name = first.state.as_str_name().trim_start_matches("ENGINE_STATE_");
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#9a6700\" fill-opacity=\"0.15\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" transform=\"rotate(90 {:.1} {:.1})\" fill=\"#9a6700\">{name}</text>",
            panel.y,
            end - x,
            bottom - panel.y,
            x + 3.0,
            panel.y + 16.0,
            x + 3.0,
            panel.y + 16.0,
        );
    }
    out
}

fn seconds_axis(panel: &Panel) -> String {
    let mut out = String::new();
    let y = panel.y + panel.height + 18.0;
    for second in (0..).step_by(20).map(f64::from).take_while(|second| *second <= panel.seconds) {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{second} s</text>",
            panel.x(second)
        );
    }
    out
}

/// Coloured names in one row, from the right edge.
fn legend(entries: &[(&str, &str)], y: f64) -> String {
    let spans: String = entries
        .iter()
        .map(|(colour, name)| format!("<tspan dx=\"14\" fill=\"{colour}\">\u{2501} {name}</tspan>"))
        .collect();
    format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{spans}</text>\n",
        WIDTH - RIGHT - 14.0,
        y + 20.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: f64, reported: Option<u32>, state: EngineState) -> Sample {
        Sample { at, reported, state, ..Sample::default() }
    }

    #[test]
    fn an_unknown_value_breaks_the_line() {
        let panel = Panel { y: 0.0, height: 100.0, top: 100.0, seconds: 888.0 };
        let samples =
            [Some(0), Some(100), None, Some(50)].map(|reported| at(0.0, reported, EngineState::Ready));
        let line = panel.line(&samples, "", |sample| sample.reported);
        assert_eq!(line, "<path d=\"M56.0 100.0L56.0 0.0M56.0 50.0\" fill=\"none\" />\n");
    }

    #[test]
    fn a_state_other_than_ready_shows_as_a_band() {
        let samples = [
            at(0.0, None, EngineState::Ready),
            at(10.0, None, EngineState::Suspect),
            at(20.0, None, EngineState::Ready),
        ];
        let picture = svg(&samples, 127);
        assert_eq!(picture.matches("SUSPECT").count(), 1);
        assert!(!picture.contains(">READY<") && !picture.contains("NaN"));
    }

    #[test]
    fn a_picture_of_nothing_is_still_a_picture() {
        assert!(!svg(&[], 127).contains("NaN"));
    }
}
