//! What is known of the end of one engine's processes.
//!
//! Its facts come from several threads, in any order. Each is filed under the time at which it happened, so that what is
//! known, and with it the [verdict](crate::verdict), does not depend on which arrived first.
//!
//! ```text
//!            fatal signal               exit, or gone               window over
//!   no case ─────────────▶ unconfirmed ─────────────▶ confirmed ───────────────▶ told, once
//!                               │ lives on after all
//!                               ▼
//!                             no case
//! ```

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use crate::{
    observation::{EngineProcess, OomScope, ProcessRole, Resident, Sender},
    omen::{Omen, Omens},
    units::{Bytes, Mono},
    verdict::{SIGABRT, SIGBUS, SIGKILL, SIGSEGV, SIGTERM},
    xid,
};

/// Wait for further facts once a death is certain and its author has been named: an OOM kill in a memory cgroup is a
/// signal, a mark and an exit within milliseconds of each other.
pub(crate) const VERDICT_WINDOW: Duration = Duration::from_millis(250);
/// Wait for the kernel's word where an engine was only found to be gone: on a machine without a free core a refused
/// connection may be noticed first. Admission is closed meanwhile.
pub(crate) const UNSEEN_WINDOW: Duration = Duration::from_secs(2);
/// A process that was sent a fatal signal which it may handle, and has not ended by then, may have survived it.
pub(crate) const SURVIVAL_BOUND: Duration = Duration::from_secs(2);
/// SIGKILL cannot be handled, but a process with much memory takes long to end.
pub(crate) const KILL_BOUND: Duration = Duration::from_secs(10);
/// Without an exit or a sign of life by then, nobody knows: requests are let through one at a time. A kernel source that
/// lags is waited for no longer either.
pub(crate) const UNCONFIRMED_BOUND: Duration = Duration::from_secs(15);
/// A request to stop explains the end of a process that follows within this time.
pub(crate) const STOP_REACH: Duration = Duration::from_mins(10);
/// Most former processes that are kept; the oldest makes room.
const MAX_FORMER: usize = 64;

/// One of an engine's own processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Who {
    pub(crate) pid: u32,
    pub(crate) role: ProcessRole,
}

impl Who {
    pub(crate) const fn of(process: &EngineProcess) -> Self {
        Self { pid: process.pid, role: process.role }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its {} (pid {})", self.role.as_str(), self.pid)
    }
}

/// When a fact happened, and when it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct When {
    pub(crate) at: Mono,
    pub(crate) arrived: Mono,
}

/// What to do about a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    /// Close: the sentence says why, until there is a verdict. Others of its processes may still answer.
    Close(String),
    /// Nothing of it answers any more: whoever answers next is another life.
    Gone(String),
    /// It will stop: no new requests.
    Drain(String),
}

/// A signal that was sent to a process.
#[derive(Clone, Debug)]
pub(crate) struct Signalled {
    pub(crate) at: Mono,
    pub(crate) who: Who,
    pub(crate) number: i32,
    pub(crate) code: i32,
    pub(crate) sender: Sender,
    /// The sender is one of the engine's own processes.
    pub(crate) own: bool,
}

impl Signalled {
    pub(crate) fn from(&self) -> String {
        match &*self.sender.comm {
            "" => format!("pid {}", self.sender.pid),
            comm => format!("{comm} (pid {})", self.sender.pid),
        }
    }
}

/// A process that the OOM killer chose.
#[derive(Clone, Debug)]
pub(crate) struct Marked {
    pub(crate) at: Mono,
    pub(crate) who: Who,
    pub(crate) scope: Option<OomScope>,
    pub(crate) resident: Option<Resident>,
}

/// The end of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exited {
    pub(crate) at: Mono,
    pub(crate) who: Who,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

impl Exited {
    /// Whether this one began the engine's end rather than `other`: the earlier one, or else the one that says more.
    fn before(&self, other: &Self) -> bool {
        let order = |one: &Self| (one.at, one.code.is_none() && one.signal.is_none(), one.who);
        order(self) < order(other)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// When the first of its facts happened.
    pub(crate) since: Mono,
    /// Arrival of the first fact by which the death was certain.
    confirmed: Option<Mono>,
    /// Arrival of the first fact that names an author.
    named: Option<Mono>,
    told: bool,
    in_flight: u64,
}

/// All that is known of the end of one engine's processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inquest {
    /// The first of the requests to stop.
    pub(crate) stop: Option<Signalled>,
    /// The first fatal signal.
    pub(crate) fatal: Option<Signalled>,
    /// The first process to end.
    pub(crate) exited: Option<Exited>,
    /// What was said by those who found it gone.
    pub(crate) evidence: Option<String>,
    pub(crate) xids: Omens<(u64, Arc<str>)>,
    pub(crate) failures: Omens<(Who, Option<Bytes>)>,
    pub(crate) case: Option<Case>,
    /// Processes that the OOM killer chose, by pid; only own ones, former ones included.
    marks: BTreeMap<u32, Marked>,
    /// When an allocation that had failed last succeeded after all, by pid; likewise.
    recovered: BTreeMap<u32, Mono>,
    /// Its processes that are no longer listed: facts about these may still arrive.
    former: Vec<EngineProcess>,
}

