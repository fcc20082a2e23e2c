//! Taking in facts.

use std::sync::Arc;

use crate::{
    device::MAX_DEVICES,
    engine::Engine,
    event::{EventKind, Severity},
    node::Node,
    observation::{
        DeviceEvent, EngineFacts, EngineReading, Observation, Obstacle, ProcessRole, ScrapeFailure,
        SourceHealth, SourceReport,
    },
    queue::Engines,
    snapshot::{EngineState, Touched},
    units::{Mono, Span},
    xid,
};

/// Most engines kept; beyond it a dead one makes room.
const MAX_ENGINES: usize = 64;
/// Name of the source of device figures.
const NVML: &str = "nvml";
/// Most sources kept.
const MAX_SOURCES: usize = 256;

impl Node {
    /// Takes in a fact.
    pub fn observe(&mut self, now: Mono, observation: Observation) {
        self.take_in(now, observation);
        self.serve(now, Engines::ALL);
    }

    fn take_in(&mut self, now: Mono, observation: Observation) {
        match observation {
            Observation::Engine(facts) => self.engine(now, *facts),
            Observation::EngineGone { engine, evidence, .. } => self.engine_gone(now, &engine, evidence),
            Observation::Reading { engine, reading } => self.reading(now, &engine, *reading),
            Observation::ScrapeFailed { engine, failure, .. } => self.scrape_failed(now, &engine, &failure),
            Observation::Device(reading) => {
                let uuid = Arc::clone(&reading.uuid);
                if let Some(device) = self.device(&uuid) {
                    device.read(*reading);
                    self.look_at_device(now, &uuid);
                }
            }
            Observation::DeviceProcesses(listed) => {
                let uuid = Arc::clone(&listed.uuid);
                if let Some(device) = self.device(&uuid) {
                    device.processes = Some(listed);
                    self.join_devices();
                    self.follow_tenants(now, &uuid);
                    self.look_at_device(now, &uuid);
                }
            }
            Observation::DeviceEvent { uuid, span, event } => self.device_event(now, &uuid, span, &event),
            Observation::Process(event) => self.process_event(now, &event),
            Observation::Host(fact) => self.host(now, &fact),
            Observation::Source(report) => self.source(now, report),
        }
    }

    fn index_of(&self, engine: &str) -> Option<usize> {
        self.engines.iter().position(|known| &*known.facts.engine == engine)
    }

    fn engine(&mut self, now: Mono, facts: EngineFacts) {
        match self.index_of(&facts.engine) {
            None => self.new_engine(now, facts),
            Some(index) => {
                let Some(engine) = self.engines.get_mut(index) else { return };
                let fate = fate(&engine.facts, &facts);
                engine.inquest.follow_processes(&engine.facts.processes, &facts.processes);
                engine.facts = facts;
                match fate {
                    Fate::Lives => {}
                    Fate::Restarted => self.restarted(now, index),
                    Fate::LostProcess(role) => self.found_missing(now, index, role),
                }
                self.reconsider(now, index);
            }
        }
        let processes = self.engines.iter().flat_map(|engine| &engine.facts.processes);
        let pids = processes.map(|process| process.pid).collect();
        let before = std::mem::replace(&mut self.engine_pids, pids);
        let found: Vec<u32> = self.engine_pids.difference(&before).copied().collect();
        for device in self.devices.values_mut() {
            device.engine_found(&found);
        }
        self.join_devices();
    }

    fn new_engine(&mut self, now: Mono, facts: EngineFacts) {
        if self.engines.len() >= MAX_ENGINES {
            let down = self.engines.iter().position(|engine| engine.live.state == EngineState::Down);
            let Some(down) = down else { return };
            self.engines.remove(down);
            self.affinity.remove(down);
            self.touched = Touched::All;
        }
        let why = not_answered("found", facts.obstacle);
        self.engines.push(Engine::new(facts, now).with(self.settings.parts));
        if let Some(engine) = self.engines.last_mut() {
            engine.live.why = why;
        }
        self.tell_state(now, self.engines.len() - 1);
    }

    /// The engine's processes are new ones: what it held is gone.
    fn restarted(&mut self, now: Mono, index: usize) {
        self.close_case(now, index);
        let Some(engine) = self.engines.get_mut(index) else { return };
        let (lost, down_event) = (engine.ledger.live.len(), engine.down_event.take());
        engine.begin_anew();
        self.affinity.forget(index);
        let why = not_answered("started again", engine.facts.obstacle);
        engine.live.enter(now, EngineState::Starting, why);
        let name = Arc::clone(&engine.facts.engine);
        for device in self.devices.values_mut() {
            device.forget_baseline(&name);
        }
        let message = format!("engine {name} was started again; {lost} reservations dropped");
        self.history.push(now, EventKind::EngineRestarted, Some(&name), None, message);
        self.history.explain_newest(None, down_event);
        self.touch(index);
    }

