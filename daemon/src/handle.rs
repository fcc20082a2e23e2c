//! The one place that locks the node. Lock first, then read the clock, so that time never runs backwards inside; no
//! await and no I/O under the lock.
//!
//! Two tasks belong to a handle: [`Handle::run_timeouts`] does what falls due, [`Handle::publish`] builds snapshots at
//! a bounded rate. Everything else is a direct call: checking and reserving is one atomic step without a scheduler hop.

mod locked;
mod waiting;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuadmit_core::{
    book::Learned,
    count::{Bounds, TextSize},
    event::Event,
    explain::Record,
    guard,
    node::{Completed, Node, Standing},
    observation::Observation,
    queue::{Answer, Ticket},
    report::EngineReport,
    request::{
        Completion, Decision, Outcome, Prompt, Reference, Request, RequestError, ReservationId, SessionId,
        Verdict,
    },
    settings::Settings,
    snapshot::Snapshot,
    units::{Mono, Tokens},
};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::{MissedTickBehavior, interval, sleep},
};

use self::locked::Locked;
pub use self::waiting::{Asked, Waiting};
use crate::{
    clock,
    config::Config,
    metrics::Timings,
    page,
    promises::{self, Left},
    records::Journal,
    source::Observe,
};

/// Shortest sleep until something falls due: a node that is for ever due does not spin.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// A decision and where its reservation stands now (`None`: none was made).
pub type Explained = (Record, Option<Standing>);

/// The node, shared. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    node: Mutex<Locked>,
    sessions: AtomicU64,
    /// An earlier timeout than the one slept for has come up.
    sooner: Notify,
    /// Cursor of the newest event.
    newest_event: watch::Sender<u64>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    timings: Timings,
}

impl Handle {
    /// A handle on an empty node; reservation ids carry the lower 24 bits of `epoch`.
    #[must_use]
    pub fn new(settings: Settings, epoch: u32) -> Self {
        let mut node = Node::new(settings, epoch);
        let first = Arc::new(node.snapshot(clock::now()));
        Self(Arc::new(Shared {
            node: Mutex::new(Locked::new(node)),
            sessions: AtomicU64::new(1),
            sooner: Notify::new(),
            newest_event: watch::Sender::new(0),
            snapshots: watch::Sender::new(first),
            timings: Timings::default(),
        }))
    }

    /// Shows on `page` from now on what each call changes; `None`: on none any more.
    pub fn show_on(&self, page: Option<page::Writer>) {
        let mut locked = self.lock();
        let old = std::mem::replace(&mut locked.page, page);
        locked.refresh(clock::now());
        drop(locked);
        drop(old);
    }

    /// What was learned, for the next run.
    #[must_use]
    pub fn learned(&self) -> Learned {
        self.with(|node, _| node.learned())
    }

    /// Takes up what an earlier run had learned.
    pub fn take_up(&self, learned: Learned) {
        self.with(|node, _| node.take_up(learned));
    }

    /// Takes over what earlier runs promised, and keeps promises in `writer` from now on.
    pub fn keep_promises(&self, left: Left, writer: Option<promises::Writer>) {
        self.with_locked(|locked, now| {
            locked.node.take_over(now, left.promises, left.first_epoch);
            locked.promises = writer;
        });
    }

    /// Records from now on what goes in and what is decided; `None`: no more.
    pub fn record_in(&self, journal: Option<Journal>) {
        self.lock().journal = journal;
    }

    /// The settings of `config` hold from now on.
    pub fn reconfigure(&self, config: &Config) {
        self.with_journal(|node, journal, now| {
            if let Some(journal) = journal {
                journal.reload(now, config);
            }
            node.reconfigure(now, config.settings());
        });
    }

    /// Takes in a fact.
    pub fn observe(&self, observation: Observation) {
        self.with_journal(|node, journal, now| {
            if let Some(journal) = journal {
                journal.observe(now, &observation);
            }
            node.observe(now, observation);
        });
    }

