//! One look at the host.

use std::{collections::BTreeMap, sync::Arc};

use gpuadmit_core::{
    host::{CgroupMemory, HostFact, MAX_STATES, Pressure},
    observation::{Observation, SourceHealth, SourceReport},
    units::{Bytes, Mono, Span},
};
use nix::{
    sys::statvfs::statvfs,
    unistd::{SysconfVar, sysconf},
};

use super::{
    Options, Processes,
    cgroup::{Figures, Mounts},
    keyed, pressure, process, read,
};
use crate::clock;

/// Most cgroups with a limit that are told of.
const MAX_CGROUPS: usize = 64;

/// Looks again and again; remembers what rates need.
pub(super) struct Looker {
    options: Options,
    mounts: Mounts,
    page_bytes: u64,
    swapped: Option<(Mono, u64)>,
    triggered: bool,
}

impl Looker {
    pub(super) fn new(options: Options, triggered: bool) -> Self {
        let mounts = Mounts::parse(&read(&options.proc.join("self/mountinfo")).unwrap_or_default());
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        let page_bytes = page.and_then(|page| u64::try_from(page).ok()).unwrap_or(4096);
        Self { options, mounts, page_bytes, swapped: None, triggered }
    }

    /// All that is to be seen now.
    pub(super) fn look(&mut self, processes: &Processes) -> Vec<Observation> {
        let mut facts = Vec::new();
        let mut missing = Vec::new();
        facts.extend(self.states(processes));
        facts.extend(self.cgroups(processes));
        let pressure = self.pressure();
        if pressure.is_none() {
            missing.push("no pressure stall information in this kernel");
        } else if !self.triggered {
            missing.push("no right to a pressure trigger: looked at once a second");
        }
        facts.extend(pressure);
        facts.extend(self.swap());
        facts.extend(self.shared_memory());
        if self.mounts == Mounts::default() {
            missing.push("no memory cgroups are mounted");
        }
        let mut observations: Vec<_> = facts.into_iter().map(Observation::Host).collect();
        observations.push(report(&missing));
        observations
    }

    fn states(&self, processes: &Processes) -> Option<HostFact> {
        let own = processes.values().flatten().take(MAX_STATES);
        let not_before = clock::now();
        let states: Vec<_> = own.filter_map(|one| process::state(&self.options.proc, one)).collect();
        let span = Span { not_before, not_after: clock::now() };
        (!states.is_empty()).then_some(HostFact::Processes { span, states })
    }

    /// Each cgroup with a limit once, with the engines in it.
    fn cgroups(&self, processes: &Processes) -> Vec<HostFact> {
        let mut found: BTreeMap<String, (Figures, Vec<Arc<str>>)> = BTreeMap::new();
        for (engine, own) in processes {
            for one in own {
                let path = self.options.proc.join(one.pid.to_string()).join("cgroup");
                for figures in self.mounts.limited(&read(&path).unwrap_or_default()) {
                    if found.len() >= MAX_CGROUPS && !found.contains_key(&figures.path) {
                        continue;
                    }
                    let path = figures.path.clone();
                    let (_, engines) = found.entry(path).or_insert_with(|| (figures, Vec::new()));
                    if !engines.contains(engine) {
                        engines.push(Arc::clone(engine));
                    }
                }
            }
        }
        let span = Span::at(clock::now());
        found.into_values().flat_map(|(figures, engines)| facts(span, figures, engines)).collect()
    }

    fn pressure(&self) -> Option<HostFact> {
        let text = read(&self.options.proc.join("pressure/memory"))?;
        let (some_percent, full_percent) = pressure::parse(&text)?;
        let span = Span::at(clock::now());
        Some(HostFact::Pressure(Pressure { span, cgroup: None, some_percent, full_percent }))
    }

    fn swap(&mut self) -> Option<HostFact> {
        let pages = keyed(&read(&self.options.proc.join("vmstat"))?, "pswpin")?;
        let now = clock::now();
        let (since, before) = self.swapped.replace((now, pages))?;
        let micros = u64::try_from(now.since(since).as_micros()).ok().filter(|micros| *micros > 0)?;
        let bytes = pages.saturating_sub(before).saturating_mul(self.page_bytes);
        let per_second = Bytes(bytes.saturating_mul(1_000_000) / micros);
        Some(HostFact::SwapIn { span: Span { not_before: since, not_after: now }, per_second })
    }

    fn shared_memory(&self) -> Option<HostFact> {
        let mount = &self.options.shared_memory;
        let figures = statvfs(mount).ok()?;
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(figures.fragment_size()));
        let (total, free) = (bytes(figures.blocks()), bytes(figures.blocks_free()));
        Some(HostFact::SharedMemory {
            span: Span::at(clock::now()),
            mount: mount.to_string_lossy().as_ref().into(),
            total,
            used: total.saturating_sub(free),
        })
    }
}

fn facts(span: Span, figures: Figures, engines: Vec<Arc<str>>) -> Vec<HostFact> {
    let Figures { path, limit, in_use, oom, oom_kills, pressure } = figures;
    let path: Arc<str> = path.into();
    let limit = Some(limit);
    let memory = CgroupMemory { span, path: Arc::clone(&path), engines, limit, in_use, oom, oom_kills };
    let pressed = pressure.as_deref().and_then(pressure::parse).map(|(some_percent, full_percent)| {
        HostFact::Pressure(Pressure { span, cgroup: Some(path), some_percent, full_percent })
    });
    std::iter::once(HostFact::Cgroup(Box::new(memory))).chain(pressed).collect()
}

fn report(missing: &[&str]) -> Observation {
    let health = if missing.is_empty() { SourceHealth::Ok } else { SourceHealth::Degraded };
    let detail = if missing.is_empty() {
        "memory pressure by trigger, cgroups, swap, shared memory, states of engines' processes".into()
    } else {
        missing.join("; ")
    };
    let (source, span) = ("host".into(), Span::at(clock::now()));
    Observation::Source(SourceReport { source, span, health, detail, busy: None })
}

#[cfg(test)]
mod tests {
    use gpuadmit_core::observation::{EngineProcess, ProcessRole};

    use super::*;

    #[test]
    fn a_look_at_this_machine_tells_of_this_process() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (_, start_ticks) = process::parse(&stat).unwrap();
        let own = EngineProcess { pid: std::process::id(), start_ticks, role: ProcessRole::Worker };
        let processes = BTreeMap::from([("e".into(), vec![own])]);
        let mut looker = Looker::new(Options::default(), true);
        let _first = looker.look(&processes);
        let told = looker.look(&processes);
        let facts: Vec<_> = told
            .iter()
            .filter_map(|one| if let Observation::Host(fact) = one { Some(fact) } else { None })
            .collect();
        let states = facts.iter().find_map(|fact| match fact {
            HostFact::Processes { states, .. } => Some(states.len()),
            _ => None,
        });
        assert_eq!(states, Some(1));
        assert!(facts.iter().any(|fact| matches!(fact, HostFact::SwapIn { .. })));
        assert!(
            facts
                .iter()
                .any(|fact| matches!(fact, HostFact::SharedMemory { total, used, .. } if used <= total))
        );
        assert!(matches!(told.last(), Some(Observation::Source(_))));
    }
}
