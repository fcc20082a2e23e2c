//! Records: all that goes into the node and what it decides, in JSON Lines files, so that the decisions of a day can be
//! looked through and [replayed](replay) under another policy. Off by default. No prompt is in them, only its size.
//!
//! The decision path hands a line to a bounded queue and goes on; a thread of its own writes. When the disk is too slow
//! lines are lost, counted, and the gap is marked where it is.

mod fact;
mod files;
mod line;
pub mod replay;
mod request;
mod wire;

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use gpuadmit_core::{
    book::Learned,
    node::Node,
    observation::Observation,
    queue::{Answer, Ticket},
    request::{Completion, Decision, Reference, ReservationId, SessionId},
    units::{Mono, Tokens},
};

pub use self::files::Bounds;
use self::{
    fact::Fact,
    files::Files,
    line::{Admit, Decided, FORMAT, Head, Input, Line, VERSION},
};
use crate::{config::Config, state::Moment};

/// Lines that wait for the disk.
const QUEUE: usize = 16_384;
/// Longest time that a line stays in memory.
const FLUSH: Duration = Duration::from_secs(1);
/// Time given to what is queued when the daemon ends.
const END_GRACE: Duration = Duration::from_millis(500);

/// How the records fare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fares {
    /// Lines lost since start.
    pub lost: u64,
    /// Why nothing is written any more; `None`: it is.
    pub failed: Option<String>,
    /// File being written.
    pub file: String,
}

/// The decision path's end of the queue.
#[derive(Debug)]
pub struct Journal {
    lines: SyncSender<Line>,
    /// Lines lost since the last one that was taken.
    gap: u64,
    lost: Arc<AtomicU64>,
}

/// The writer's end; it ends when its journal is dropped.
#[derive(Debug)]
pub struct Recorder {
    thread: Option<JoinHandle<()>>,
    fares: Arc<Mutex<Fares>>,
    lost: Arc<AtomicU64>,
}

/// Begins to record a run of the daemon that has `config`, `epoch`, and what it took up from an earlier run; `handed_over`: promises
/// were among it, which are in no record.
///
/// # Errors
/// The first file cannot be made.
pub fn begin(
    bounds: Bounds,
    config: &Config,
    epoch: u32,
    learned: Option<Learned>,
    handed_over: bool,
) -> io::Result<(Journal, Recorder)> {
    let head = Head {
        format: FORMAT.into(),
        version: VERSION,
        daemon: env!("CARGO_PKG_VERSION").into(),
        epoch,
        part: 0,
        written: Moment::now(),
        config: config.clone(),
        lengths: learned.map(Into::into),
        handed_over,
    };
    let files = Files::begin(bounds, head)?;
    let file = files.path().display().to_string();
    let fares = Arc::new(Mutex::new(Fares { file, ..Fares::default() }));
    let (sender, receiver) = sync_channel(QUEUE);
    let told = Arc::clone(&fares);
    let thread = std::thread::Builder::new().name("records".into());
    let thread = thread.spawn(move || write(&receiver, files, &told))?;
    let lost = Arc::new(AtomicU64::new(0));
    let journal = Journal { lines: sender, gap: 0, lost: Arc::clone(&lost) };
    Ok((journal, Recorder { thread: Some(thread), fares, lost }))
}

