//! The status screen.

#[cfg(test)]
mod tests;

use gpuadmit_client::v1::{DecisionCounts, Source, SourceHealth, StatusResponse, Tokenizers, denied::Reason};

use super::{
    canvas::Canvas,
    device, engine, event,
    names::Names,
    numbers::{UNKNOWN, age, bytes, count, counted, duration},
    paint::Mood,
    text::{columns, fitted, safe},
};

const SIMULATED: &str = "SIMULATED: none of this is real.";

/// The whole node on one screen.
pub(crate) fn status(status: &StatusResponse, canvas: Canvas) -> String {
    let names = Names::of(&status.devices);
    let mut text = String::new();
    if status.simulated {
        text += &(canvas.text(Mood::Warning, SIMULATED) + "\n");
    }
    text += &head(status, canvas);
    text += "\n";
    if status.engines.is_empty() {
        text += "no engine was found\n";
    }
    for one in &status.engines {
        text += &engine::engine(one, &names, canvas);
    }
    text += "\n";
    if status.devices.is_empty() {
        text += &device::none();
    }
    for one in &status.devices {
        text += &device::device(one, &names, canvas);
    }
    let widest = status.sources.iter().map(|one| columns(&safe(&one.name))).max().unwrap_or(0);
    let name_columns = widest.min(canvas.columns() / 2);
    text += &titled("sources", status.sources.iter().map(|one| source(one, name_columns, canvas)));
    text + &titled("events", status.events.iter().map(|one| event::brief(one, &names, canvas)))
}

/// The spelling of a denial's reason that metrics, journal and manual use.
pub(crate) fn reason_word(reason: i32) -> String {
    Reason::try_from(reason)
        .map_or_else(|_| format!("reason {reason}"), |reason| reason.as_str_name().to_owned())
}

fn head(status: &StatusResponse, canvas: Canvas) -> String {
    let reservations = format!(
        "{} of at most {} reservations",
        count(status.reservations),
        count(status.reservations_limit)
    );
    let fields = [
        format!("gpuadmitd {}", safe(&status.version)),
        format!("up {}", duration(status.uptime_ms)),
        reservations,
    ];
    canvas.flow("", ", ", &fields)
        + &decisions(status.decisions.as_ref(), canvas)
        + &status.tokenizers.as_ref().map_or_else(String::new, |one| tokenizers(one, canvas))
}

/// Nothing, as long as no prompt came as a text.
fn tokenizers(tokenizers: &Tokenizers, canvas: Canvas) -> String {
    if tokenizers.texts == 0 && tokenizers.loaded.is_empty() {
        return String::new();
    }
    let mut fields = vec![
        counted(tokenizers.texts, "text"),
        format!("{} counted exactly", count(tokenizers.counted)),
        format!("{} by an upper bound for want of a count", count(tokenizers.uncounted)),
    ];
    let loaded = tokenizers.loaded.iter();
    fields.extend(loaded.map(|one| format!("{} {}", fitted(&one.model, 40), bytes(one.memory_bytes))));
    let absent = tokenizers.absent.iter();
    fields.extend(absent.map(|one| format!("{}: {}", fitted(&one.model, 40), safe(&one.reason))));
    match tokenizers.limit {
        0 => fields.push("tokenizers are switched off".into()),
        limit => fields.push(format!("{} of at most {limit} loaded", tokenizers.loaded.len())),
    }
    canvas.flow("prompts: ", ", ", &fields)
}

fn decisions(counts: Option<&DecisionCounts>, canvas: Canvas) -> String {
    let Some(counts) = counts else { return format!("decisions {UNKNOWN}\n") };
    let mut fields =
        vec![format!("{} admitted", count(counts.admitted)), format!("{} denied", count(counts.denied))];
    if counts.would_have_denied > 0 {
        fields.push(format!("{} would have been denied", count(counts.would_have_denied)));
    }
    let reasons = counts.by_reason.iter();
    fields.extend(reasons.map(|one| format!("{} {}", reason_word(one.reason), count(one.count))));
    canvas.flow("decisions: ", ", ", &fields)
}

fn source(source: &Source, name_columns: usize, canvas: Canvas) -> String {
    let (health, mood) = match SourceHealth::try_from(source.health) {
        Ok(SourceHealth::Unspecified) => (UNKNOWN.to_owned(), Mood::Warning),
        Ok(health) => {
            (health.as_str_name().trim_start_matches("SOURCE_HEALTH_").to_lowercase(), Mood::from(health))
        }
        Err(_) => (format!("health {}", source.health), Mood::Warning),
    };
    let mut fields = vec![canvas.text(mood, &health), age(source.age_ms)];
    if let Some(busy_us) = source.busy_us {
        fields.push(format!("{} inside its calls", duration(busy_us / 1_000)));
    }
    // The detail is a sentence: it is wrapped between its words, and not cut.
    let fields = fields.into_iter().map(|field| field + " ");
    let words: Vec<String> = fields.chain(source.detail.split_whitespace().map(safe)).collect();
    let label = format!("  {:<name_columns$}  ", fitted(&source.name, name_columns));
    let text = canvas.flow(&label, " ", &words);
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Lines under a title; nothing where there are none.
fn titled(title: &str, lines: impl Iterator<Item = String>) -> String {
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("\n{title}\n{lines}") }
}