    fn engine_gone(&mut self, now: Mono, engine: &str, evidence: String) {
        let Some(index) = self.index_of(engine) else { return };
        self.found_gone(now, index, evidence);
    }

    fn reading(&mut self, now: Mono, engine: &str, reading: EngineReading) {
        let Some(index) = self.index_of(engine) else { return };
        let live = self.engines.get(index).map(|engine| &engine.live);
        if live.is_some_and(|live| live.ended_after(reading.span.not_before)) {
            return;
        }
        self.resume(now, index, &reading.ranks);
        let Some(engine) = self.engines.get_mut(index) else { return };
        let held = engine.ledger.live.len();
        let model = engine.model();
        let before = engine.lengths();
        let ranks = reading.ranks.clone();
        let effect = engine.read(now, reading, &self.settings);
        let after = engine.lengths();
        if let Some(seen) = engine.seen() {
            self.reports.read(&engine.facts.engine, seen);
        }
        // Read rarely, so that most readings bring no change. After a restart it counts from nothing.
        if after != before && !after.is_empty() {
            let before = if effect.restarted { Vec::new() } else { before };
            let (told, cut) = (std::mem::take(&mut engine.told), engine.cut_share());
            self.book.take_histogram(&model, (&before, &after), told, cut);
        }
        if effect.restarted {
            self.affinity.forget(index);
            let name = Arc::clone(&engine.facts.engine);
            let message = format!(
                "engine {name} was started again (its counters began anew); {held} reservations dropped"
            );
            self.history.push(now, EventKind::EngineRestarted, Some(&name), None, message);
        }
        if effect.state_changed {
            self.close_case(now, index);
            self.tell_state(now, index);
        }
        self.follow_engine(now, index, &ranks);
        self.foresee(now);
        self.touch(index);
    }

    fn scrape_failed(&mut self, now: Mono, engine: &str, failure: &ScrapeFailure) {
        let Some(index) = self.index_of(engine) else { return };
        let Some(engine) = self.engines.get_mut(index) else { return };
        let seen = !engine.facts.processes.is_empty();
        let live = &mut engine.live;
        let changed = match failure {
            ScrapeFailure::Refused if matches!(live.state, EngineState::Starting | EngineState::Down) => {
                live.refused();
                false
            }
            ScrapeFailure::Refused => {
                self.found_gone(now, index, "nothing listens at its address".into());
                return;
            }
            // A slow or broken scrape is not a dead engine: the age of the last reading says enough.
            ScrapeFailure::TimedOut => live.unanswered(now, None, seen),
            ScrapeFailure::Connection(what) => live.unanswered(now, Some(what), seen),
            ScrapeFailure::Status(status) => live.unreadable(now, &format!("HTTP status {status}")),
            ScrapeFailure::NoSeries => live.unreadable(now, "no engine series (statistics switched off?)"),
            ScrapeFailure::Malformed(what) => live.unreadable(now, what),
        };
        if changed {
            self.tell_state(now, index);
        }
    }

    fn device(&mut self, uuid: &Arc<str>) -> Option<&mut crate::device::Device> {
        if self.devices.len() >= MAX_DEVICES && !self.devices.contains_key(uuid) {
            return None;
        }
        Some(self.devices.entry(Arc::clone(uuid)).or_default())
    }

    /// Joins engines and devices by the processes on each, and notes the level beside which an engine started. One that
    /// has just ended keeps those it held until its verdict: an error of them may still arrive.
    fn join_devices(&mut self) {
        for engine in self.engines.iter_mut().filter(|engine| !engine.inquest.is_open()) {
            let pids: Vec<u32> = engine.facts.processes.iter().map(|process| process.pid).collect();
            engine.devices.clear();
            for (uuid, device) in &mut self.devices {
                let listed = device.processes.iter().flat_map(|listed| &listed.processes);
                if listed.into_iter().any(|process| pids.contains(&process.pid)) {
                    engine.devices.push(Arc::clone(uuid));
                    if engine.live.state == EngineState::Ready {
                        device.note_baseline(&engine.facts.engine, |pid| self.engine_pids.contains(&pid));
                    }
                }
            }
        }
    }

