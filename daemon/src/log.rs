//! Logging: into the journal, with fields, where standard error goes there, and to standard error elsewhere. Prompt text
//! is never logged.

mod entry;
mod journal;
mod limit;
pub mod message_id;

use std::{
    env,
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use gpuadmit_core::{
    event::{Event, EventKind, Severity},
    snapshot::Snapshot,
};
use nix::sys::stat::fstat;
use tokio::time::{Instant, interval};
use tracing::{Metadata, Subscriber, enabled, error, info, warn};
use tracing_subscriber::{
    EnvFilter, Layer as _,
    layer::{Context, Filter, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

use self::{journal::Journal, limit::Limit};
use crate::{config, handle::Handle};

/// Events taken from the node at once.
const BATCH: usize = 64;
/// Time between two looks whether something was left out.
const LEFT_OUT_TOLD: Duration = Duration::from_secs(1);
/// Target of events, for `log.level`.
const EVENTS: &str = "gpuadmitd::event";

/// A place in the program that logs.
type Place = (&'static str, u32);

/// The log of this process.
#[derive(Debug)]
pub struct Log {
    /// `None`: standard error.
    journal: Option<Journal>,
    lines: Arc<Mutex<Limit<Place>>>,
    events: Limit<EventKind>,
}

impl Log {
    /// Starts logging by `config`, which has been checked.
    #[must_use]
    pub fn start(config: &config::Log) -> Self {
        let filter = EnvFilter::try_new(&config.level).unwrap_or_else(|_| EnvFilter::new("info"));
        let lines = Arc::new(Mutex::new(Limit::default()));
        let bounded = Bounded(Arc::clone(&lines));
        let (journal, refused) = match stderr_is_the_journal().then(|| Journal::at(&config.journal_socket)) {
            Some(Ok(journal)) => (Some(journal), None),
            Some(Err(refused)) => (None, Some(refused)),
            None => (None, None),
        };
        let registry = tracing_subscriber::registry().with(filter);
        // A second call (tests in one process) keeps the first's.
        let _ = if let Some(journal) = &journal {
            registry.with(journal.clone().with_filter(bounded)).try_init()
        } else {
            let plain = tracing_subscriber::fmt::layer()
                .with_writer(io::stderr)
                .with_ansi(io::stderr().is_terminal() && !colour_is_unwanted());
            if refused.is_some() {
                registry.with(plain.without_time().with_filter(bounded)).try_init()
            } else {
                registry.with(plain.with_filter(bounded)).try_init()
            }
        };
        if let Some(error) = refused {
            let path = config.journal_socket.display();
            warn!("no fields in the journal: cannot send to {path}: {error}");
        }
        Self { journal, lines, events: Limit::default() }
    }

    /// Logs the node's events, each once, for ever; and now and then what was left out.
    pub async fn tell(mut self, handle: Handle) {
        let mut newest = handle.newest_event();
        let mut cursor = 0;
        let mut ticks = interval(LEFT_OUT_TOLD);
        loop {
            newest.mark_unchanged();
            let (events, missed) = handle.events_after(cursor, BATCH);
            if missed > 0 {
                warn!(missed, "events came faster than they could be logged");
            }
            let snapshot = handle.snapshot();
            for event in &events {
                self.event(event, &snapshot).await;
            }
            cursor = events.last().map_or(cursor, |event| event.cursor);
            if events.len() >= BATCH {
                continue;
            }
            tokio::select! {
                changed = newest.changed() => if changed.is_err() { return },
                _ = ticks.tick() => self.tell_left_out().await,
            }
        }
    }

    async fn event(&mut self, event: &Event, snapshot: &Snapshot) {
        let severity = event.kind.severity();
        if !wanted(severity) || !self.events.allows(event.kind, Instant::now()) {
            return;
        }
        match &self.journal {
            Some(journal) => journal.event(event, snapshot).await,
            None => plain(event),
        }
    }

    async fn tell_left_out(&mut self) {
        let now = Instant::now();
        for (kind, count) in self.events.left_out(now) {
            let kind = kind.map_or("other", EventKind::as_str);
            self.left_out(count, &format!("{kind} came too often; `gpuadmit events` has them")).await;
        }
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).left_out(now);
        for (place, count) in lines {
            let place = place.map_or_else(|| "others".to_owned(), |(file, line)| format!("{file}:{line}"));
            self.left_out(count, &format!("lines of {place} came too often")).await;
        }
        let lost = self.journal.as_ref().map_or(0, Journal::take_lost);
        if lost > 0 {
            self.left_out(lost, "the journal did not take them").await;
        }
    }

    async fn left_out(&self, count: u64, what: &str) {
        match &self.journal {
            Some(journal) => journal.left_out(count, what).await,
            None => warn!("{count} lines are missing here: {what}"),
        }
    }
}

/// Whether `log.level` asks for events of this severity.
fn wanted(severity: Severity) -> bool {
    match severity {
        Severity::Info => enabled!(target: EVENTS, tracing::Level::INFO),
        Severity::Warning => enabled!(target: EVENTS, tracing::Level::WARN),
        Severity::Critical => enabled!(target: EVENTS, tracing::Level::ERROR),
    }
}

fn plain(event: &Event) {
    let kind = event.kind.as_str();
    let (engine, device) = (event.engine.as_deref(), event.device.as_deref());
    match event.kind.severity() {
        Severity::Info => info!(target: EVENTS, engine, device, "{kind}: {}", event.message),
        Severity::Warning => warn!(target: EVENTS, engine, device, "{kind}: {}", event.message),
        Severity::Critical => error!(target: EVENTS, engine, device, "{kind}: {}", event.message),
    }
}

/// Bounds the lines of each place in the program. Events have bounds of their own, and who asks for debug lines wants them.
struct Bounded(Arc<Mutex<Limit<Place>>>);

impl<S: Subscriber> Filter<S> for Bounded {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &tracing::Event<'_>, _: &Context<'_, S>) -> bool {
        let about = event.metadata();
        if about.target() == EVENTS || *about.level() > tracing::Level::INFO {
            return true;
        }
        let place = (about.file().unwrap_or(about.target()), about.line().unwrap_or(0));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).allows(place, Instant::now())
    }
}

/// NO_COLOR is set (no-color.org).
fn colour_is_unwanted() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Whether standard error goes to the journal: `JOURNAL_STREAM` holds its device and inode (systemd.exec(5)).
fn stderr_is_the_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    fstat(io::stderr().as_fd()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}