    /// [`Self::observe`] for a source to call.
    #[must_use]
    pub fn observer(&self) -> Observe {
        let handle = self.clone();
        Arc::new(move |observation| handle.observe(observation))
    }

    /// What a request's prompt counts as, without counting it.
    ///
    /// # Errors
    /// Bounds between which the decision depends on how many tokens there really are.
    pub fn settle_count(&self, request: &Request<'_>) -> Result<Prompt, Bounds> {
        self.with(|node, now| node.settle_count(now, request))
    }

    /// A text sent to `model` was counted exactly.
    pub fn counted(&self, model: &str, text: &TextSize, tokens: Tokens) {
        self.with(|node, _| node.counted(model, text, tokens));
    }

    /// Decides on a request, which waits for room as long as it says.
    ///
    /// # Errors
    /// The caller's mistakes; a denial is a [`Decision`].
    pub fn ask(&self, request: &Request<'_>) -> Result<Asked, RequestError> {
        let since = clock::now();
        let asked = self.ask_since(since, request);
        self.0.timings.asked(clock::now().since(since));
        asked
    }

    fn ask_since(&self, since: Mono, request: &Request<'_>) -> Result<Asked, RequestError> {
        let (ticket, answer) = match self.with_locked(|locked, now| {
            let answer = locked.node.admit_or_wait(now, request)?;
            if let Some(journal) = &mut locked.journal {
                journal.ask(now, request, &answer, &locked.node);
            }
            Ok(match answer {
                Answer::Decided(decision) => {
                    locked.keep(&decision);
                    Err(decision)
                }
                Answer::Wait(ticket) => {
                    let (sender, answer) = oneshot::channel();
                    locked.waiting.insert(ticket, sender);
                    Ok((ticket, answer))
                }
            })
        })? {
            Ok(place) => place,
            Err(decision) => return Ok(Asked::Now(decision)),
        };
        Ok(Asked::Later(Waiting::new(self.clone(), ticket, answer, since)))
    }

    /// Decides on a request at once, however long it would wait.
    ///
    /// # Errors
    /// The caller's mistakes; a denial is a [`Decision`].
    pub fn admit(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        let since = clock::now();
        let admitted = self.with_locked(|locked, now| {
            let decision = locked.node.admit(now, request)?;
            if let Some(journal) = &mut locked.journal {
                journal.admit(now, request, &decision, &locked.node);
            }
            locked.keep(&decision);
            Ok(decision)
        });
        self.0.timings.asked(clock::now().since(since));
        admitted
    }

    /// A request has generated tokens. Returns its new lease; `None` when it is not held.
    #[must_use]
    pub fn progress(&self, of: Reference<'_>, generated: Tokens) -> Option<Duration> {
        self.with_journal(|node, journal, now| {
            if let Some(journal) = journal {
                journal.progress(now, of, generated);
            }
            node.progress(now, of, generated)
        })
    }

    /// A request has ended.
    #[must_use]
    pub fn complete(&self, of: Reference<'_>, completion: Completion) -> Completed {
        self.with_locked(|Locked { node, journal, promises, .. }, now| {
            if let Some(journal) = journal {
                journal.complete(now, of, completion);
            }
            if let (Some(promises), Some(id)) = (promises, node.resolve(of)) {
                promises.end(id);
            }
            node.complete(now, of, completion)
        })
    }

    /// Who waited under `ticket` has gone.
    fn cancel(&self, ticket: Ticket) {
        self.with_locked(|locked, now| {
            locked.waiting.remove(&ticket);
            if let Some(journal) = &mut locked.journal {
                journal.cancel(now, ticket);
            }
            locked.node.cancel(now, ticket);
        });
    }

    /// Gives back what `decision` granted to a caller that has gone.
    pub(crate) fn give_up(&self, decision: &Decision) {
        if let Verdict::Admit(admit) = &decision.verdict {
            let outcome = Outcome::NotSent;
            let _ = self.complete(
                Reference::Id(admit.reservation),
                Completion { outcome, output_tokens: None, prompt_tokens: None },
            );
        }
    }

