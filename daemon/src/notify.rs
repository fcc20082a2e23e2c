//! What the service manager is told (sd_notify(3)): ready at the first snapshot, alive with those that follow, and how
//! things stand in one line. Without a service manager it is told nothing.

use std::time::Duration;

use gpuadmit_core::snapshot::{EngineState, Snapshot};
use sd_notify::NotifyState;
use tokio::time::Instant;

/// Time between two status lines.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Speaks to the service manager.
#[derive(Debug)]
pub struct Notifier {
    /// Time between two signs of life: half of what is allowed.
    alive_every: Option<Duration>,
    alive_at: Option<Instant>,
    status_at: Option<Instant>,
    status: String,
}

impl Default for Notifier {
    fn default() -> Self {
        let alive_every = sd_notify::watchdog_enabled().map(|allowed| allowed / 2);
        Self { alive_every, alive_at: None, status_at: None, status: String::new() }
    }
}

impl Notifier {
    /// A snapshot was published, so the node's lock is to be had.
    pub fn published(&mut self, snapshot: &Snapshot) {
        let now = Instant::now();
        if self.alive_at.is_none() {
            tell(NotifyState::Ready);
        }
        let every = self.alive_every.unwrap_or(Duration::MAX);
        if self.alive_at.is_none_or(|at| now.duration_since(at) >= every) {
            tell(NotifyState::Watchdog);
            self.alive_at = Some(now);
        }
        if self.status_at.is_none_or(|at| now.duration_since(at) >= STATUS_INTERVAL) {
            self.status_at = Some(now);
            self.tell_status(snapshot);
        }
    }

    fn tell_status(&mut self, snapshot: &Snapshot) {
        let status = one_line(snapshot);
        if status != self.status {
            tell(NotifyState::Status(&status));
            self.status = status;
        }
    }
}

/// The daemon stops.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}

fn one_line(snapshot: &Snapshot) -> String {
    let ready = snapshot.engines.iter().filter(|engine| engine.state == EngineState::Ready).count();
    format!(
        "{ready} of {} engines ready, {} devices, {} reservations",
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
        assert_eq!(one_line(&snapshot), "0 of 0 engines ready, 0 devices, 3 reservations");
    }
}