impl Inquest {
    /// A signal was sent to `who`.
    pub(crate) fn signal(
        &mut self,
        when: When,
        who: Who,
        (number, code): (i32, i32),
        sender: Sender,
        own: bool,
    ) -> Effect {
        let signalled = Signalled { at: when.at, who, number, code, sender, own };
        match number {
            SIGTERM => self.stop(signalled),
            SIGKILL | SIGSEGV | SIGABRT | SIGBUS => {
                let why = format!("{who} was sent {} by {}", name(number), signalled.from());
                if self.fatal.as_ref().is_none_or(|known| (when.at, who) < (known.at, known.who)) {
                    self.fatal = Some(signalled);
                }
                self.name(when);
                Effect::Close(why)
            }
            _ => Effect::Nothing,
        }
    }

    /// The first request to stop counts, unless it was so long ago that it was survived.
    fn stop(&mut self, asked: Signalled) -> Effect {
        let why = format!("{} was sent SIGTERM by {}", asked.who, asked.from());
        let survived = |known: &Signalled| asked.at.since(known.at) > STOP_REACH;
        let news = self.stop.as_ref().is_none_or(survived);
        if news || self.stop.as_ref().is_some_and(|known| asked.at < known.at) {
            self.stop = Some(asked);
        }
        if news && self.case.is_none() { Effect::Drain(why) } else { Effect::Nothing }
    }

    /// The OOM killer chose `who`.
    pub(crate) fn marked(
        &mut self,
        when: When,
        who: Who,
        scope: Option<OomScope>,
        resident: Option<Resident>,
    ) -> Effect {
        let new = Marked { at: when.at, who, scope: None, resident: None };
        let known = self.marks.entry(who.pid).or_insert(new);
        known.at = known.at.min(when.at);
        known.scope = scope.or(known.scope.take());
        known.resident = resident.or(known.resident);
        self.name(when);
        Effect::Close(format!("the kernel's OOM killer chose {who}"))
    }

    /// The first process that the OOM killer chose. The kernel says only of one whose memory ran out.
    pub(crate) fn first_mark(&self) -> Option<Marked> {
        let first = self.marks.values().min_by_key(|mark| mark.at)?.clone();
        let scope = || self.marks.values().find_map(|mark| mark.scope.clone());
        Some(Marked { scope: first.scope.or_else(scope), ..first })
    }

    /// `who` ended.
    pub(crate) fn exited(&mut self, when: When, who: Who, code: Option<i32>, signal: Option<i32>) -> Effect {
        let exited = Exited { at: when.at, who, code, signal };
        if self.exited.is_none_or(|known| exited.before(&known)) {
            self.exited = Some(exited);
        }
        self.confirm(when);
        // SIGKILL says how, but not who sent it.
        if code.is_some() || signal.is_some_and(|signal| signal != SIGKILL) {
            self.name(when);
        }
        Effect::Close(format!("{who} {}", manner(code, signal)))
    }

    /// One of its processes was found missing.
    pub(crate) fn missing(&mut self, now: Mono, role: ProcessRole) -> Effect {
        Effect::Close(
            self.found(now, format!("its {} process is gone; how it ended was not seen", role.as_str())),
        )
    }

    /// Somebody found that all of it is gone.
    pub(crate) fn gone(&mut self, now: Mono, evidence: String) -> Effect {
        Effect::Gone(self.found(now, evidence))
    }

    fn found(&mut self, now: Mono, evidence: String) -> String {
        self.evidence.get_or_insert_with(|| evidence.clone());
        self.confirm(When { at: now, arrived: now });
        evidence
    }

    /// The driver reported an error on a device that the engine holds; `event` told it.
    pub(crate) fn xid(&mut self, at: Mono, code: u64, device: Arc<str>, event: u64) {
        if xid::class(code).ends_processes() {
            self.xids.note(Omen { at, event, what: (code, device) });
        }
    }

    /// An allocation of its own failed; `event` told it.
    pub(crate) fn allocation_failed(&mut self, at: Mono, who: Who, requested: Option<Bytes>, event: u64) {
        self.failures.note(Omen { at, event, what: (who, requested) });
    }

