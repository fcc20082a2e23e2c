//! What happens to processes, and what that means for the engine they belong to.

use std::sync::Arc;

use crate::{
    event::EventKind,
    host::{HostFact, ProcessState, Scheduled},
    inquest::{Effect, Inquest, When, Who},
    node::Node,
    observation::{
        EngineProcess, OomScope, ProcessChange, ProcessEvent, ProcessRole, Resident, SourceHealth,
    },
    snapshot::{About, EngineState},
    units::{Bytes, Mono},
    verdict::Cause,
};

impl Node {
    /// Takes in what was seen of the host.
    pub(crate) fn host(&mut self, now: Mono, fact: &HostFact) {
        match fact {
            HostFact::Processes { states, .. } => self.process_states(now, states),
            other => self.follow_host(now, other),
        }
    }

    /// Takes in what happened to a process. Helpers that come and go mean nothing.
    pub(crate) fn process_event(&mut self, now: Mono, event: &ProcessEvent) {
        let Some((index, who)) = self.owner(event) else {
            if let (ProcessChange::OomVictim { rss, scope }, false) = (&event.what, event.watched) {
                self.stranger_killed(now, event, *rss, scope.as_ref());
            }
            return;
        };
        let begun = When { at: event.span.not_before, arrived: now };
        let ended = When { at: event.span.not_after, arrived: now };
        let Some(engine) = self.engines.get_mut(index) else { return };
        let own: Vec<u32> = engine.facts.processes.iter().map(|process| process.pid).collect();
        let inquest = &mut engine.inquest;
        let effect = match &event.what {
            ProcessChange::Signal { number, code, sender } => {
                let own = own.contains(&sender.pid);
                inquest.signal(begun, who, (*number, *code), sender.clone(), own)
            }
            ProcessChange::OomVictim { rss, scope } => inquest.marked(begun, who, scope.clone(), *rss),
            ProcessChange::Exit { code, signal } => inquest.exited(ended, who, *code, *signal),
            ProcessChange::OomScoreAdjusted { from, to } => {
                self.oom_score(now, index, who, *from, *to);
                Effect::Nothing
            }
            ProcessChange::AllocationFailed { requested, call } => {
                self.allocation_failed(begun, index, who, *requested, call);
                Effect::Nothing
            }
            ProcessChange::AllocationRetried { requested, call } => {
                self.allocation_retried(begun, index, who, *requested, call);
                Effect::Nothing
            }
            ProcessChange::Allocated { allocated, freed, .. } => {
                for device in self.devices.values_mut() {
                    device.moved(who.pid, *allocated, *freed);
                }
                Effect::Nothing
            }
            ProcessChange::Forked { .. } | ProcessChange::Exec => Effect::Nothing,
        };
        self.follow(now, index, effect);
    }

    /// The engine whose own process this is.
    fn owner(&self, event: &ProcessEvent) -> Option<(usize, Who)> {
        let same = |process: &&EngineProcess| {
            process.pid == event.pid
                && process.role != ProcessRole::Helper
                && event.start_ticks.is_none_or(|ticks| ticks == process.start_ticks)
        };
        self.engines.iter().enumerate().find_map(|(index, engine)| {
            let known = engine.facts.processes.iter().chain(engine.inquest.former());
            Some((index, Who::of(known.into_iter().find(same)?)))
        })
    }

    /// Somebody found that an engine is gone, or that it cannot be reached.
    pub(crate) fn found_gone(&mut self, now: Mono, index: usize, evidence: String) {
        let Some(engine) = self.engines.get_mut(index) else { return };
        let effect = engine.inquest.gone(now, evidence);
        self.follow(now, index, effect);
    }

    /// One of its processes was found missing.
    pub(crate) fn found_missing(&mut self, now: Mono, index: usize, role: ProcessRole) {
        let Some(engine) = self.engines.get_mut(index) else { return };
        let effect = engine.inquest.missing(now, role);
        self.follow(now, index, effect);
    }

