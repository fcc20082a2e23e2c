//! What the service manager is told (sd_notify(3)): ready at the first snapshot, alive with those that follow, and how
//! things stand in one line. Without a service manager it is told nothing.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use gpuadmit_core::snapshot::{EngineState, Snapshot};
use sd_notify::NotifyState;
use tokio::time::Instant;

/// Time between two status lines.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Longest remark in a status line, characters.
const MAX_REMARK: usize = 200;

/// Speaks to the service manager.
#[derive(Debug)]
pub struct Notifier {
    /// Time between two signs of life: half of what is allowed.
    alive_every: Option<Duration>,
    /// The manager knows that it is ready; until then it is told again.
    ready: bool,
    alive_at: Option<Instant>,
    status_at: Option<Instant>,
    status: String,
    remark: Remark,
}

/// What the status line says beside the figures, as of a reload that failed. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Remark(Arc<Mutex<String>>);

impl Remark {
    /// Says `text` from now on, its line breaks made spaces; nothing where it is empty.
    pub fn say(&self, text: &str) {
        let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = line.chars().take(MAX_REMARK).collect();
    }

    fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Notifier {
    /// A notifier that has told nothing yet.
    #[must_use]
    pub fn new(remark: Remark) -> Self {
        let alive_every = sd_notify::watchdog_enabled().map(|allowed| allowed / 2);
        Self { alive_every, ready: false, alive_at: None, status_at: None, status: String::new(), remark }
    }

    /// A snapshot was published, so the node's lock is to be had.
    pub fn published(&mut self, snapshot: &Snapshot) {
        let now = Instant::now();
        if !self.ready {
            self.ready = tell(&[NotifyState::Ready]);
        }
        let every = self.alive_every.unwrap_or(Duration::MAX);
        if self.alive_at.is_none_or(|at| now.duration_since(at) >= every) {
            tell(&[NotifyState::Watchdog]);
            self.alive_at = Some(now);
        }
        if self.status_at.is_none_or(|at| now.duration_since(at) >= STATUS_INTERVAL) {
            self.status_at = Some(now);
            self.tell_status(snapshot);
        }
    }

    fn tell_status(&mut self, snapshot: &Snapshot) {
        let status = one_line(snapshot, &self.remark.text());
        if status != self.status {
            tell(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }
}

/// A reload begins. systemd 253 and later want the time with it, to tell this message from those of earlier reloads.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => {
            tell(&[NotifyState::Reloading, now]);
        }
        Err(error) => tracing::warn!(%error, "cannot tell the service manager of the reload"),
    }
}

/// A reload is over.
pub fn reloaded() {
    tell(&[NotifyState::Ready]);
}

/// The daemon stops.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping: answers the calls that are open")]);
}

/// Returns whether it was told, or nobody wants to know.
fn tell(states: &[NotifyState<'_>]) -> bool {
    let told = sd_notify::notify(states);
    told.inspect_err(|error| tracing::warn!(%error, "cannot tell the service manager")).is_ok()
}

fn one_line(snapshot: &Snapshot, remark: &str) -> String {
    let ready = snapshot.engines.iter().filter(|engine| engine.state == EngineState::Ready).count();
    let separator = if remark.is_empty() { "" } else { "; " };
    format!(
        "{ready} of {} engines ready, {} devices, {} reservations{separator}{remark}",
        snapshot.engines.len(),
        snapshot.devices.len(),
        snapshot.reservations
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_one_line() {
        let snapshot = Snapshot { reservations: 3, ..Snapshot::default() };
        assert_eq!(one_line(&snapshot, ""), "0 of 0 engines ready, 0 devices, 3 reservations");
        let remark = Remark::default();
        remark.say("reload refused:\n mode");
        let line = one_line(&snapshot, &remark.text());
        assert_eq!(line, "0 of 0 engines ready, 0 devices, 3 reservations; reload refused: mode");
        remark.say(&"x".repeat(1000));
        assert_eq!(remark.text().len(), MAX_REMARK);
    }
}
