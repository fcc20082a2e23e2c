//! What a load came to, as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    canvas::Canvas,
    numbers::{count, duration, or_unknown, percent},
    paint::Mood,
    status::reason_word,
    text::fitted,
};
use crate::stress::{Outcome, Phase, Quantiles, Row, Target};

/// For a person.
pub(crate) fn text(target: &Target, outcome: &Outcome, canvas: Canvas) -> String {
    let tally = &outcome.tally;
    let took = duration(u64::try_from(outcome.took.as_millis()).unwrap_or(u64::MAX));
    let head = [
        canvas.text(Mood::Strong, &fitted(&target.engine, 40)),
        fitted(&target.place, 50),
        fitted(&target.model, 60),
        format!("window {} tokens", count(target.window)),
        format!("{took}, {} output tokens", count(tally.tokens)),
    ];
    let mut text = canvas.flow("", "  ", &head);
    let mut row = |line: &str| text += &format!("{}\n", whole_columns(line, canvas.columns()));
    row("");
    row("        asked admitted  denied finished  TTFT p50  TTFT p99  pace p50  pace p99");
    for phase in Phase::ALL {
        if let Some(of_phase) = tally.rows.get(&phase) {
            row(&line(phase, of_phase));
        }
    }
    text += "\n";
    let denied =
        tally.denied.iter().map(|(reason, number)| format!("{} {}", reason_word(*reason), count(*number)));
    let denied: Vec<String> = denied.collect();
    let none = || vec!["none".to_owned()];
    text += &canvas.flow("denied     ", ", ", &if denied.is_empty() { none() } else { denied });
    text += &canvas.flow(
        "failed     ",
        ", ",
        &[count(tally.failed), fitted(tally.failure.as_deref().unwrap_or_default(), 60)],
    );
    text += &canvas.flow("cancelled  ", ", ", &[count(tally.cancelled)]);
    text += &canvas.flow("preempted  ", ", ", &[preempted(outcome, canvas)]);
    text += &canvas.flow("pool       ", ", ", &pool(outcome));
    text + &canvas.flow("decisions  ", ", ", &decisions(&tally.decided))
}

/// Where the columns of the table end.
const ENDS: [usize; 9] = [6, 13, 22, 30, 39, 49, 59, 69, 79];

/// `line` without the last columns of the table that do not fit.
fn whole_columns(line: &str, columns: usize) -> String {
    let end = ENDS.into_iter().take_while(|end| *end <= columns).last().unwrap_or(columns);
    line.chars().take(end).collect()
}

fn line(phase: Phase, row: &Row) -> String {
    let [ttft, ttft_slow] = two(&row.ttft);
    let [pace, pace_slow] = two(&row.pace);
    format!(
        "{:<6}{:>7}{:>9}{:>8}{:>9}{ttft:>10}{ttft_slow:>10}{pace:>10}{pace_slow:>10}",
        phase.as_str(),
        row.asked,
        row.admitted,
        row.denied,
        row.finished,
    )
}

fn two(quantiles: &Quantiles) -> [String; 2] {
    quantiles.percentiles([50, 99]).map_or_else(|| ["-".to_owned(), "-".to_owned()], |both| both.map(short))
}

/// Three digits: `0.24 ms`, `26.1 ms`, `312 ms`, `4.21 s`.
fn short(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1_000.0;
    match ms {
        1_000.0.. => format!("{:.2} s", ms / 1_000.0),
        100.0.. => format!("{ms:.0} ms"),
        10.0.. => format!("{ms:.1} ms"),
        _ => format!("{ms:.2} ms"),
    }
}

fn preempted(outcome: &Outcome, canvas: Canvas) -> String {
    match outcome.preempted {
        None => canvas.text(Mood::Warning, "unknown: the engine does not count them"),
        Some(0) => canvas.text(Mood::Good, "0 by the engine's counter"),
        Some(number) => canvas.text(Mood::Bad, &format!("{} by the engine's counter", count(number))),
    }
}

fn pool(outcome: &Outcome) -> Vec<String> {
    let fullest = outcome.pool.fullest.map(|(used, total)| {
        format!("{} at most ({} of {} blocks reported)", percent(used, total), count(used), count(total))
    });
    let full = outcome.pool.was_full().map_or("", |full| if full { "was full" } else { "never full" });
    let waiting = or_unknown(outcome.pool.waiting, count);
    let bypass = outcome.pool.bypass.filter(|bypass| *bypass > 0);
    let mut fields = vec![
        fullest.unwrap_or_else(|| "unknown".into()),
        full.to_owned(),
        format!("{waiting} waiting in the engine at most"),
    ];
    fields.extend(bypass.map(|bypass| format!("{} that did not ask at most", count(bypass))));
    fields
}