    fn follow(&mut self, now: Mono, index: usize, effect: Effect) {
        let Some(engine) = self.engines.get_mut(index) else { return };
        let others_answer = matches!(effect, Effect::Close(_));
        match effect {
            Effect::Nothing => {}
            Effect::Drain(why) => {
                let open = engine.live.state != EngineState::Down;
                if open && engine.live.enter(now, EngineState::Draining, why) {
                    self.tell_state(now, index);
                }
            }
            Effect::Close(why) | Effect::Gone(why) => {
                let in_flight = engine.sizes_in_flight();
                engine.inquest.note_in_flight(in_flight);
                engine.forget_all();
                self.affinity.forget(index);
                self.alarms.forget(&About::Engine(Arc::clone(&engine.facts.engine)));
                engine.live.died(now, why, others_answer);
                self.touch(index);
            }
        }
    }

    /// Tells the verdicts that are due, and reopens engines that survived what should have ended them.
    pub(crate) fn look_at_deaths(&mut self, now: Mono) {
        for index in 0..self.engines.len() {
            self.tell_verdict(now, index, false);
            let Some(engine) = self.engines.get_mut(index) else { return };
            if engine.inquest.undecided(now) {
                let why = "a fatal signal was sent to it, but neither its end nor a sign of life was seen";
                engine.inquest = Inquest::default();
                if engine.live.enter(now, EngineState::Suspect, why) {
                    self.tell_state(now, index);
                }
            }
        }
    }

    /// Takes in what the scheduler says of processes: one that goes on after a fatal signal has survived it.
    pub(crate) fn process_states(&mut self, now: Mono, states: &[ProcessState]) {
        for index in 0..self.engines.len() {
            let Some(engine) = self.engines.get_mut(index) else { return };
            engine.note_states(states);
            let lives = |state: &&ProcessState| state.state == Scheduled::Normal;
            let alive: Vec<u32> = states.iter().filter(lives).map(|state| state.pid).collect();
            if alive.iter().any(|pid| engine.inquest.survives(now, *pid)) {
                self.survived(now, index);
            }
        }
    }

    /// A fatal signal closed it, and it lives on.
    fn survived(&mut self, now: Mono, index: usize) {
        let Some(engine) = self.engines.get_mut(index) else { return };
        engine.inquest = Inquest::default();
        let why = format!("lives on: {}, and it did not end", engine.live.why);
        if engine.live.enter(now, EngineState::Ready, why) {
            self.tell_state(now, index);
        }
    }

    /// A reading has opened it again: the case is closed.
    pub(crate) fn close_case(&mut self, now: Mono, index: usize) {
        self.tell_verdict(now, index, true);
        if let Some(engine) = self.engines.get_mut(index) {
            engine.inquest = Inquest::default();
        }
    }

    /// Tells the verdict when it is due, or `at_once`. Returns the event's cursor.
    pub(crate) fn tell_verdict(&mut self, now: Mono, index: usize, at_once: bool) -> Option<u64> {
        let heard = self.kernel_heard();
        let engine = self.engines.get_mut(index)?;
        let verdict = engine.inquest.verdict(now, heard, at_once)?;
        engine.live.why.clone_from(&verdict.sentence);
        let name = Arc::clone(&engine.facts.engine);
        let kind = match verdict.cause {
            Cause::Stopped => EventKind::EngineStopped,
            _ => EventKind::EngineDown,
        };
        let message = format!("engine {name}: {}", verdict.sentence);
        let cursor = self.history.push(now, kind, Some(&name), None, message);
        self.history.explain_newest(Some(verdict.cause), verdict.caused_by);
        if let Some(engine) = self.engines.get_mut(index) {
            engine.down_event = Some(cursor);
        }
        self.blame(now, index, &verdict);
        Some(cursor)
    }

    /// The kernel source has told all that happened before this time; `None`: it tells nothing.
    fn kernel_heard(&self) -> Option<Mono> {
        let report = self.sources.get(KERNEL)?;
        matches!(report.health, SourceHealth::Ok | SourceHealth::Degraded).then_some(report.span.not_before)
    }