    /// What was decided in the last `hours` hours, and how the engines fared.
    #[must_use]
    pub fn report(&self, hours: usize) -> Vec<EngineReport> {
        self.with(|node, now| node.report(now, hours))
    }

    /// How long decisions and waits take.
    pub(crate) fn timings(&self) -> &Timings {
        &self.0.timings
    }

    /// A name for a new stream, unique in this run of the daemon.
    #[must_use]
    pub fn new_session(&self) -> SessionId {
        SessionId(self.0.sessions.fetch_add(1, Ordering::Relaxed))
    }

    /// A stream broke: its reservations become orphans.
    pub fn session_broken(&self, session: SessionId) {
        self.with_journal(|node, journal, now| {
            if let Some(journal) = journal {
                journal.broken(now, session);
            }
            node.session_broken(now, session);
        });
    }

    /// A stream takes over reservations of one that broke. Returns those still held, in the order asked.
    #[must_use]
    pub fn adopt(&self, session: SessionId, ids: &[ReservationId]) -> Vec<ReservationId> {
        self.with_journal(|node, journal, now| {
            if let Some(journal) = journal {
                journal.adopt(now, session, ids);
            }
            node.adopt(now, session, ids)
        })
    }

    /// Learned guards that hold.
    #[must_use]
    pub fn guards(&self) -> Vec<guard::Held> {
        self.with(|node, now| node.guards(now))
    }

    /// Lifts the learned guards of `engine`, or all; returns how many.
    #[must_use]
    pub fn clear_guards(&self, engine: Option<&str>) -> usize {
        self.with(|node, now| node.clear_guards(now, engine))
    }

    /// The guards, for the next run.
    #[must_use]
    pub fn keep_guards(&self) -> guard::Kept {
        self.with(|node, now| node.keep_guards(now))
    }

    /// Takes up the guards of an earlier run.
    pub fn take_up_guards(&self, kept: guard::Kept) {
        self.with(|node, now| node.take_up_guards(now, kept));
    }

    /// The newest `most` decisions, newest first.
    #[must_use]
    pub fn explain_newest(&self, most: usize) -> Vec<Explained> {
        self.with(|node, _| node.records().newest(most).map(|record| explained(node, record)).collect())
    }

    /// The decision behind a reservation; `None` when its record is no longer kept.
    #[must_use]
    pub fn explain(&self, of: Reference<'_>) -> Option<Explained> {
        self.with(|node, _| {
            let record = node.records().of(node.resolve(of)?)?;
            Some(explained(node, record))
        })
    }

    /// Ids of the engines, as of now.
    #[must_use]
    pub fn engine_ids(&self) -> Vec<Arc<str>> {
        self.with(|node, _| node.engine_ids().cloned().collect())
    }

    /// Cursor of the newest event, as of now.
    #[must_use]
    pub fn last_event(&self) -> u64 {
        self.with(|node, _| node.history().newest())
    }

    /// Whether the reservation was given out, by this run or an earlier one, whatever became of it.
    #[must_use]
    pub fn gave(&self, of: Reference<'_>) -> bool {
        self.with(|node, _| node.resolve(of).is_some_and(|id| node.gave(id)))
    }

    /// Events behind `cursor`, oldest first, at most `most`, and how many behind it are forgotten.
    #[must_use]
    pub fn events_after(&self, cursor: u64, most: usize) -> (Vec<Event>, u64) {
        self.with(|node, _| node.history().after(cursor, most))
    }

    /// Cursor of the newest event, to wait on.
    #[must_use]
    pub fn newest_event(&self) -> watch::Receiver<u64> {
        self.0.newest_event.subscribe()
    }

