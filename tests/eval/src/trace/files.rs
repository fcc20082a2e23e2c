//! Public traces, read by path.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::{Arrival, Content, asked};
use crate::{
    random::Random,
    time::{MILLISECOND, Nanos, SECOND},
};

/// Pause before a trace that is too short begins again.
const REPEAT_AFTER: Nanos = SECOND;

/// Reads an Azure LLM inference trace.
pub(super) fn azure(path: &Path, span: Nanos) -> Result<Vec<Arrival>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty()) {
        let row = azure_row(line);
        rows.push(row.with_context(|| format!("{}:{}: {line:?}", path.display(), number + 1))?);
    }
    let max_tokens = |_: &Row, random: &mut Random| Some(asked(random));
    repeat(path, rows, span, max_tokens)
}

struct Row {
    at: Nanos,
    prompt: u64,
    output: u64,
    content: Content,
}

fn azure_row(line: &str) -> Result<Row> {
    let mut columns = line.trim().split(',');
    let mut next = || columns.next().context("three columns are expected");
    let (time, prompt, output) = (next()?, next()?, next()?);
    Ok(Row {
        at: time_of_day(time)?,
        prompt: prompt.parse()?,
        output: output.parse()?,
        content: Content::Own,
    })
}

/// `2023-11-16 18:17:03.9799600`: nanoseconds since midnight of the first of the month.
fn time_of_day(time: &str) -> Result<Nanos> {
    let (date, clock) = time.split_once(' ').context("date and time are expected")?;
    let day: u64 = date.rsplit('-').next().unwrap_or_default().parse()?;
    let mut parts = clock.split(':');
    let mut next = || parts.next().context("hours:minutes:seconds are expected");
    let (hours, minutes, seconds) =
        (next()?.parse::<u64>()?, next()?.parse::<u64>()?, next()?.parse::<f64>()?);
    Ok(((day * 24 + hours) * 60 + minutes) * 60 * SECOND + (seconds * 1e9) as Nanos)
}

#[derive(Deserialize)]
struct MooncakeRow {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u32>,
}

/// Tokens per hash id.
const MOONCAKE_BLOCK: u64 = 512;

/// Reads a Mooncake trace.
pub(super) fn mooncake(path: &Path, span: Nanos) -> Result<Vec<Arrival>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let row: MooncakeRow =
            serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), number + 1))?;
        rows.push(Row {
            at: row.timestamp * MILLISECOND,
            prompt: row.input_length,
            output: row.output_length,
            content: Content::Blocks { ids: row.hash_ids.into(), size: MOONCAKE_BLOCK },
        });
    }
    rows.sort_by_key(|row| row.at);
    repeat(path, rows, span, |_, random| Some(asked(random)))
}

fn repeat(
    path: &Path,
    rows: Vec<Row>,
    span: Nanos,
    max_tokens: impl Fn(&Row, &mut Random) -> Option<u64>,
) -> Result<Vec<Arrival>> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        bail!("{}: no requests in it", path.display());
    };
    let (start, period) = (first.at, last.at - first.at + REPEAT_AFTER);
    let mut random = Random::new(0, 1);
    let mut arrivals = Vec::new();
    for round in 0.. {
        for row in &rows {
            let at = row.at - start + round * period;
            if at >= span {
                return Ok(arrivals);
            }
            arrivals.push(Arrival {
                at,
                prompt: row.prompt.max(1),
                output: row.output.max(1),
                max_tokens: max_tokens(row, &mut random),
                tenant: 0,
                content: row.content.clone(),
            });
        }
    }
    Ok(arrivals)
}