    /// `who` tried again and succeeded: it will not die of what failed before. Returns the event that told the failure.
    pub(crate) fn allocation_succeeded(&mut self, at: Mono, who: Who) -> Option<u64> {
        let failed = self.failures.newest(|failed| failed.what.0 == who && !self.recovered(failed));
        let event = failed.filter(|failed| failed.at <= at).map(|failed| failed.event);
        let last = self.recovered.entry(who.pid).or_insert(at);
        *last = at.max(*last);
        event
    }

    /// Whether the process got after all what it was refused.
    pub(crate) fn recovered(&self, failed: &Omen<(Who, Option<Bytes>)>) -> bool {
        self.recovered.get(&failed.what.0.pid).is_some_and(|at| failed.at <= *at)
    }

    /// It has `now` these processes instead of those of `before`.
    pub(crate) fn follow_processes(&mut self, before: &[EngineProcess], now: &[EngineProcess]) {
        self.former.retain(|process| !now.contains(process));
        self.former.extend(before.iter().filter(|process| !now.contains(process)));
        self.former.drain(..self.former.len().saturating_sub(MAX_FORMER));
    }

    /// Its processes that are no longer listed.
    pub(crate) fn former(&self) -> &[EngineProcess] {
        &self.former
    }

    fn open(&mut self, when: When) -> &mut Case {
        let new = Case { since: when.at, confirmed: None, named: None, told: false, in_flight: 0 };
        let case = self.case.get_or_insert(new);
        case.since = case.since.min(when.at);
        case
    }

    fn confirm(&mut self, when: When) {
        self.open(when).confirmed.get_or_insert(when.arrived);
    }

    fn name(&mut self, when: When) {
        self.open(when).named.get_or_insert(when.arrived);
    }

    /// Notes which sizes of prompts were in flight when it was closed.
    pub(crate) fn note_in_flight(&mut self, classes: u64) {
        if let Some(case) = &mut self.case {
            case.in_flight |= classes;
        }
    }

    /// Whether a fatal signal has closed it and no exit confirmed that.
    pub(crate) fn unconfirmed(&self) -> bool {
        self.case.is_some_and(|case| case.confirmed.is_none())
    }

    /// Whether there is a case without a verdict.
    pub(crate) fn is_open(&self) -> bool {
        self.case.is_some_and(|case| !case.told)
    }

    /// Whether a process seen alive at `now` has survived its signal.
    pub(crate) fn survives(&self, now: Mono, pid: u32) -> bool {
        let Some(fatal) = self.fatal.as_ref().filter(|fatal| self.unconfirmed() && fatal.who.pid == pid)
        else {
            return false;
        };
        let bound = if fatal.number == SIGKILL { KILL_BOUND } else { SURVIVAL_BOUND };
        now.since(fatal.at) > bound
    }

    /// Whether neither an exit nor a sign of life came in time.
    pub(crate) fn undecided(&self, now: Mono) -> bool {
        self.unconfirmed() && self.case.is_some_and(|case| now.since(case.since) > UNCONFIRMED_BOUND)
    }

    /// When the verdict is due; `None`: there is none to tell. The kernel has told all that happened before `heard`;
    /// `None`: it tells nothing.
    pub(crate) fn due(&self, heard: Option<Mono>) -> Option<Mono> {
        let case = self.case.filter(|case| !case.told)?;
        let confirmed = case.confirmed?;
        if let Some(named) = case.named {
            return Some(named.max(confirmed) + VERDICT_WINDOW);
        }
        let lags = heard.is_some_and(|heard| heard < confirmed);
        Some(
            confirmed
                + match self.exited {
                    Some(_) if !lags => VERDICT_WINDOW,
                    None if lags => UNCONFIRMED_BOUND,
                    _ => UNSEEN_WINDOW,
                },
        )
    }

    /// Closes the case when its verdict is due, or `at_once`. Returns which sizes of prompts were in flight.
    pub(crate) fn close(&mut self, now: Mono, heard: Option<Mono>, at_once: bool) -> Option<u64> {
        let due = self.due(heard)?;
        if now < due && !at_once {
            return None;
        }
        let case = self.case.as_mut()?;
        case.told = true;
        Some(case.in_flight)
    }
}

pub(crate) fn manner(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (_, Some(signal)) => format!("was ended by {}", name(signal)),
        (Some(code), None) => format!("exited with code {code}"),
        (None, None) => "ended; how was not seen".into(),
    }
}

/// Name of a signal.
pub(crate) fn name(number: i32) -> String {
    let known = match number {
        SIGABRT => "SIGABRT",
        SIGBUS => "SIGBUS",
        SIGKILL => "SIGKILL",
        SIGSEGV => "SIGSEGV",
        SIGTERM => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    known.into()
}