    fn device_event(&mut self, now: Mono, uuid: &Arc<str>, span: Span, event: &DeviceEvent) {
        let (kind, message) = match event {
            DeviceEvent::Xid { code } => {
                let class = xid::class(*code);
                (class.event(), format!("device {uuid}: Xid {code}: {}", class.as_str()))
            }
            DeviceEvent::EccUncorrected => {
                (EventKind::EccUncorrected, format!("device {uuid}: uncorrected ECC error"))
            }
            // Corrected errors are the memory doing its work; they are no news.
            DeviceEvent::EccCorrected => return,
            DeviceEvent::Lost => (EventKind::DeviceLost, format!("device {uuid} is gone from the driver")),
            DeviceEvent::Hung => {
                (EventKind::NvmlHung, format!("a driver call for device {uuid} does not return"))
            }
            DeviceEvent::Recovered => {
                (EventKind::DeviceRecovered, format!("device {uuid} can be read again"))
            }
        };
        let cursor = self.history.push(span.not_after, kind, None, Some(uuid), message);
        let Some(device) = self.device(uuid) else { return };
        match event {
            DeviceEvent::Lost => device.trouble = Some("gone from the driver".into()),
            DeviceEvent::Hung => device.trouble = Some("a driver call does not return".into()),
            DeviceEvent::Recovered => device.trouble = None,
            _ => {}
        }
        if kind.severity() > Severity::Info {
            let first = device.first_trouble(now, cursor);
            self.history.explain_newest(None, first);
        }
        if let DeviceEvent::Xid { code } = event {
            self.xid(now, span, uuid, *code, cursor);
        }
    }

    /// The driver reported an error of a GPU, which `event` told: it may explain a death, and holds the engines that use it.
    fn xid(&mut self, now: Mono, span: Span, uuid: &Arc<str>, code: u64, event: u64) {
        let parts = self.devices.iter().filter(|(_, device)| device.is_part_of(uuid));
        let parts: Vec<Arc<str>> = parts.map(|(part, _)| Arc::clone(part)).collect();
        for index in 0..self.engines.len() {
            let Some(engine) = self.engines.get_mut(index) else { return };
            if !engine.devices.iter().any(|used| used == uuid || parts.contains(used)) {
                continue;
            }
            engine.inquest.xid(span.not_before, code, Arc::clone(uuid), event);
            let class = xid::class(code);
            let Some(hold) = class.hold(engine.devices.len() > 1) else { continue };
            let why = format!("Xid {code} on its device {uuid}: {}", class.as_str());
            if engine.live.device_failed(now, hold, why) {
                self.tell_state(now, index);
            }
            self.touch(index);
        }
    }

    fn source(&mut self, now: Mono, report: SourceReport) {
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&report.source) {
            return;
        }
        let at = report.span.not_after;
        let failed = |health| health == SourceHealth::Failed;
        let before = self.sources.get(&report.source).is_some_and(|before| failed(before.health));
        let (name, now_failed) = (Arc::clone(&report.source), failed(report.health));
        let message = format!("source {name}: {}", report.detail);
        self.sources.insert(Arc::clone(&name), report);
        match (before, now_failed) {
            (false, true) if self.explained(&name) => {}
            (false, true) => {
                self.history.push(at, EventKind::SourceFailed, None, None, message);
                let troubles = self.devices.values().filter_map(|device| device.recent_trouble(now));
                let first = (&*name == NVML).then(|| troubles.min()).flatten();
                self.history.explain_newest(None, first);
            }
            (true, false) => {
                self.history.push(at, EventKind::SourceRecovered, None, None, message);
            }
            _ => {}
        }
    }

    /// Whether a source cannot but fail, for its engine is down or about to be: that is told already.
    fn explained(&self, source: &str) -> bool {
        let engine = source.strip_prefix("metrics/").and_then(|engine| self.index_of(engine));
        let state = engine.and_then(|index| self.engines.get(index)).map(|engine| engine.live.state);
        matches!(state, Some(EngineState::Down | EngineState::Starting | EngineState::Draining))
    }
}

/// Why an engine is in state [`EngineState::Starting`].
fn not_answered(what: &str, obstacle: Option<Obstacle>) -> String {
    match obstacle {
        Some(obstacle) => format!("{what}; cannot be asked: {}", obstacle.as_str()),
        None => format!("{what}; has not answered yet"),
    }
}

/// What new facts say of an engine's life.
enum Fate {
    Lives,
    /// Its API server is another process than before.
    Restarted,
    /// A process of this role is gone and none has taken its place.
    LostProcess(ProcessRole),
}

/// Compares an engine's own processes. Those we do not see tell nothing, and helpers may come and go.
fn fate(before: &EngineFacts, now: &EngineFacts) -> Fate {
    let of = |facts: &EngineFacts, role: ProcessRole| {
        let processes = facts.processes.iter().filter(|process| process.role == role);
        processes.map(|process| (process.pid, process.start_ticks)).collect::<Vec<_>>()
    };
    let api = (of(before, ProcessRole::ApiServer), of(now, ProcessRole::ApiServer));
    if !api.0.is_empty() && !api.1.is_empty() && !api.0.iter().any(|process| api.1.contains(process)) {
        return Fate::Restarted;
    }
    for role in [ProcessRole::EngineCore, ProcessRole::Worker, ProcessRole::ApiServer] {
        if of(now, role).len() < of(before, role).len() {
            return Fate::LostProcess(role);
        }
    }
    Fate::Lives
}
