//! The journal: log lines and events as entries with fields, over a socket that nobody waits for long.

use std::{
    fmt, io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuadmit_core::{event::Event, snapshot::Snapshot, units::Mono};
use tokio::time::sleep;
use tracing::{Subscriber, field::Field};
use tracing_subscriber::{field::Visit, layer::Context};

use super::{
    entry::{Entry, Priority},
    message_id,
};
use crate::clock;

/// Most models that an entry names.
const MOST_MODELS: usize = 8;
/// Longest wait for a journal that is busy: the kernel queues but a few entries (net.unix.max_dgram_qlen).
const PATIENCE: Duration = Duration::from_millis(10);
/// A journal that took nothing in that time is left alone for this one, so that it delays nobody.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait with an event, and time between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);

/// The journal's socket. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: UnixDatagram,
    path: PathBuf,
    /// Entries that it did not take.
    lost: AtomicU64,
    /// It is left alone until then, [`Mono`] nanoseconds.
    alone_until: AtomicU64,
}

impl Journal {
    /// The journal that listens at `path`.
    ///
    /// # Errors
    /// None listens there.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        // It throws an empty datagram away.
        socket.send_to(&[], path)?;
        let (path, lost, alone_until) = (path.to_owned(), AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self(Arc::new(Inner { socket, path, lost, alone_until })))
    }

    /// Hands over an entry; false where the journal is full or away.
    fn hand_over(&self, entry: &Entry) -> bool {
        let Inner { socket, path, alone_until, .. } = &*self.0;
        let now = clock::now();
        if now < Mono(alone_until.load(Ordering::Relaxed)) {
            return false;
        }
        let taken = socket.send_to(entry.bytes(), path).is_ok();
        if !taken {
            alone_until.store((now + PAUSE).0, Ordering::Relaxed);
        }
        taken
    }

    /// Writes an entry, or counts it as lost.
    pub(super) fn write(&self, entry: &Entry) {
        if !self.hand_over(entry) {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes an entry, for who can wait: tries again for [`LONGEST_WAIT`] before it counts as lost.
    async fn write_later(&self, entry: &Entry) {
        let start = clock::now();
        while !self.hand_over(entry) {
            if clock::now().since(start) >= LONGEST_WAIT {
                self.0.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            sleep(RETRY).await;
        }
    }

    /// Entries that were lost since this was last asked.
    pub(super) fn take_lost(&self) -> u64 {
        self.0.lost.swap(0, Ordering::Relaxed)
    }

    /// Writes an event. Models of its engine are those of `snapshot`.
    pub(super) async fn event(&self, event: &Event, snapshot: &Snapshot) {
        let kind = event.kind.as_str();
        let mut entry = Entry::new(event.kind.severity().into(), &format!("{kind}: {}", event.message));
        entry.add("MESSAGE_ID", message_id::of(event.kind));
        entry.add("EVENT", kind);
        entry.add("EVENT_CURSOR", &event.cursor.to_string());
        if let Some(first) = event.caused_by {
            entry.add("CAUSED_BY", &first.to_string());
        }
        if let Some(cause) = event.cause {
            entry.add("CAUSE", cause.as_str());
        }
        if let Some(device) = &event.device {
            entry.add("DEVICE_UUID", device);
        }
        if let Some(engine) = &event.engine {
            entry.add("ENGINE", engine);
            let known = snapshot.engines.iter().find(|known| known.engine == *engine);
            let models = known.iter().flat_map(|known| &known.models).take(MOST_MODELS);
            models.for_each(|model| entry.add("MODEL", model));
        }
        self.write_later(&entry).await;
    }

    /// Writes that `count` entries are missing, of the kind `what`.
    pub(super) async fn left_out(&self, count: u64, what: &str) {
        let mut entry = Entry::new(Priority::Warning, &format!("{count} entries are missing here: {what}"));
        entry.add("MESSAGE_ID", message_id::LEFT_OUT);
        entry.add("LEFT_OUT", &count.to_string());
        self.write_later(&entry).await;
    }
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Journal {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let about = event.metadata();
        let mut entry = Entry::new(about.level().into(), &line.text());
        entry.add("TARGET", about.target());
        if let (Some(file), Some(number)) = (about.file(), about.line()) {
            entry.add("CODE_FILE", file);
            entry.add("CODE_LINE", &number.to_string());
        }
        line.fields.iter().for_each(|(name, value)| entry.add(name, value));
        self.write(&entry);
    }
}

/// A log line as it is read from what is logged.
#[derive(Default)]
struct Line {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Line {
    /// The message with the fields behind it: `journalctl` shows no others.
    fn text(&self) -> String {
        let named = self.fields.iter().map(|(name, value)| format!(" {name}={value}"));
        self.message.clone() + &named.collect::<String>()
    }

    fn take(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            name => self.fields.push((name, value)),
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_takes_nothing_loses_entries_and_delays_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        assert!(Journal::at(&path).is_err(), "nobody listens");
        let listener = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(&path).unwrap();
        let entry = Entry::new(Priority::Warning, "a storm");
        // Waiting for each would take 1,000 times 10 ms.
        let start = clock::now();
        (0..1000).for_each(|_| journal.write(&entry));
        assert!(clock::now().since(start) < Duration::from_secs(5));
        listener.set_nonblocking(true).unwrap();
        let mut taken = 0;
        while let Ok(length) = listener.recv(&mut [0; 256]) {
            taken += u64::from(length > 0);
        }
        assert!(taken > 0);
        assert_eq!(taken + journal.take_lost(), 1000);
        assert_eq!(journal.take_lost(), 0);
    }
    #[tokio::test]
    async fn an_event_waits_for_a_journal_that_is_busy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let listener = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(&path).unwrap();
        let entry = Entry::new(Priority::Critical, "an event");
        while journal.hand_over(&entry) {}
        let reader = std::thread::spawn(move || {
            std::thread::sleep(RETRY * 3);
            let mut taken = 0_u64;
            listener.set_read_timeout(Some(PAUSE * 5)).unwrap();
            while let Ok(length) = listener.recv(&mut [0; 256]) {
                taken += u64::from(length > 0);
            }
            taken
        });
        let before = clock::now();
        journal.write_later(&entry).await;
        assert!(clock::now().since(before) >= RETRY, "it was busy");
        assert_eq!(journal.take_lost(), 0);
        assert!(reader.join().unwrap() > 1);
    }
}
