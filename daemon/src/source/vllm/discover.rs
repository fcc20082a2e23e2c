//! Finds vLLM servers among the processes, and where each listens.
//!
//! A process is looked into when it is new, for some scans more (it may still exec), and rarely after. An engine's
//! members are looked at in every scan; once a member, a process stays one until it ends, whoever its parent becomes.

use std::collections::{BTreeMap, BTreeSet};

use gpuadmit_core::{
    observation::{EngineProcess, Obstacle, ProcessRole},
    units::Span,
};

use super::{
    address::Address,
    cmdline::Command,
    place::Place,
    process::{Identity, Proc, Stat},
    startline,
    tree::Tree,
};
use crate::clock;

/// Most engines tracked.
pub const MAX_ENGINES: usize = 64;
/// Scans in which a new process is looked into again: it may be about to exec.
pub(super) const YOUNG_SCANS: u32 = 10;
/// Of the older processes, one in this many is looked into per scan.
const OLD_STRIDE: u32 = 16;

/// A server found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its first process.
    pub root: Identity,
    /// Where it listens.
    pub address: Address,
    /// Why it cannot be asked there.
    pub obstacle: Option<Obstacle>,
    /// What it was told.
    pub command: Command,
    /// Its living processes, by id.
    pub processes: Vec<EngineProcess>,
}

impl Found {
    /// Whether a process that listens for HTTP is left.
    #[must_use]
    pub fn has_api_server(&self) -> bool {
        self.processes.iter().any(|process| process.role == ProcessRole::ApiServer)
    }
}

/// What a scan found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    /// When.
    pub span: Span,
    /// Servers of which a process of their own lives.
    pub engines: Vec<Found>,
    /// First processes of all servers known, those that cannot be reached included.
    pub roots: BTreeSet<Identity>,
    /// What stands in the way of finding or reaching others, one sentence each.
    pub problems: Vec<String>,
}

/// Scans again and again; remembers what it has seen.
#[derive(Debug)]
pub struct Scanner {
    proc: Proc,
    /// Users whose engines are found; empty: all.
    uids: Vec<u32>,
    /// Servers that another user started, and who, by process id; at most [`MAX_ENGINES`].
    strangers: BTreeMap<u32, u32>,
    scans: u32,
    known: BTreeMap<u32, Known>,
    engines: BTreeMap<Identity, Tree>,
}

/// A process that is no engine's.
#[derive(Clone, Copy, Debug)]
struct Known {
    since: u32,
    kernel: bool,
}

impl Scanner {
    /// A scanner that has seen nothing, and finds engines of these users; empty: of all.
    #[must_use]
    pub fn new(proc: Proc, uids: Vec<u32>) -> Self {
        Self {
            proc,
            uids,
            strangers: BTreeMap::new(),
            scans: 0,
            known: BTreeMap::new(),
            engines: BTreeMap::new(),
        }
    }

    /// Looks once. Blocks for some milliseconds.
    pub fn scan(&mut self) -> Scan {
        let not_before = clock::now();
        let mut problems = vec![];
        match self.proc.pids() {
            Ok(pids) => self.look(&pids, &mut problems),
            Err(error) => problems.push(format!("the process list cannot be read: {error}")),
        }
        self.scans = self.scans.wrapping_add(1);
        let mut found = vec![];
        for (root, engine) in &mut self.engines {
            engine.locate(*root, &self.proc);
            problems.extend(engine.problems(root.pid));
            if let Some(Place::Expected(address) | Place::Known(address)) = engine.place() {
                found.push(engine.found(*root, address));
            }
        }
        let roots = self.engines.keys().copied().collect();
        Scan { span: Span { not_before, not_after: clock::now() }, engines: found, roots, problems }
    }

    /// Forgets an engine whose last processes do not matter any more.
    pub fn forget(&mut self, root: Identity) {
        self.engines.remove(&root);
    }

    fn look(&mut self, pids: &BTreeSet<u32>, problems: &mut Vec<String>) {
        self.known.retain(|pid, _| pids.contains(pid));
        self.strangers.retain(|pid, _| pids.contains(pid));
        for engine in self.engines.values_mut() {
            engine.refresh(&self.proc);
        }
        self.engines.retain(|_, engine| engine.lives());
        let members: BTreeSet<u32> = self.engines.values().flat_map(Tree::pids).collect();
        let fresh: Vec<Stat> = pids
            .iter()
            .filter(|pid| !members.contains(pid) && self.is_due(**pid))
            .filter_map(|pid| self.proc.stat(*pid))
            .collect();
        for stat in &fresh {
            let since = self.scans;
            self.known.entry(stat.identity.pid).or_insert(Known { since, kernel: stat.kernel });
        }
        let users: Vec<&Stat> = fresh.iter().filter(|stat| !stat.kernel && !stat.ended).collect();
        self.adopt(&users);
        self.found_engines(&users, problems);
        // Children of engines that were just found.
        self.adopt(&users);
        problems.extend(self.strangers.iter().map(|(pid, uid)| {
            format!("vllm (pid {pid}) of uid {uid} is left out: vllm.discover_uids does not name it")
        }));
    }

    /// Whether a process that is no member is to be looked into in this scan.
    fn is_due(&self, pid: u32) -> bool {
        let Some(known) = self.known.get(&pid) else { return true };
        let young = self.scans.wrapping_sub(known.since) <= YOUNG_SCANS;
        !known.kernel && (young || pid.wrapping_add(self.scans).is_multiple_of(OLD_STRIDE))
    }

    /// Takes descendants of members in, level by level.
    fn adopt(&mut self, users: &[&Stat]) {
        for engine in self.engines.values_mut() {
            while engine.adopt(users, &self.proc) {}
            for pid in engine.pids() {
                self.known.remove(&pid);
            }
        }
    }

    fn found_engines(&mut self, users: &[&Stat], problems: &mut Vec<String>) {
        // Looked at again: what it was may have become another program.
        self.strangers.retain(|pid, _| users.iter().all(|stat| stat.identity.pid != *pid));
        let members: BTreeSet<u32> = self.engines.values().flat_map(Tree::pids).collect();
        let servers: BTreeMap<u32, (&Stat, Vec<String>)> = users
            .iter()
            .filter(|stat| !members.contains(&stat.identity.pid))
            .map(|stat| (stat.identity.pid, (*stat, self.proc.args(stat.identity.pid))))
            .filter(|(_, (_, args))| startline::is_server(args))
            .collect();
        for (stat, args) in servers.values() {
            // A fork of a server has its command line and is no server of its own.
            if servers.contains_key(&stat.parent) || !self.trusts(stat.identity.pid) {
                continue;
            }
            if self.engines.len() >= MAX_ENGINES {
                problems.push(format!(
                    "more than {MAX_ENGINES} engines: vllm (pid {}) is left out",
                    stat.identity.pid
                ));
                continue;
            }
            self.engines.extend(Tree::new(stat, args.clone(), &self.proc).map(|tree| (stat.identity, tree)));
        }
    }

    /// Whether the user that started a process may start engines. One whose user cannot be told may not.
    fn trusts(&mut self, pid: u32) -> bool {
        if self.uids.is_empty() {
            return true;
        }
        let Some(uid) = self.proc.uid(pid) else { return false };
        let trusted = self.uids.contains(&uid);
        if !trusted && self.strangers.len() < MAX_ENGINES {
            self.strangers.insert(pid, uid);
        }
        trusted
    }
}