/// Writes until nobody can send any more. After an error nothing more is written: a disk that is full, or a directory
/// that is gone, wants the operator.
fn write(lines: &Receiver<Line>, mut files: Files, fares: &Mutex<Fares>) {
    let mut flush_at = Instant::now() + FLUSH;
    loop {
        let wait = flush_at.saturating_duration_since(Instant::now());
        let written = match lines.recv_timeout(wait) {
            Ok(line) => files.add(line),
            Err(RecvTimeoutError::Timeout) => {
                flush_at = Instant::now() + FLUSH;
                files.flush()
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let mut fares = fares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = written {
            tracing::warn!("records end: cannot write {}: {error}", files.path().display());
            fares.failed = Some(error.to_string());
            return;
        }
        fares.file = files.path().display().to_string();
    }
    if let Err(error) = files.flush() {
        tracing::warn!("records end early: cannot write {}: {error}", files.path().display());
    }
}

impl Recorder {
    /// How the records fare.
    #[must_use]
    pub fn fares(&self) -> Fares {
        let fares = self.fares.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Fares { lost: self.lost.load(Relaxed), ..fares }
    }

    /// Waits a moment until what is queued is written, once the journal is dropped.
    pub fn end(mut self) {
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + END_GRACE;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if thread.is_finished() {
            // A writer that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Journal {
    fn note(&mut self, now: Mono, input: Input) {
        if self.gap > 0 {
            let lines = self.gap;
            if self.lines.try_send(Line { at_ns: now.0, input: Input::Lost { lines } }).is_ok() {
                self.gap = 0;
            }
        }
        if self.gap > 0 || self.lines.try_send(Line { at_ns: now.0, input }).is_err() {
            self.gap = self.gap.saturating_add(1);
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// A fact is about to be taken in.
    pub fn observe(&mut self, now: Mono, observation: &Observation) {
        if let Some(fact) = Fact::of(observation) {
            self.note(now, Input::Fact(Box::new(fact)));
        }
    }

    /// A request was decided on at once by `node`.
    pub fn admit(
        &mut self,
        now: Mono,
        request: &gpuadmit_core::request::Request<'_>,
        decision: &Decision,
        node: &Node,
    ) {
        let decision = Decided::of(decision, node);
        self.note(now, Input::Admit(Box::new(Admit { request: request.into(), may_wait: false, decision })));
    }

    /// A request that might wait was answered by `node`.
    pub fn ask(
        &mut self,
        now: Mono,
        request: &gpuadmit_core::request::Request<'_>,
        answer: &Answer,
        node: &Node,
    ) {
        let decision = Decided::of_answer(answer, node);
        self.note(now, Input::Admit(Box::new(Admit { request: request.into(), may_wait: true, decision })));
    }

    /// A request that waited was answered by `node`.
    pub fn answer(&mut self, now: Mono, ticket: Ticket, decision: &Decision, node: &Node) {
        let decision = Box::new(Decided::of(decision, node));
        self.note(now, Input::Answer { ticket: ticket.0, decision });
    }

    /// Who waited under `ticket` has gone.
    pub fn cancel(&mut self, now: Mono, ticket: Ticket) {
        self.note(now, Input::Cancel { ticket: ticket.0 });
    }

    /// A request has generated tokens.
    pub fn progress(&mut self, now: Mono, of: Reference<'_>, generated: Tokens) {
        self.note(now, Input::Progress { of: of.into(), generated: generated.0 });
    }

    /// A request has ended.
    pub fn complete(&mut self, now: Mono, of: Reference<'_>, completion: Completion) {
        let Completion { outcome, output_tokens, prompt_tokens } = completion;
        let (output, prompt) = (output_tokens.map(|tokens| tokens.0), prompt_tokens.map(|tokens| tokens.0));
        self.note(now, Input::Complete { of: of.into(), outcome: outcome.into(), output, prompt });
    }

    /// A stream broke.
    pub fn broken(&mut self, now: Mono, session: SessionId) {
        self.note(now, Input::Broken { session: session.0 });
    }

    /// A stream took reservations over.
    pub fn adopt(&mut self, now: Mono, session: SessionId, ids: &[ReservationId]) {
        self.note(now, Input::Adopt { session: session.0, ids: ids.iter().map(|id| id.0).collect() });
    }

    /// Another configuration is about to hold.
    pub fn reload(&mut self, now: Mono, config: &Config) {
        self.note(now, Input::Reload(Box::new(config.clone())));
    }

    /// What was due was done.
    pub fn timeout(&mut self, now: Mono) {
        self.note(now, Input::Timeout {});
    }
}
