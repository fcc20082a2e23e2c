//! Events.

use gpuadmit_client::v1::{Event, Severity, WatchEventsResponse};

use crate::catalog;

use super::{
    numbers::{UNKNOWN, date_and_time, time_of_day},
    paint::{Mood, Paint},
    text::{WIDTH, fitted, flow, sentence},
};

/// Columns of an engine's or device's name on the status screen.
const BRIEF_NAME_COLUMNS: usize = 14;

/// One event in full, and what is missing before it.
pub(crate) fn event(event: &Event, response: &WatchEventsResponse, paint: Paint) -> String {
    let mut text = String::new();
    let missed = response.missed;
    if response.restarted {
        text += "(the daemon was started again; what it told before is in its journal)\n";
    }
    if missed > 0 {
        text += &format!("({missed} older events are no longer kept)\n");
    }
    let mut fields = vec![date_and_time(event.unix_ms), format!("#{}", event.cursor)];
    fields.extend(what(event, paint));
    text += &flow("", "  ", &fields);
    text + &sentence("  ", &event.message)
}

/// What a kind of event means and what to do; nothing for a kind of a newer daemon.
pub(crate) fn explanation(kind: &str) -> String {
    let entry = catalog::entries().find(|entry| entry.kind == kind);
    let lines = entry.iter().flat_map(|entry| entry.text.lines());
    let indented = lines.map(|line| if line.is_empty() { "\n".into() } else { format!("    {line}\n") });
    indented.collect::<String>() + "\n"
}

/// One event on the status screen, in one line; what does not fit is in `gpuadmit events`.
pub(crate) fn brief(event: &Event, paint: Paint) -> String {
    let subject = event.engine.as_deref().or(event.device.as_deref()).unwrap_or("");
    // Most messages name their subject themselves.
    let subject = if event.message.contains(subject) { "" } else { subject };
    let name = fitted(subject, BRIEF_NAME_COLUMNS);
    let (severity, mood) = severity(event.severity);
    let line = format!(
        "  {}  {severity:<8}  {:<17}  {name}{}{}",
        time_of_day(event.unix_ms),
        fitted(&event.kind, 17),
        if name.is_empty() { "" } else { ": " },
        event.message
    );
    paint.text(mood, &fitted(&line, WIDTH)) + "\n"
}

fn what(event: &Event, paint: Paint) -> Vec<String> {
    let (severity, mood) = severity(event.severity);
    let mut fields = vec![paint.text(mood, &severity), paint.text(mood, &fitted(&event.kind, 30))];
    fields.extend(event.engine.as_deref().map(|engine| fitted(engine, 30)));
    fields.extend(event.device.as_deref().map(|device| fitted(device, 45)));
    fields.extend(event.cause.as_deref().map(|cause| fitted(cause, 20)));
    fields.extend(event.caused_by.map(|first| format!("follows from #{first}")));
    fields
}

fn severity(number: i32) -> (String, Mood) {
    match Severity::try_from(number) {
        Ok(Severity::Unspecified) => (UNKNOWN.to_owned(), Mood::Warning),
        Ok(severity) => {
            (severity.as_str_name().trim_start_matches("SEVERITY_").to_lowercase(), Mood::from(severity))
        }
        Err(_) => (format!("severity {number}"), Mood::Warning),
    }
}
