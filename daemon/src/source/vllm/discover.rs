//! Finds vLLM servers among the processes, and where each listens.
//!
//! A process is looked into when it is new, for some scans more (it may still exec), and rarely after. An engine's
//! members are looked at in every scan; once a member, a process stays one until it ends, whoever its parent becomes.

use std::collections::{BTreeMap, BTreeSet};

use gpuadmit_core::{
    observation::{EngineProcess, ProcessRole},
    units::Span,
};

use super::{
    address::Address,
    cmdline::{Command, DEFAULT_PORT},
    process::{Identity, Proc, Stat},
    role::{Member, role, title},
};
use crate::clock;

/// Most engines tracked.
pub const MAX_ENGINES: usize = 64;
/// Most processes of one engine.
const MAX_MEMBERS: usize = 512;
/// Scans in which a new process is looked into again: it may be about to exec.
const YOUNG_SCANS: u32 = 10;
/// Of the older processes, one in this many is looked into per scan.
const OLD_STRIDE: u32 = 16;

/// A server found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its first process.
    pub root: Identity,
    /// Where it listens.
    pub address: Address,
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
    engines: BTreeMap<Identity, Engine>,
}

/// A process that is no engine's.
#[derive(Clone, Copy, Debug)]
struct Known {
    since: u32,
    kernel: bool,
}

#[derive(Debug)]
struct Engine {
    command: Command,
    members: BTreeMap<u32, Seen>,
    place: Place,
}

/// A member as last seen.
#[derive(Debug)]
struct Seen {
    stat: Stat,
    args: Vec<String>,
    depth: usize,
    /// Scans since it was first seen.
    age: u32,
    /// Whether its command line is its parent's: it was forked and has not named itself.
    is_fork: bool,
}

/// Where an engine listens, as far as known.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// It does not listen yet; it was told to do so here.
    Expected(Address),
    /// It listens here.
    Known(Address),
    /// It cannot be reached; why.
    Unreachable(String),
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
            match &engine.place {
                Place::Unreachable(why) => problems.push(why.clone()),
                Place::Expected(address) | Place::Known(address) => found.push(engine.found(*root, address)),
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
        let members: BTreeSet<u32> =
            self.engines.values().flat_map(|engine| engine.members.keys().copied()).collect();
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
            for pid in engine.members.keys() {
                self.known.remove(pid);
            }
        }
    }

    fn found_engines(&mut self, users: &[&Stat], problems: &mut Vec<String>) {
        // Looked at again: what it was may have become another program.
        self.strangers.retain(|pid, _| users.iter().all(|stat| stat.identity.pid != *pid));
        let commands: BTreeMap<u32, (&Stat, Vec<String>, Command)> = users
            .iter()
            .filter(|stat| {
                !self.engines.values().any(|engine| engine.members.contains_key(&stat.identity.pid))
            })
            .filter_map(|stat| {
                let args = self.proc.args(stat.identity.pid);
                let command = Command::parse(&args)?;
                Some((stat.identity.pid, (*stat, args, command)))
            })
            .collect();
        for (stat, args, command) in commands.values() {
            // A fork of a server has its command line and is no server of its own.
            if commands.contains_key(&stat.parent) || !self.trusts(stat.identity.pid) {
                continue;
            }
            if self.engines.len() >= MAX_ENGINES {
                problems.push(format!(
                    "more than {MAX_ENGINES} engines: vllm (pid {}) is left out",
                    stat.identity.pid
                ));
                continue;
            }
            let engine = Engine::new(stat, args.clone(), command.clone(), &self.proc);
            self.engines.insert(stat.identity, engine);
        }
    }
}

impl Scanner {
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

impl Seen {
    fn member(&self) -> Member<'_> {
        Member { comm: &self.stat.comm, args: &self.args, depth: self.depth, is_fork: self.is_fork }
    }
}

impl Engine {
    fn new(stat: &Stat, args: Vec<String>, mut command: Command, proc: &Proc) -> Self {
        let environment = proc.environment(stat.identity.pid).unwrap_or_default();
        command.add_environment(environment.iter().filter_map(|variable| variable.split_once('=')));
        command.places.folder = proc.folder(stat.identity.pid);
        command.places.root = proc.other_root(stat.identity.pid);
        let root = Seen { stat: stat.clone(), args, depth: 0, age: 0, is_fork: false };
        let place = Place::Expected(told_address(&command));
        Self { command, members: BTreeMap::from([(stat.identity.pid, root)]), place }
    }

