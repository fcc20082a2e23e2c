//! Events.

use gpuadmit_client::v1::{Event, Severity, WatchEventsResponse};

use crate::catalog;

use super::{
    canvas::Canvas,
    names::{Names, News},
    numbers::{UNKNOWN, date_and_time, time_of_day},
    paint::Mood,
    text::{columns, fitted},
};

/// Screens from this width on have a column of severities, and one of kinds.
const ROOMY_COLUMNS: usize = 100;
/// Columns of a kind there.
const KIND_COLUMNS: usize = 17;
/// On narrower ones, columns before the second line of an event, beside those of the time.
const NARROW_INDENT: usize = 4;
/// Screens narrower than this one leave out the time.
const TIMELESS_COLUMNS: usize = 60;

/// One event in full, and what is missing before it.
pub(crate) fn event(event: &Event, response: &WatchEventsResponse, names: &Names, canvas: Canvas) -> String {
    let mut text = String::new();
    let missed = response.missed;
    if response.restarted {
        text += "(the daemon was started again; what it told before is in its journal)\n";
    }
    if missed > 0 {
        text += &format!("({missed} older events are no longer kept)\n");
    }
    let mut fields = vec![date_and_time(event.unix_ms), format!("#{}", event.cursor)];
    let News { subject, message } = names.news(event);
    fields.extend(what(event, &subject, canvas));
    text += &canvas.flow("", "  ", &fields);
    text + &canvas.sentence("  ", &message)
}

/// What a kind of event means and what to do; nothing for a kind of a newer daemon.
pub(crate) fn explanation(kind: &str) -> String {
    let entry = catalog::entries().find(|entry| entry.kind == kind);
    let lines = entry.iter().flat_map(|entry| entry.text.lines());
    let indented = lines.map(|line| if line.is_empty() { "\n".into() } else { format!("    {line}\n") });
    indented.collect::<String>() + "\n"
}

/// One event on a screen with others, on more than one line where it does not fit one.
pub(crate) fn brief(event: &Event, names: &Names, canvas: Canvas) -> String {
    let (severity, mood) = severity(event.severity);
    let News { subject, message } = names.news(event);
    let mark = match mood {
        Mood::Bad => '!',
        Mood::Warning => '*',
        _ => ' ',
    };
    let kind = fitted(&event.kind, 30);
    let front = if canvas.columns() < ROOMY_COLUMNS {
        format!("{mark} {kind}")
    } else {
        format!("{severity:<8}  {kind:<KIND_COLUMNS$}")
    };
    let time =
        if canvas.columns() < TIMELESS_COLUMNS { String::new() } else { time_of_day(event.unix_ms) + " " };
    let label = format!("  {time}{front} ");
    let colon = if subject.is_empty() || message.is_empty() { "" } else { ":" };
    let words = format!("{subject}{colon} {message}");
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let roomy = canvas.columns() >= ROOMY_COLUMNS;
    let indent = if roomy { columns(&label) } else { columns(&time) + NARROW_INDENT };
    let text = canvas.flow_indented(&label, indent, " ", &words);
    text.lines().map(|line| canvas.text(mood, line) + "\n").collect()
}

fn what(event: &Event, subject: &str, canvas: Canvas) -> Vec<String> {
    let (severity, mood) = severity(event.severity);
    let mut fields = vec![canvas.text(mood, &severity), canvas.text(mood, &fitted(&event.kind, 30))];
    fields.push(fitted(subject, 60));
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
