//! The watched processes as the daemon knows them. The kernel has its own set, by which it filters; this one is the judge
//! of what was told: a process ends once, however many ways its end becomes known.

use std::collections::{BTreeMap, VecDeque};

use super::cgroup::Kills;

/// Processes remembered after their end, for what is told of them late.
const MAX_ENDED: usize = 64;

/// A watched process.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Start time, clock ticks since boot.
    pub start_ticks: u64,
    /// Its name; empty: unknown.
    pub comm: Box<str>,
    /// Last known `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// OOM kills in its cgroup, where this is how they become known.
    pub kills: Option<Kills>,
}

/// All of them, by process id.
#[derive(Debug, Default)]
pub struct WatchSet {
    processes: BTreeMap<u32, Watched>,
    ended: VecDeque<(u32, Watched)>,
}

impl WatchSet {
    /// Adds a process. Returns whether it is new and there is room, at most [`gpuadmit_abi::MAX_WATCHED`].
    pub fn insert(&mut self, pid: u32, process: Watched) -> bool {
        let known = self.processes.get(&pid).map(|known| known.start_ticks);
        let full = u32::try_from(self.processes.len()).is_ok_and(|count| count >= gpuadmit_abi::MAX_WATCHED);
        if known == Some(process.start_ticks) || (full && known.is_none()) {
            return false;
        }
        self.processes.insert(pid, process);
        true
    }

    /// Whether that process, and not another with its id, is watched.
    #[must_use]
    pub fn contains(&self, pid: u32, start_ticks: u64) -> bool {
        self.processes.get(&pid).is_some_and(|known| known.start_ticks == start_ticks)
    }

    /// A watched process.
    #[must_use]
    pub fn get(&self, pid: u32) -> Option<&Watched> {
        self.processes.get(&pid)
    }

    /// A watched process, to change.
    pub fn get_mut(&mut self, pid: u32) -> Option<&mut Watched> {
        self.processes.get_mut(&pid)
    }

    /// It ended. `None`: it is not watched, or its end was told already.
    pub fn end(&mut self, pid: u32, start_ticks: u64) -> Option<Watched> {
        if !self.contains(pid, start_ticks) {
            return None;
        }
        let process = self.processes.remove(&pid)?;
        self.ended.truncate(MAX_ENDED.saturating_sub(1));
        self.ended.push_front((pid, process.clone()));
        Some(process)
    }

    /// A watched process, or one that ended of late.
    #[must_use]
    pub fn known(&self, pid: u32) -> Option<&Watched> {
        let ended = || self.ended.iter().find(|(ended, _)| *ended == pid).map(|(_, process)| process);
        self.processes.get(&pid).or_else(ended)
    }

    /// Ids and start times of all.
    #[must_use]
    pub fn all(&self) -> Vec<(u32, u64)> {
        self.processes.iter().map(|(pid, process)| (*pid, process.start_ticks)).collect()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(start_ticks: u64) -> Watched {
        Watched { start_ticks, comm: "".into(), oom_score_adj: None, kills: None }
    }

    #[test]
    fn a_process_ends_once() {
        let mut set = WatchSet::default();
        assert!(set.insert(7, process(1)));
        assert!(!set.insert(7, process(1)), "it is known");
        assert!(set.end(7, 2).is_none(), "that is another process with its id");
        assert!(set.end(7, 1).is_some());
        assert!(set.end(7, 1).is_none());
        assert!(set.known(7).is_some() && set.is_empty());
    }

    #[test]
    fn a_later_process_takes_the_id_over() {
        let mut set = WatchSet::default();
        assert!(set.insert(7, process(1)) && set.insert(7, process(2)));
        assert!(set.contains(7, 2) && !set.contains(7, 1));
    }
}
