//! Who ended an engine: facts of the kernel, the driver and our own about its processes, in whatever order they arrive,
//! become one verdict.
//!
//! ```text
//!            fatal signal               exit, or gone               window over
//!   no case ─────────────▶ unconfirmed ─────────────▶ confirmed ───────────────▶ told, once
//!                               │ lives on after all
//!                               ▼
//!                             no case
//! ```

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    observation::{EngineProcess, OomScope, ProcessRole, Resident, Sender},
    units::{Bytes, Mono},
    xid,
};

/// After a death is certain, other facts about it are waited for so long: a memory-cgroup OOM kill is a signal, a mark
/// and an exit within milliseconds of each other.
pub const VERDICT_WINDOW: Duration = Duration::from_millis(250);
/// Where an engine was only found to be gone, the kernel's word on how is waited for so long: on a machine without a free
/// core a refused connection may be noticed before it. Admission is closed meanwhile.
pub const UNSEEN_WINDOW: Duration = Duration::from_secs(2);
/// A process that was sent a fatal signal which it may handle, and has not ended by then, may have survived it.
pub const SURVIVAL_BOUND: Duration = Duration::from_secs(2);
/// SIGKILL cannot be handled, but a process with much memory takes long to end.
pub const KILL_BOUND: Duration = Duration::from_secs(10);
/// Without an exit or a sign of life by then, nobody knows: requests are let through one at a time.
pub const UNCONFIRMED_BOUND: Duration = Duration::from_secs(15);
/// An Xid error explains the end of a process that follows within this time.
const XID_REACH: Duration = Duration::from_secs(30);
/// A failed allocation explains the end of a process that follows within this time.
const ALLOCATION_REACH: Duration = Duration::from_secs(10);
/// A request to stop explains the end of a process that follows within this time.
const STOP_REACH: Duration = Duration::from_mins(10);
/// Programs that kill for want of memory, by their names.
const OOM_DAEMONS: [&str; 4] = ["systemd-oomd", "earlyoom", "oomd", "nohang"];

/// SIGABRT (signal(7), the same on all of Linux's architectures that GPUs run on).
pub const SIGABRT: i32 = 6;
/// SIGBUS.
pub const SIGBUS: i32 = 7;
/// SIGKILL.
pub const SIGKILL: i32 = 9;
/// SIGSEGV.
pub const SIGSEGV: i32 = 11;
/// SIGTERM.
pub const SIGTERM: i32 = 15;
/// `si_code` of a signal by the kernel (`SI_KERNEL`).
const SI_KERNEL: i32 = 0x80;

