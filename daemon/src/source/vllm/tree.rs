//! The processes of one server: how they come and go, and what each does.

use std::collections::BTreeMap;

use gpuadmit_core::observation::{EngineProcess, ProcessRole};

use super::{
    address::Address,
    cmdline::Command,
    config_file,
    discover::{Found, YOUNG_SCANS},
    place::{self, Place},
    process::{Identity, Proc, Stat},
    role::{Member, role, title},
};

/// Most processes of one engine.
const MAX_MEMBERS: usize = 512;

/// A server and its descendants.
#[derive(Debug)]
pub(super) struct Tree {
    command: Command,
    members: BTreeMap<u32, Seen>,
    place: Option<Place>,
}

/// A member as last seen.
#[derive(Debug)]
struct Seen {
    stat: Stat,
    args: Vec<String>,
    /// Its parent when it was first seen; 0: it is the first.
    parent: u32,
    depth: usize,
    /// Scans since it was first seen.
    age: u32,
    /// Whether its command line is its parent's: it was forked and has not named itself.
    is_fork: bool,
    /// Whether it runs its parent's program.
    same_program: bool,
}

impl Seen {
    fn member(&self) -> Member<'_> {
        Member {
            comm: &self.stat.comm,
            args: &self.args,
            depth: self.depth,
            is_fork: self.is_fork,
            same_program: self.same_program,
        }
    }
}

impl Tree {
    /// That of a process; `None` when its arguments are no vLLM server's.
    pub(super) fn new(stat: &Stat, args: Vec<String>, proc: &Proc) -> Option<Self> {
        let pid = stat.identity.pid;
        let mut command = Command::parse(&args, |file| config_file::read(&proc.path_of(pid, file)))?;
        if let Some(why) = &command.unread_config {
            tracing::warn!(
                pid,
                "the --config of a vllm server is not read, its options are not known: {why}"
            );
        }
        if command.port_per_rank {
            tracing::warn!(
                pid,
                "a vllm server has a port for each data-parallel rank, of which the first alone is found: name the \
                 others in [[engine]] entries"
            );
        }
        let environment = proc.environment(pid).unwrap_or_default();
        command.add_environment(environment.iter().filter_map(|variable| variable.split_once('=')));
        command.places.folder = proc.folder(pid);
        command.places.root = proc.other_root(pid);
        let root = Seen {
            stat: stat.clone(),
            args,
            parent: 0,
            depth: 0,
            age: 0,
            is_fork: false,
            same_program: true,
        };
        Some(Self { command, members: BTreeMap::from([(pid, root)]), place: None })
    }

    /// Ids of its processes.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }

    /// Where it listens, once [`locate`](Self::locate) has looked.
    pub(super) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    fn is_located(&self) -> bool {
        matches!(self.place, Some(Place::Known(_)))
    }

    /// What stands in the way of reaching it.
    pub(super) fn problems(&self, root: u32) -> Vec<String> {
        let unreachable = match &self.place {
            Some(Place::Unreachable(why)) => Some(why.clone()),
            _ => None,
        };
        // Once it is seen to listen, its port at least is known.
        let unread = self.command.unread_config.as_ref().filter(|_| !self.is_located());
        let unread = unread.map(|why| format!("the --config of vllm (pid {root}) is not read: {why}"));
        unreachable.into_iter().chain(unread).collect()
    }

    /// Looks at the members again: they end, exec and rename themselves.
    pub(super) fn refresh(&mut self, proc: &Proc) {
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
            let Some(parent_pid) = self.members.get(&pid).map(|seen| seen.parent) else { continue };
            let parent = self.members.get(&parent_pid);
            let is_fork = parent.map(|parent| is_fork(&args, parent));
            let same_program = parent.map(|_| same_program(proc, pid, parent_pid));
            let Some(seen) = self.members.get_mut(&pid) else { continue };
            seen.args = args;
            seen.is_fork = is_fork.unwrap_or(seen.is_fork);
            seen.same_program = same_program.unwrap_or(seen.same_program);
        }
    }

    /// Takes children of members in; whether there were any.
    pub(super) fn adopt(&mut self, users: &[&Stat], proc: &Proc) -> bool {
        let mut any = false;
        for stat in users {
            let pid = stat.identity.pid;
            if self.members.len() >= MAX_MEMBERS || self.members.contains_key(&pid) {
                continue;
            }
            let Some(parent) = self.members.get(&stat.parent) else { continue };
            let (args, depth) = (proc.args(pid), parent.depth.saturating_add(1));
            let is_fork = is_fork(&args, parent);
            let same_program = same_program(proc, pid, stat.parent);
            let (stat, parent) = ((*stat).clone(), stat.parent);
            self.members.insert(pid, Seen { stat, args, parent, depth, age: 0, is_fork, same_program });
            any = true;
        }
        any
    }

    fn processes(&self) -> Vec<EngineProcess> {
        let named = self.members.values().any(|seen| title(seen.member()).is_some());
        let mut roles: BTreeMap<u32, ProcessRole> = BTreeMap::new();
        let mut by_depth: Vec<(&u32, &Seen)> = self.members.iter().collect();
        by_depth.sort_by_key(|(_, seen)| seen.depth);
        for (pid, seen) in by_depth {
            let parent = roles.get(&seen.parent).copied().zip(self.members.get(&seen.parent));
            let parent = parent.map(|(role, parent)| (role, parent.member()));
            roles.insert(*pid, role(seen.member(), parent, named));
        }
        let process = |(pid, seen): (&u32, &Seen)| {
            let role = roles.get(pid).copied().unwrap_or(ProcessRole::Helper);
            EngineProcess { pid: *pid, start_ticks: seen.stat.identity.start_ticks, role }
        };
        self.members.iter().map(process).collect()
    }

    /// Whether a process of its own is left; helpers are none.
    pub(super) fn lives(&self) -> bool {
        self.processes().iter().any(|process| process.role != ProcessRole::Helper)
    }

    pub(super) fn found(&self, root: Identity, address: &Address) -> Found {
        let (_, obstacle) = place::told(&self.command);
        Found {
            root,
            address: address.clone(),
            obstacle,
            command: self.command.clone(),
            processes: self.processes(),
        }
    }

    /// Finds out where it listens, until that is known.
    pub(super) fn locate(&mut self, root: Identity, proc: &Proc) {
        if self.is_located() {
            return;
        }
        let servers = self.processes().into_iter().filter(|process| process.role == ProcessRole::ApiServer);
        let servers: Vec<u32> = servers.map(|server| server.pid).collect();
        self.place = Some(place::locate(&self.command, root, &servers, proc));
    }
}

fn is_fork(args: &[String], parent: &Seen) -> bool {
    !args.is_empty() && args == parent.args
}

/// Whether two processes run the same program; false without the right to know.
fn same_program(proc: &Proc, one: u32, other: u32) -> bool {
    let program = proc.program(one);
    program.is_some() && program == proc.program(other)
}