    /// The OOM killer took a process that is no engine's.
    fn stranger_killed(
        &mut self,
        now: Mono,
        event: &ProcessEvent,
        resident: Option<Resident>,
        scope: Option<&OomScope>,
    ) {
        let held = resident.map(|held| held.anonymous + held.file + held.shared);
        let held = held.map_or_else(String::new, |held| format!(", which held {held}"));
        let scope = match scope {
            Some(OomScope::Machine) => "the machine ran out of memory".to_owned(),
            Some(OomScope::Cgroup(path)) => format!("memory cgroup {path} reached its limit"),
            None => return,
        };
        let (comm, pid) = (&event.comm, event.pid);
        let message = format!("the kernel's OOM killer killed {comm} (pid {pid}){held}: {scope}");
        self.history.push(now, EventKind::OomKill, None, None, message);
    }

    fn oom_score(&mut self, now: Mono, index: usize, who: Who, from: Option<i32>, to: i32) {
        let Some(name) = self.engines.get(index).map(|engine| Arc::clone(&engine.facts.engine)) else {
            return;
        };
        if to <= from.unwrap_or(0) || to <= 0 {
            return;
        }
        let from = from.map_or_else(String::new, |from| format!(" from {from}"));
        let message = format!("engine {name}: oom_score_adj of {who} was raised{from} to {to}");
        self.history.push(now, EventKind::OomScoreRaised, Some(&name), None, message);
    }

    /// Code 2 does not prove that memory ran out: the address space may be fragmented, and PyTorch frees its cache and
    /// tries again. The event says what NVML shows as free.
    fn allocation_failed(
        &mut self,
        When { at, arrived: now }: When,
        index: usize,
        who: Who,
        requested: Option<Bytes>,
        call: &str,
    ) {
        let Some(engine) = self.engines.get_mut(index) else { return };
        let name = Arc::clone(&engine.facts.engine);
        let repeated = engine.allocation_told.is_some_and(|told| now.since(told) < ALLOCATION_PAUSE);
        if let Some(event) = engine.allocation_event.filter(|_| repeated) {
            engine.inquest.allocation_failed(at, who, requested, event);
            return;
        }
        let free = engine
            .devices
            .iter()
            .filter_map(|uuid| self.devices.get(uuid)?.free_at_least(now, &self.settings))
            .min();
        let wanted = requested.unwrap_or(Bytes::ZERO).max(SHORT_OF_MEMORY);
        let kind = match free {
            Some(free) if free >= wanted => EventKind::AllocationRefused,
            _ => EventKind::AllocationFailed,
        };
        let bytes = requested.map_or_else(String::new, |bytes| format!(" of {bytes}"));
        let free = free.map_or_else(|| "free memory unknown".to_owned(), |free| format!("{free} free"));
        let message = format!("engine {name}: {call}{bytes} failed in {who}; {free}");
        let event = self.history.push(now, kind, Some(&name), None, message);
        engine.inquest.allocation_failed(at, who, requested, event);
        (engine.allocation_told, engine.allocation_event) = (Some(now), Some(event));
    }

    /// It got after all what was refused: that ends nothing.
    fn allocation_retried(
        &mut self,
        When { at, arrived: now }: When,
        index: usize,
        who: Who,
        requested: Bytes,
        call: &str,
    ) {
        let Some(engine) = self.engines.get_mut(index) else { return };
        let Some(event) = engine.inquest.allocation_succeeded(at, who) else { return };
        if engine.allocation_over == Some(event) {
            return;
        }
        engine.allocation_over = Some(event);
        let name = Arc::clone(&engine.facts.engine);
        let message = format!("engine {name}: {who} made room, tried again and got {requested} by {call}");
        self.history.push(now, EventKind::AlertOver, Some(&name), None, message);
        self.history.explain_newest(None, Some(event));
    }
}

/// Name of the source of what the kernel tells.
const KERNEL: &str = "kernel";
/// Failed allocations of one engine within this time are told once.
const ALLOCATION_PAUSE: std::time::Duration = std::time::Duration::from_mins(1);
/// With less than this free, a failed allocation is believed to be one for want of memory.
const SHORT_OF_MEMORY: Bytes = Bytes(256 << 20);
