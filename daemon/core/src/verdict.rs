//! Who ended an engine: one verdict from what the [inquest](crate::inquest) has gathered.

use std::time::Duration;

use crate::{
    inquest::{Exited, Inquest, Marked, STOP_REACH, Signalled, Who, manner, name},
    observation::OomScope,
    omen::Omen,
    units::{Bytes, Mono},
    xid,
};

/// An Xid error explains the end of a process that follows within this time.
const XID_REACH: Duration = Duration::from_secs(30);
/// A failed allocation explains the end of a process that follows within this time.
const ALLOCATION_REACH: Duration = Duration::from_secs(10);
/// Two sources date the same moment differently by at most this.
const CLOCK_SLACK: Duration = Duration::from_millis(5);
/// Programs that kill for want of memory, by their names.
const OOM_DAEMONS: [&str; 4] = ["systemd-oomd", "earlyoom", "oomd", "nohang"];
/// `si_code` of a signal by the kernel (`SI_KERNEL`).
const SI_KERNEL: i32 = 0x80;

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

impl Inquest {
    /// The verdict, once, when it is due or `at_once`. The kernel has told all that happened before `heard`; `None`: it
    /// tells nothing.
    pub(crate) fn verdict(&mut self, now: Mono, heard: Option<Mono>, at_once: bool) -> Option<Verdict> {
        let in_flight = self.close(now, heard, at_once)?;
        let (cause, sentence, caused_by) = self.judge(self.death());
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
        if let Some((cause, sentence)) = self.by_memory() {
            return (cause, sentence, None);
        }
        let asked = |stop: &&Signalled| stop.at <= death && death.since(stop.at) <= STOP_REACH;
        if let Some(stop) = self.stop.as_ref().filter(asked) {
            return (Cause::Stopped, format!("stopped as planned: {} sent SIGTERM", stop.from()), None);
        }
        let killed = |fatal: &&Signalled| fatal.number == SIGKILL && !fatal.sender.kernel && !fatal.own;
        if let Some(fatal) = self.first_fatal().filter(killed) {
            return (Cause::Killed, format!("{} killed {}", fatal.from(), fatal.who), None);
        }
        let end = self.end();
        let xid = self.xids.newest(|xid| xid.at <= death + CLOCK_SLACK && death.since(xid.at) <= XID_REACH);
        if let Some(Omen { event, what: (code, device), .. }) = xid {
            let meaning = xid::class(*code).as_str();
            return (
                Cause::Xid,
                format!("{end} after Xid {code} ({meaning}) on device {device}"),
                Some(*event),
            );
        }
        if let Some(Omen { at, event, what: (_, requested) }) = self.failed_allocation(death) {
            let bytes = requested.map_or_else(String::new, |bytes| format!(" of {bytes}"));
            let after = death.since(*at).as_secs_f64();
            let sentence =
                format!("{end} {after:.1} s after a CUDA allocation{bytes} failed for want of memory");
            return (Cause::CudaOom, sentence, Some(*event));
        }
        (self.by_itself(), end, None)
    }

    /// The allocation that failed shortly before. A process allocates only while it lives: what failed in the one that
    /// ended first came before its end, whatever the clocks say.
    fn failed_allocation(&self, death: Mono) -> Option<&Omen<(Who, Option<Bytes>)>> {
        self.failures.newest(|failed| {
            let in_it = self.exited.is_none_or(|exited| exited.who == failed.what.0);
            let before = in_it || failed.at <= death + CLOCK_SLACK;
            before && death.since(failed.at) <= ALLOCATION_REACH && !self.recovered(failed)
        })
    }

    fn by_memory(&self) -> Option<(Cause, String)> {
        if let Some(Marked { who, scope, resident, .. }) = self.first_mark() {
            let scope = match scope {
                Some(OomScope::Machine) => "the machine ran out of memory".into(),
                Some(OomScope::Cgroup(path)) => format!("memory cgroup {path} reached its limit"),
                None => "whose memory ran out is not known".to_owned(),
            };
            let held = resident.map_or_else(String::new, |held| {
                format!(" (it held {})", held.anonymous + held.file + held.shared)
            });
            return Some((Cause::KernelOom, format!("the kernel's OOM killer killed {who}{held}: {scope}")));
        }
        let fatal = self.first_fatal().filter(|fatal| fatal.number == SIGKILL)?;
        if OOM_DAEMONS.contains(&&*fatal.sender.comm) {
            let sentence = format!("{} killed {} for want of memory", fatal.from(), fatal.who);
            return Some((Cause::OomDaemon, sentence));
        }
        (fatal.sender.kernel && fatal.code == SI_KERNEL)
            .then(|| (Cause::KernelOom, format!("the kernel killed {}, as its OOM killer does", fatal.who)))
    }

    /// The fatal signal that began it; `None` where an exit came first and the signals only followed. A process that
    /// ended by the very signal it was sent did so after it was sent, whatever the clocks say.
    fn first_fatal(&self) -> Option<&Signalled> {
        let first = |fatal: &&Signalled| {
            self.exited.is_none_or(|exited| {
                fatal.at <= exited.at || (exited.who == fatal.who && exited.signal == Some(fatal.number))
            })
        };
        self.fatal.as_ref().filter(first)
    }

    /// A crash, an exit, or nobody knows.
    fn by_itself(&self) -> Cause {
        let signal = self.first_fatal().map(|fatal| fatal.number);
        match (signal.or(self.exited.and_then(|exited| exited.signal)), self.exited) {
            (Some(SIGKILL), _) => Cause::Killed,
            (Some(_), _) => Cause::Crash,
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

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
