//! What the reading thread shares with those who name processes to watch.

use std::{collections::BTreeMap, sync::Mutex};

use gpuadmit_core::{
    observation::{EngineProcess, Observation, ProcessChange, ProcessEvent},
    units::{Bytes, Mono, Span},
};
use nix::sys::{
    epoll::{Epoll, EpollEvent, EpollFlags},
    eventfd::EventFd,
};

use super::{
    cgroup::Kills,
    cuda::tally::Tally,
    exit, locked,
    pidfd::Pidfd,
    programs,
    reader::process_token,
    watch::{WatchSet, Watched},
    xid::Xids,
};
use crate::{
    clock,
    source::{Observe, vllm::process::Proc},
};

/// Most bytes of a number in `/proc`.
const MAX_NUMBER_BYTES: u64 = 32;

/// The watched processes, and how their ends become known.
pub(super) struct Shared {
    pub(super) observe: Observe,
    pub(super) proc: Proc,
    pub(super) set: Mutex<WatchSet>,
    pub(super) xids: Mutex<Xids>,
    /// The kernel's own watch set; `None`: no programs run.
    pub(super) in_kernel: Option<Mutex<programs::Watched>>,
    /// Without programs: a file for each watched process.
    pub(super) files: Mutex<BTreeMap<u32, Pidfd>>,
    /// What CUDA calls add up to; `None`: libcuda is not probed.
    pub(super) tally: Option<Mutex<Tally>>,
    pub(super) epoll: Epoll,
    pub(super) stop: EventFd,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("set", &self.set).finish_non_exhaustive()
    }
}

impl Shared {
    /// Watches these from now on.
    pub(super) fn watch(&self, processes: &[EngineProcess]) {
        for process in processes {
            let (pid, start) = (process.pid, process.start_ticks);
            if locked(&self.set).contains(pid, start) || !self.add(pid, start) {
                continue;
            }
            if let Some(in_kernel) = &self.in_kernel
                && let Err(error) = locked(in_kernel).insert(pid, start, 0)
            {
                tracing::warn!(pid, %error, "a process cannot be watched");
            }
            if self.in_kernel.is_none() {
                self.open(pid);
            }
            // It may have ended before anything watched it.
            if !self.lives(pid, start) {
                self.ended(pid, start, Span::at(clock::now()), exit::UNKNOWN);
            }
        }
    }

    /// Adds a process to the set; `false`: it is there, or there is no room.
    pub(super) fn add(&self, pid: u32, start_ticks: u64) -> bool {
        let comm = self.proc.stat(pid).map(|stat| super::record::printable(&stat.comm)).unwrap_or_default();
        let kills = self.in_kernel.is_none().then(|| Kills::of(pid)).flatten();
        let process = Watched { start_ticks, comm, oom_score_adj: oom_score_adj(pid), kills };
        locked(&self.set).insert(pid, process)
    }

    /// Whether that process has a thread left. The first thread may have ended before the others.
    pub(super) fn lives(&self, pid: u32, start_ticks: u64) -> bool {
        let threads =
            || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |tasks| tasks.take(2).count());
        self.proc
            .stat(pid)
            .is_some_and(|stat| stat.identity.start_ticks == start_ticks && (!stat.ended || threads() > 1))
    }

    /// A watched process ended: tells it, unless it was told.
    pub(super) fn ended(&self, pid: u32, start_ticks: u64, span: Span, what: ProcessChange) {
        self.tell_allocations();
        let Some(process) = locked(&self.set).end(pid, start_ticks) else { return };
        if let Some(tally) = &self.tally {
            locked(tally).forget(pid);
        }
        locked(&self.files).remove(&pid);
        if let Some(in_kernel) = &self.in_kernel {
            // Usually the program has removed it.
            let _ = locked(in_kernel).remove(&pid);
        }
        let start_ticks = Some(start_ticks);
        self.tell(ProcessEvent { span, pid, start_ticks, comm: process.comm, watched: true, what });
    }

    /// Tells what processes have done with CUDA memory since the last time.
    pub(super) fn tell_allocations(&self) {
        let Some(tally) = &self.tally else { return };
        // Held until all is told: what is told later is later.
        let mut tally = locked(tally);
        let now = clock::now();
        for step in tally.steps(now) {
            let comm =
                locked(&self.set).get(step.pid).map(|process| process.comm.clone()).unwrap_or_default();
            let (allocated, freed) = (Bytes(step.allocated), Bytes(step.freed));
            self.tell(ProcessEvent {
                span: between(step.since, now),
                pid: step.pid,
                start_ticks: Some(step.start_ticks),
                comm,
                watched: true,
                what: ProcessChange::Allocated { allocated, freed, failed: step.failed },
            });
        }
    }

    pub(super) fn tell(&self, event: ProcessEvent) {
        (self.observe)(Observation::Process(Box::new(event)));
    }

    /// Ends the reading thread.
    pub(super) fn stop(&self) {
        if let Err(error) = self.stop.write(1) {
            tracing::error!(%error, "the thread that listens to the kernel cannot be stopped");
        }
    }

    fn open(&self, pid: u32) {
        let opened = Pidfd::open(pid).and_then(|file| {
            self.epoll.add(&file, EpollEvent::new(EpollFlags::EPOLLIN, process_token(pid)))?;
            Ok(file)
        });
        match opened {
            Ok(file) => _ = locked(&self.files).insert(pid, file),
            // Looked at every second all the same.
            Err(error) => tracing::debug!(pid, %error, "no file for a process"),
        }
    }
}

/// `/proc/PID/oom_score_adj`.
pub(super) fn oom_score_adj(pid: u32) -> Option<i32> {
    let bytes = super::offsets::read(format!("/proc/{pid}/oom_score_adj").as_ref(), MAX_NUMBER_BYTES).ok()?;
    std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
}

/// The time between two looks.
pub(super) const fn between(not_before: Mono, not_after: Mono) -> Span {
    Span { not_before, not_after }
}
