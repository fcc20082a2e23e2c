//! Logging, to standard error. Prompt text is never logged.

use std::{
    env,
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
};

use gpuadmit_core::event::{Event, Severity};
use nix::sys::stat::fstat;
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::handle::Handle;

/// Events taken from the node at once.
const BATCH: usize = 64;

/// Starts logging by `level`, which has been checked. Without time stamps under journald, which adds its own.
pub fn start(level: &str) {
    let filter = EnvFilter::try_new(level).unwrap_or_else(|_| EnvFilter::new("info"));
    let format = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // A second call (tests in one process) keeps the first's.
    let _ = if under_journald() { format.without_time().try_init() } else { format.try_init() };
}

/// Logs the node's events, for ever.
pub async fn events(handle: Handle) {
    let mut newest = handle.newest_event();
    let mut cursor = 0;
    loop {
        newest.mark_unchanged();
        let (events, missed) = handle.events_after(cursor, BATCH);
        if missed > 0 {
            warn!(missed, "events came faster than they could be logged");
        }
        events.iter().for_each(event);
        cursor = events.last().map_or(cursor, |event| event.cursor);
        if events.len() < BATCH && newest.changed().await.is_err() {
            return;
        }
    }
}

fn event(event: &Event) {
    let kind = event.kind.as_str();
    let (engine, device) = (event.engine.as_deref(), event.device.as_deref());
    match event.kind.severity() {
        Severity::Info => info!(engine, device, "{kind}: {}", event.message),
        Severity::Warning => warn!(engine, device, "{kind}: {}", event.message),
        Severity::Critical => error!(engine, device, "{kind}: {}", event.message),
    }
}

/// Whether standard error goes to the journal: `JOURNAL_STREAM` holds its device and inode (systemd.exec(5)).
fn under_journald() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    fstat(io::stderr().as_fd()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}