macro_rules! causes {
    ($($(#[$doc:meta])* $variant:ident, $name:literal;)*) => {
        /// Author of an engine's end: a closed list of stable words.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cause {
            $($(#[$doc])* $variant,)*
        }

        impl Cause {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The one spelling.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

causes! {
    /// The kernel's OOM killer.
    KernelOom, "KERNEL_OOM";
    /// A program that kills for want of memory: systemd-oomd, earlyoom, …
    OomDaemon, "OOM_DAEMON";
    /// Another program, by SIGKILL.
    Killed, "KILLED";
    /// The GPU driver reported an error that ends processes.
    Xid, "XID";
    /// Device memory ran out in an allocation of its own.
    CudaOom, "CUDA_OOM";
    /// It crashed: SIGSEGV, SIGABRT, SIGBUS.
    Crash, "CRASH";
    /// It exited by itself with an error.
    Exit, "EXIT";
    /// It was asked to stop, or exited by itself without an error.
    Stopped, "STOPPED";
    /// How it ended was not seen.
    Unseen, "UNSEEN";
}

/// One of an engine's own processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The verdict on an engine's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) cause: Cause,
    /// One sentence without the engine's name.
    pub(crate) sentence: String,
    /// Event that announced it.
    pub(crate) caused_by: Option<u64>,
    /// Size classes of the prompts that were in flight.
    pub(crate) in_flight: u64,
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

#[derive(Clone, Debug)]
struct Signalled {
    at: Mono,
    who: Who,
    number: i32,
    code: i32,
    sender: Sender,
    /// The sender is one of the engine's own processes.
    own: bool,
}

impl Signalled {
    fn from(&self) -> String {
        match &*self.sender.comm {
            "" => format!("pid {}", self.sender.pid),
            comm => format!("{comm} (pid {})", self.sender.pid),
        }
    }

    fn by_oom_daemon(&self) -> bool {
        self.number == SIGKILL && OOM_DAEMONS.contains(&&*self.sender.comm)
    }

    fn by_kernel(&self) -> bool {
        self.sender.kernel && self.number == SIGKILL && self.code == SI_KERNEL
    }
}

#[derive(Clone, Debug)]
struct Marked {
    who: Who,
    scope: Option<OomScope>,
    resident: Option<Resident>,
}

#[derive(Clone, Copy, Debug)]
struct Exited {
    at: Mono,
    who: Who,
    code: Option<i32>,
    signal: Option<i32>,
}

/// A fact that may explain an end that follows.
#[derive(Clone, Debug)]
struct Omen<T> {
    at: Mono,
    /// Event that told it.
    event: u64,
    what: T,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    since: Mono,
    /// When the death was certain.
    confirmed: Option<Mono>,
    told: bool,
    in_flight: u64,
}

/// All that is known of the end of one engine's processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inquest {
    stop: Option<Signalled>,
    fatal: Option<Signalled>,
    marked: Option<Marked>,
    exited: Option<Exited>,
    /// What was said by those who found it gone.
    evidence: Option<String>,
    xid: Option<Omen<(u64, Arc<str>)>>,
    allocation: Option<Omen<(Who, Option<Bytes>)>>,
    case: Option<Case>,
    /// Its processes before they were found to be gone: facts about these may still arrive.
    pub(crate) former: Vec<EngineProcess>,
}

impl Inquest {
    /// A signal was sent to `who`.
    pub(crate) fn signal(
        &mut self,
        at: Mono,
        who: Who,
        (number, code): (i32, i32),
        sender: Sender,
        own: bool,
    ) -> Effect {
        let signalled = Signalled { at, who, number, code, sender, own };
        if number == SIGTERM {
            let why = format!("{} was sent SIGTERM by {}", who, signalled.from());
            let earlier = self.stop.as_ref().is_none_or(|stop| at.since(stop.at) > STOP_REACH);
            if earlier && self.case.is_none() {
                self.stop = Some(signalled);
                return Effect::Drain(why);
            }
            return Effect::Nothing;
        }
        if !matches!(number, SIGKILL | SIGSEGV | SIGABRT | SIGBUS) {
            return Effect::Nothing;
        }
        let why = format!("{who} was sent {} by {}", name(number), signalled.from());
        if self.fatal.as_ref().is_none_or(|known| at < known.at) {
            self.fatal = Some(signalled);
        }
        self.open(at);
        Effect::Close(why)
    }

    /// The OOM killer chose `who`.
    pub(crate) fn marked(
        &mut self,
        at: Mono,
        who: Who,
        scope: Option<OomScope>,
        resident: Option<Resident>,
    ) -> Effect {
        let known = self.marked.get_or_insert(Marked { who, scope: None, resident: None });
        known.scope = scope.or(known.scope.take());
        known.resident = resident.or(known.resident);
        self.open(at);
        Effect::Close(format!("the kernel's OOM killer chose {who}"))
    }

    /// `who` ended.
    pub(crate) fn exited(&mut self, at: Mono, who: Who, code: Option<i32>, signal: Option<i32>) -> Effect {
        let exited = Exited { at, who, code, signal };
        if self.exited.is_none_or(|known| at < known.at) {
            self.exited = Some(exited);
        }
        self.confirm(at);
        Effect::Close(format!("{who} {}", manner(code, signal)))
    }

    /// One of its processes was found missing.
    pub(crate) fn missing(&mut self, at: Mono, role: ProcessRole) -> Effect {
        let evidence = format!("its {} process is gone; how it ended was not seen", role.as_str());
        self.evidence.get_or_insert_with(|| evidence.clone());
        self.confirm(at);
        Effect::Close(evidence)
    }

    /// Somebody found that all of it is gone.
    pub(crate) fn gone(&mut self, at: Mono, evidence: String) -> Effect {
        self.evidence.get_or_insert_with(|| evidence.clone());
        self.confirm(at);
        Effect::Gone(evidence)
    }

    /// The driver reported an error on a device that the engine holds; `event` told it.
    pub(crate) fn xid(&mut self, at: Mono, code: u64, device: Arc<str>, event: u64) {
        if xid::class(code).ends_processes() {
            self.xid = Some(Omen { at, event, what: (code, device) });
        }
    }

    /// An allocation of its own failed; `event` told it.
    pub(crate) fn allocation_failed(&mut self, at: Mono, who: Who, requested: Option<Bytes>, event: u64) {
        self.allocation = Some(Omen { at, event, what: (who, requested) });
    }

    /// `who` tried again and succeeded: it will not die of that failure. Returns the event that told it.
    pub(crate) fn allocation_succeeded(&mut self, who: Who) -> Option<u64> {
        self.allocation.take_if(|failed| failed.what.0 == who).map(|failed| failed.event)
    }

    fn open(&mut self, at: Mono) -> &mut Case {
        self.case.get_or_insert(Case { since: at, confirmed: None, told: false, in_flight: 0 })
    }

    fn confirm(&mut self, at: Mono) {
        self.open(at).confirmed.get_or_insert(at);
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

    /// When something is due: the end of the window.
    pub(crate) fn due(&self) -> Option<Mono> {
        let case = self.case.filter(|case| !case.told)?;
        let seen = self.fatal.is_some() || self.exited.is_some() || self.marked.is_some();
        Some(case.confirmed? + if seen { VERDICT_WINDOW } else { UNSEEN_WINDOW })
    }

    /// The verdict, once, when its window is over or `at_once`.
    pub(crate) fn verdict(&mut self, now: Mono, at_once: bool) -> Option<Verdict> {
        let due = self.due()?;
        if now < due && !at_once {
            return None;
        }
        let case = self.case.as_mut()?;
        case.told = true;
        let in_flight = case.in_flight;
        let since = self.death();
        let (cause, sentence, caused_by) = self.judge(since);
        Some(Verdict { cause, sentence, caused_by, in_flight })
    }

    /// When it began to end.
    fn death(&self) -> Mono {
        let first = [
            self.fatal.as_ref().map(|fatal| fatal.at),
            self.exited.map(|exited| exited.at),
            self.case.map(|case| case.since),
        ];
        first.into_iter().flatten().min().unwrap_or_default()
    }

    fn judge(&self, death: Mono) -> (Cause, String, Option<u64>) {
        if let Some(judged) = self.by_memory() {
            return judged;
        }
        if let Some(stop) = self.stop.as_ref().filter(|stop| reaches(stop.at, death, STOP_REACH)) {
            return (Cause::Stopped, format!("stopped as planned: {} sent SIGTERM", stop.from()), None);
        }
        let killed = |fatal: &&Signalled| fatal.number == SIGKILL && !fatal.sender.kernel && !fatal.own;
        if let Some(fatal) = self.first_fatal().filter(killed) {
            return (Cause::Killed, format!("{} killed {}", fatal.from(), fatal.who), None);
        }
        let end = self.end();
        if let Some(Omen { event, what: (code, device), .. }) =
            self.xid.as_ref().filter(|xid| reaches(xid.at, death, XID_REACH))
        {
            let meaning = xid::class(*code).as_str();
            return (
                Cause::Xid,
                format!("{end} after Xid {code} ({meaning}) on device {device}"),
                Some(*event),
            );
        }
        if let Some(Omen { at, event, what: (_, requested) }) =
            self.allocation.as_ref().filter(|failed| reaches(failed.at, death, ALLOCATION_REACH))
        {
            let bytes = requested.map_or_else(String::new, |bytes| format!(" of {bytes}"));
            let after = death.since(*at).as_secs_f64();
            let sentence =
                format!("{end} {after:.1} s after a CUDA allocation{bytes} failed for want of memory");
            return (Cause::CudaOom, sentence, Some(*event));
        }
        (self.by_itself(), end, None)
    }

    fn by_memory(&self) -> Option<(Cause, String, Option<u64>)> {
        if let Some(Marked { who, scope, resident }) = &self.marked {
            let scope = match scope {
                Some(OomScope::Machine) => "the machine ran out of memory".into(),
                Some(OomScope::Cgroup(path)) => format!("memory cgroup {path} reached its limit"),
                None => "whose memory ran out is not known".to_owned(),
            };
            let held = resident.map_or_else(String::new, |held| {
                format!(" (it held {})", held.anonymous + held.file + held.shared)
            });
            let sentence = format!("the kernel's OOM killer killed {who}{held}: {scope}");
            return Some((Cause::KernelOom, sentence, None));
        }
        let fatal = self.first_fatal()?;
        if fatal.by_oom_daemon() {
            let sentence = format!("{} killed {} for want of memory", fatal.from(), fatal.who);
            return Some((Cause::OomDaemon, sentence, None));
        }
        fatal.by_kernel().then(|| {
            let sentence = format!("the kernel killed {}, as its OOM killer does", fatal.who);
            (Cause::KernelOom, sentence, None)
        })
    }

    /// The fatal signal that began it; `None` where an exit came first and the signals only followed.
    fn first_fatal(&self) -> Option<&Signalled> {
        let first = |fatal: &&Signalled| self.exited.is_none_or(|exited| fatal.at <= exited.at);
        self.fatal.as_ref().filter(first)
    }

    /// A crash, an exit, or nobody knows.
    fn by_itself(&self) -> Cause {
        match (self.first_fatal(), self.exited) {
            (Some(fatal), _) if fatal.number == SIGKILL => Cause::Killed,
            (Some(_), _) | (None, Some(Exited { signal: Some(_), .. })) => Cause::Crash,
            (None, Some(Exited { code: Some(0), .. })) => Cause::Stopped,
            (None, Some(Exited { code: Some(_), .. })) => Cause::Exit,
            (None, _) => Cause::Unseen,
        }
    }

    /// What was seen of its end.
    fn end(&self) -> String {
        match (self.first_fatal(), &self.exited) {
            (Some(fatal), _) if fatal.number == SIGKILL => {
                format!("{} was killed by {}", fatal.who, fatal.from())
            }
            (Some(fatal), _) => format!("{} crashed with {}", fatal.who, name(fatal.number)),
            (None, Some(exited)) => format!("{} {}", exited.who, manner(exited.code, exited.signal)),
            _ => self.evidence.clone().unwrap_or_else(|| "it is gone; how it ended was not seen".into()),
        }
    }
}

/// Whether what was seen at `omen` explains a death at `death`: it came before, within `reach`. Two sources' clocks of one
/// moment may differ by a little.
fn reaches(omen: Mono, death: Mono, reach: Duration) -> bool {
    omen <= death + CLOCK_SLACK && death.since(omen) <= reach
}

/// Times of one moment, told by different sources, differ by at most this.
const CLOCK_SLACK: Duration = Duration::from_millis(5);

fn manner(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (_, Some(signal)) => format!("was ended by {}", name(signal)),
        (Some(code), None) => format!("exited with code {code}"),
        (None, None) => "ended; how was not seen".into(),
    }
}

/// Name of a signal.
fn name(number: i32) -> String {
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

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
