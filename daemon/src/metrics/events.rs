//! What was told: how often each kind of event, and when last, by whom it is about.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use gpuadmit_core::{
    event::{Event, EventKind, Severity},
    verdict::Cause,
};

use super::sheet::{ALONE, Sheet};
use crate::{clock, handle::Handle};

/// Most whose last event is remembered, kind by kind. Those of more are counted by kind alone.
const MAX_SUBJECTS: usize = 1024;
/// Events taken from the node at once.
const BATCH: usize = 64;

/// What an event was about.
type Subject = (EventKind, Option<Arc<str>>, Option<Arc<str>>, Option<&'static str>);

/// Counted apart from the node, by a task of its own.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Counts>);

#[derive(Clone, Debug, Default)]
struct Counts {
    by_kind: BTreeMap<EventKind, u64>,
    /// Unix time of the newest one that is no consequence of another event.
    last: BTreeMap<Subject, f64>,
    missed: u64,
}

impl Told {
    /// Follows the node's events, for ever.
    pub(super) async fn follow(self: Arc<Self>, handle: Handle) {
        let mut newest = handle.newest_event();
        let mut cursor = 0;
        loop {
            newest.mark_unchanged();
            let (events, missed) = handle.events_after(cursor, BATCH);
            self.counts().take(&events, missed);
            cursor = events.last().map_or(cursor, |event| event.cursor);
            if events.len() < BATCH && newest.changed().await.is_err() {
                return;
            }
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let counts = self.counts().clone();
        let by_kind = EventKind::ALL.iter().map(|kind| {
            let count = counts.by_kind.get(kind).copied().unwrap_or(0);
            ([("kind", kind.as_str()), ("severity", severity(*kind))], Some(count))
        });
        sheet.counter("gpuadmit_events", "Events by kind.", by_kind)?;
        let help = "Events that came faster than they could be counted by kind.";
        sheet.counter("gpuadmit_events_missed", help, [(ALONE, Some(counts.missed))])?;
        let last = counts.last.iter().map(|((kind, engine, device, cause), at)| {
            let labels = [
                ("kind", kind.as_str()),
                ("severity", severity(*kind)),
                ("engine", engine.as_deref().unwrap_or_default()),
                ("device", device.as_deref().unwrap_or_default()),
                ("cause", cause.unwrap_or_default()),
            ];
            (labels, Some(*at))
        });
        let help = "Unix time of the newest event of the kind, but for those that follow from another event.";
        sheet.gauge("gpuadmit_event_last_timestamp_seconds", help, last)
    }
}

impl Counts {
    fn take(&mut self, events: &[Event], missed: u64) {
        self.missed = self.missed.saturating_add(missed);
        for event in events {
            let count = self.by_kind.entry(event.kind).or_default();
            *count = count.saturating_add(1);
            if event.caused_by.is_none() {
                self.note(event);
            }
        }
    }

    fn note(&mut self, event: &Event) {
        let cause = event.cause.map(Cause::as_str);
        let subject = (event.kind, event.engine.clone(), event.device.clone(), cause);
        if self.last.len() < MAX_SUBJECTS || self.last.contains_key(&subject) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.last.insert(subject, now.saturating_sub(clock::now().since(event.at)).as_secs_f64());
        }
    }
}

const fn severity(kind: EventKind) -> &'static str {
    match kind.severity() {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}