    /// The last published snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.snapshots.borrow())
    }

    /// Snapshots as they are published.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.0.snapshots.subscribe()
    }

    /// Publishes a snapshot now and then every `every`, for ever; calls `published` after each. It takes the node's
    /// lock each time, so that a daemon that goes on publishing is one that still answers.
    pub async fn publish(self, every: Duration, mut published: impl FnMut(&Snapshot)) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let snapshot = Arc::new(self.lock().refresh(clock::now()));
            published(&snapshot);
            self.0.snapshots.send_replace(snapshot);
        }
    }

    /// Does what falls due in the node, for ever.
    pub async fn run_timeouts(self) {
        loop {
            let due = self.arm();
            let due_or_sooner = async {
                match due {
                    Some(wait) => sleep(wait.max(SHORTEST_SLEEP)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due_or_sooner => self.time_out(),
                () = self.0.sooner.notified() => {}
            }
        }
    }

    fn time_out(&self) {
        self.with_journal(|node, journal, now| {
            if let Some(journal) = journal {
                journal.timeout(now);
            }
            node.handle_timeout(now);
        });
    }

    /// Notes what is slept for, and returns for how long; `None`: nothing is due.
    fn arm(&self) -> Option<Duration> {
        let mut locked = self.lock();
        locked.armed = locked.node.poll_timeout();
        locked.armed.map(|due| due.since(clock::now()))
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.0.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Node, Mono) -> T) -> T {
        self.with_locked(|locked, now| work(&mut locked.node, now))
    }

    /// [`Self::with`] for what is recorded.
    fn with_journal<T>(&self, work: impl FnOnce(&mut Node, Option<&mut Journal>, Mono) -> T) -> T {
        self.with_locked(|Locked { node, journal, .. }, now| work(node, journal.as_mut(), now))
    }

    /// Runs `work` on the node; then, without the lock, wakes those for whom it changed something.
    fn with_locked<T>(&self, work: impl FnOnce(&mut Locked, Mono) -> T) -> T {
        let mut locked = self.lock();
        let now = clock::now();
        let before = locked.node.history().newest();
        let result = work(&mut locked, now);
        locked.show(now);
        let newest = locked.node.history().newest();
        let sooner =
            locked.node.poll_timeout().is_some_and(|due| locked.armed.is_none_or(|armed| due < armed));
        let answers = locked.answers(now);
        drop(locked);
        if sooner {
            self.0.sooner.notify_one();
        }
        if newest != before {
            self.0.newest_event.send_if_modified(|seen| raise(seen, newest));
        }
        for (waiting, decision) in answers {
            if let Err(decision) = waiting.send(decision) {
                self.give_up(&decision);
            }
        }
        result
    }
}

fn explained(node: &Node, record: &Record) -> Explained {
    (record.clone(), record.reservation.map(|id| node.standing(id)))
}

/// Two threads may come here in the other order than they held the lock: a cursor only ever grows.
fn raise(seen: &mut u64, newest: u64) -> bool {
    let grew = newest > *seen;
    *seen = newest.max(*seen);
    grew
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// The watchdog is fed by what is published.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_published_while_the_lock_is_stuck() {
        let handle = Handle::new(Settings::default(), 1);
        let published = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&published);
        let count = move || published.load(Ordering::SeqCst);
        let publishing = handle.clone().publish(Duration::from_millis(1), move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let publishing = tokio::spawn(publishing);
        let more_than = async |least: u32| {
            while count() <= least {
                sleep(Duration::from_millis(1)).await;
            }
        };
        more_than(0).await;
        let (locked, stuck) = std::sync::mpsc::channel();
        let (free, freed) = std::sync::mpsc::channel();
        let holder = handle.clone();
        let holder = std::thread::spawn(move || {
            let _lock = holder.lock();
            locked.send(()).unwrap();
            freed.recv().unwrap();
        });
        stuck.recv().unwrap();
        // One may have been taken before and be told now. By the thread's own sleep: the worker that waits for the lock
        // may be the one that keeps the runtime's time.
        std::thread::sleep(Duration::from_millis(20));
        let before = count();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(count(), before);
        free.send(()).unwrap();
        more_than(before).await;
        publishing.abort();
        holder.join().unwrap();
    }
}