    /// Looks at the members again: they end, exec and rename themselves.
    fn refresh(&mut self, proc: &Proc) {
        let mut changed = vec![];
        self.members.retain(|pid, seen| {
            let Some(stat) = proc.stat(*pid) else { return false };
            if stat.ended || stat.identity != seen.stat.identity {
                return false;
            }
            seen.age = seen.age.saturating_add(1);
            if seen.depth > 0 && (seen.age <= YOUNG_SCANS || stat.comm != seen.stat.comm) {
                changed.push(*pid);
            }
            seen.stat = stat;
            true
        });
        for pid in changed {
            let args = proc.args(pid);
            let parent = self.members.get(&pid).and_then(|seen| self.members.get(&seen.stat.parent));
            let is_fork = parent.map(|parent| parent.args == args);
            let Some(seen) = self.members.get_mut(&pid) else { continue };
            seen.args = args;
            seen.is_fork = is_fork.unwrap_or(seen.is_fork);
        }
    }

    /// Takes children of members in; whether there were any.
    fn adopt(&mut self, users: &[&Stat], proc: &Proc) -> bool {
        let mut any = false;
        for stat in users {
            let pid = stat.identity.pid;
            if self.members.len() >= MAX_MEMBERS || self.members.contains_key(&pid) {
                continue;
            }
            let Some(parent) = self.members.get(&stat.parent) else { continue };
            let (args, depth) = (proc.args(pid), parent.depth.saturating_add(1));
            let is_fork = args == parent.args;
            self.members.insert(pid, Seen { stat: (*stat).clone(), args, depth, age: 0, is_fork });
            any = true;
        }
        any
    }

    fn processes(&self) -> Vec<EngineProcess> {
        let members = || self.members.values().map(|seen| (seen, seen.member()));
        let renames = members().any(|(_, member)| title(member).is_some());
        members()
            .map(|(seen, member)| EngineProcess {
                pid: seen.stat.identity.pid,
                start_ticks: seen.stat.identity.start_ticks,
                role: role(member, renames),
            })
            .collect()
    }

    /// Whether a process of its own is left; helpers are none.
    fn lives(&self) -> bool {
        self.processes().iter().any(|process| process.role != ProcessRole::Helper)
    }

    fn found(&self, root: Identity, address: &Address) -> Found {
        Found { root, address: address.clone(), command: self.command.clone(), processes: self.processes() }
    }

    /// Finds out where it listens, until that is known.
    fn locate(&mut self, root: Identity, proc: &Proc) {
        if matches!(self.place, Place::Known(_)) {
            return;
        }
        let told = told_address(&self.command);
        if proc.other_network(root.pid) == Some(true) && self.command.uds.is_none() {
            self.place = Place::Unreachable(format!(
                "vllm (pid {}) listens in another network namespace (a container): \
                 configure it as an engine with the address it is published at",
                root.pid
            ));
            return;
        }
        let Address::Tcp { port, .. } = told else {
            self.place = Place::Known(told);
            return;
        };
        self.place = self.listener(root, port, told, proc);
    }

    fn listener(&self, root: Identity, told_port: u16, told: Address, proc: &Proc) -> Place {
        let servers = self.processes().into_iter().filter(|process| process.role == ProcessRole::ApiServer);
        let sockets: Option<Vec<BTreeSet<u64>>> = servers.map(|server| proc.sockets(server.pid)).collect();
        // Without the right to see whose a socket is, what the command line says is tried.
        let Some(sockets) = sockets else { return Place::Known(told) };
        let (mine, others): (Vec<_>, Vec<_>) = proc
            .listeners()
            .into_iter()
            .partition(|listener| sockets.iter().any(|inodes| inodes.contains(&listener.inode)));
        let mine: BTreeSet<u16> = mine.iter().map(|listener| listener.port).collect();
        match mine.first() {
            _ if mine.contains(&told_port) => Place::Known(told),
            // A port from a configuration file.
            Some(only) if mine.len() == 1 && self.command.port.is_none() => {
                Place::Known(Address::local(self.command.host.as_deref(), *only))
            }
            _ if others.iter().any(|listener| listener.port == told_port) => Place::Unreachable(format!(
                "port {told_port}, which vllm (pid {}) was told to listen on, is held by another program",
                root.pid
            )),
            _ => Place::Expected(told),
        }
    }
}

/// Where a server was told to listen.
fn told_address(command: &Command) -> Address {
    match &command.uds {
        Some(path) => Address::Unix(path.into()),
        None => Address::local(command.host.as_deref(), command.port.unwrap_or(DEFAULT_PORT)),
    }
}