/// Over the socket, and with what each waited for room.
fn decisions(decided: &Quantiles) -> [String; 3] {
    let [half, most, all] = decided
        .percentiles([50, 99, 100])
        .map_or_else(|| ["-", "-", "-"].map(str::to_owned), |all| all.map(short));
    [format!("{half} p50"), format!("{most} p99"), format!("{all} at most")]
}

/// For a program; times in milliseconds.
pub(crate) fn json(target: &Target, outcome: &Outcome) -> Value {
    let tally = &outcome.tally;
    let times = |quantiles: &Quantiles| {
        quantiles.percentiles([50, 90, 99, 100]).map(|all| {
            let [p50, p90, p99, max] = all.map(|time| time.as_secs_f64() * 1_000.0);
            json!({ "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": max })
        })
    };
    let rows = tally.rows.iter().map(|(phase, row)| {
        let value = json!({
            "asked": row.asked, "admitted": row.admitted, "denied": row.denied, "finished": row.finished,
            "ttft": times(&row.ttft), "pace": times(&row.pace),
        });
        (phase.as_str().to_owned(), value)
    });
    let denied = tally.denied.iter().map(|(reason, number)| (reason_word(*reason), Value::from(*number)));
    json!({
        "engine": target.engine,
        "model": target.model,
        "took_ms": u64::try_from(outcome.took.as_millis()).unwrap_or(u64::MAX),
        "phases": rows.collect::<serde_json::Map<_, _>>(),
        "denied_by_reason": denied.collect::<serde_json::Map<_, _>>(),
        "failed": tally.failed,
        "failure": tally.failure,
        "cancelled": tally.cancelled,
        "output_tokens": tally.tokens,
        "preempted": outcome.preempted,
        "pool_blocks_max": outcome.pool.fullest.map(|(used, _)| used),
        "pool_blocks_total": outcome.pool.fullest.map(|(_, total)| total),
        "pool_was_full": outcome.pool.was_full(),
        "waiting_max": outcome.pool.waiting,
        "decisions": times(&tally.decided),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpuadmit_client::v1::{Engine, EngineState, StatusResponse, denied::Reason};

    use super::*;
    use crate::{
        render::text::WIDTH,
        stress::{Tally, Watched},
    };

    fn target() -> Target {
        let engine = Engine {
            id: "vllm-8000".into(),
            address: "http://127.0.0.1:8000".into(),
            state: EngineState::Ready.into(),
            models: vec!["m".into()],
            max_model_len: Some(2_048),
            ..Engine::default()
        };
        let status = StatusResponse { engines: vec![engine], ..StatusResponse::default() };
        Target::find(&status, None, false, None).unwrap()
    }

    #[test]
    fn a_load_is_a_table_of_its_parts_and_what_went_wrong() {
        let row =
            |asked, admitted, denied| Row { asked, admitted, denied, finished: admitted, ..Row::default() };
        let tally = Tally {
            rows: BTreeMap::from([(Phase::Mixed, row(200, 180, 20)), (Phase::Burst, row(50, 10, 40))]),
            denied: BTreeMap::from([(Reason::KvFull.into(), 60)]),
            failed: 1,
            failure: Some("the stream broke off \x1b[2J".into()),
            ..Tally::default()
        };
        let pool = Watched { fullest: Some((127, 127)), waiting: Some(3), bypass: Some(0) };
        let outcome = Outcome { tally, pool, preempted: Some(2), took: Duration::from_millis(43_200) };
        let text = text(&target(), &outcome, Canvas::PLAIN);
        let expected = "vllm-8000  http://127.0.0.1:8000  m  window 2,048 tokens
43.2 s, 0 output tokens

        asked admitted  denied finished  TTFT p50  TTFT p99  pace p50  pace p99
mixed     200      180      20      180         -         -         -         -
burst      50       10      40       10         -         -         -         -

denied     KV_FULL 60
failed     1, the stream broke off \u{fffd}[2J
cancelled  0
preempted  2 by the engine's counter
pool       100 % at most (127 of 127 blocks reported), was full,
           3 waiting in the engine at most
decisions  - p50, - p99, - at most
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
        let json = json(&target(), &outcome);
        assert_eq!(json["phases"]["burst"]["denied"], 40);
        assert_eq!(
            (&json["denied_by_reason"]["KV_FULL"], &json["pool_was_full"]),
            (&60.into(), &true.into())
        );
    }

    #[test]
    fn times_have_three_digits() {
        let times = [0.000_24, 0.026_13, 0.312, 4.214].map(|seconds| short(Duration::from_secs_f64(seconds)));
        assert_eq!(times, ["0.24 ms", "26.1 ms", "312 ms", "4.21 s"]);
    }
}
