//! What the service manager is told (sd_notify(3)): ready at the first snapshot, alive with those that follow, and how
//! things stand in one line. Without a service manager it is told nothing.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
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
/// Longest wait for a service manager whose queue is full.
const PATIENCE: Duration = Duration::from_millis(10);
/// Time until a service manager that could not be reached is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two lines that say so.
const COMPLAIN_EVERY: Duration = Duration::from_mins(10);

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
    trouble: Trouble,
}

/// What became of the messages to a service manager that cannot be reached.
#[derive(Debug, Default)]
struct Trouble {
    retry_at: Option<Instant>,
    complained_at: Option<Instant>,
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
        Self {
            alive_every,
            ready: false,
            alive_at: None,
            status_at: None,
            status: String::new(),
            remark,
            trouble: Trouble::default(),
        }
    }

    /// A snapshot was published, so the node's lock is to be had.
    pub fn published(&mut self, snapshot: &Snapshot) {
        let now = Instant::now();
        if self.trouble.retry_at.is_some_and(|at| now < at) {
            return;
        }
        match self.send_news(now, snapshot) {
            Ok(()) => self.trouble.retry_at = None,
            Err(error) => self.trouble.add(now, &error),
        }
    }

    fn send_news(&mut self, now: Instant, snapshot: &Snapshot) -> io::Result<()> {
        if !self.ready {
            send(&[NotifyState::Ready])?;
            self.ready = true;
        }
        let every = self.alive_every.unwrap_or(Duration::MAX);
        if self.alive_at.is_none_or(|at| now.duration_since(at) >= every) {
            send(&[NotifyState::Watchdog])?;
            self.alive_at = Some(now);
        }
        if self.status_at.is_none_or(|at| now.duration_since(at) >= STATUS_INTERVAL) {
            self.status_at = Some(now);
            let status = one_line(snapshot, &self.remark.text());
            if status != self.status {
                send(&[NotifyState::Status(&status)])?;
                self.status = status;
            }
        }
        Ok(())
    }
}

impl Trouble {
    fn add(&mut self, now: Instant, error: &io::Error) {
        self.retry_at = Some(now + RETRY);
        if self.complained_at.is_none_or(|at| now.duration_since(at) >= COMPLAIN_EVERY) {
            self.complained_at = Some(now);
            complain(error);
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

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = send(states) {
        complain(&error);
    }
}

fn complain(error: &io::Error) {
    let socket = env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    tracing::warn!(%error, ?socket, "cannot tell the service manager how things stand");
}

/// Sends states to `NOTIFY_SOCKET`. Without it, nobody wants to know.
fn send(states: &[NotifyState<'_>]) -> io::Result<()> {
    let Some(socket) = env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else {
        return Ok(());
    };
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    let datagram = UnixDatagram::unbound()?;
    datagram.set_write_timeout(Some(PATIENCE))?;
    datagram.send_to_addr(message.as_bytes(), &address(&socket)?).map(drop)
}

/// The address in `NOTIFY_SOCKET`: a path, or `@` and an abstract name (sd_notify(3)).
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(socket),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "it is neither a path nor @ with an abstract name",
        )),
    }
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
