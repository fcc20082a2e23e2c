//! The node: engines, GPUs, incidents, and their life.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    device::{Board, CoTenant, Device, DeviceProcess, XidEvent, mib},
    live::{FIRST_PID, Live, MAX_KILLS, SimEnd},
    mishap::{self, Mishap, SimHost},
    scenario::{Incident, Scenario},
    traffic::{self, Bursts, Counters, Gate, TrafficCounts},
};

/// Pids of co-tenants lie this far above those of engines.
const CO_TENANT_PIDS: u32 = 100_000;

/// The node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No port for an engine.
    #[error("simulated engine {engine}: no port on the loopback interface: {why}")]
    Port {
        /// Its name.
        engine: String,
        /// Why.
        why: std::io::Error,
    },
}

/// An engine, as discovery would see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimEngine {
    /// Its id.
    pub name: Arc<str>,
    /// The model it serves.
    pub model: Arc<str>,
    /// Where it listens, or will.
    pub address: SocketAddr,
    /// Context window, tokens.
    pub max_model_len: u64,
    /// Its processes; empty while it is down.
    pub processes: Vec<SimProcess>,
    /// How and when its last ones ended; `None`: none has.
    pub ended: Option<SimEnd>,
    /// Its EngineCore is stopped.
    pub frozen: bool,
}

/// A process of an engine. Its pid is above any that Linux gives out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimProcess {
    /// Process id.
    pub pid: u32,
    /// Tells its lives apart, as a start time does.
    pub start_ticks: u64,
    /// What it does.
    pub role: SimRole,
}

/// What a process of an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimRole {
    /// Listens.
    ApiServer,
    /// Schedules.
    EngineCore,
    /// Runs the model: holds the device memory.
    Worker,
}

/// A simulated node. It lives in tasks of the tokio runtime it was started in; dropping it ends them all.
#[derive(Debug)]
pub struct SimNode {
    scenario: Scenario,
    start: Instant,
    engines: Arc<[Arc<Live>]>,
    boards: Vec<Board>,
    co_tenants: Vec<CoTenant>,
    /// Those not told yet, latest first.
    mishaps: Vec<(Duration, Mishap)>,
    /// Likewise.
    xids: Vec<(Duration, usize, u64)>,
    traffic: Arc<Counters>,
    tasks: JoinSet<()>,
}

impl SimNode {
    /// Starts the engines and the clock of the incidents; traffic starts with [`Self::drive`]. Must be called in a tokio
    /// runtime with I/O and time.
    ///
    /// # Errors
    /// When an engine gets no port.
    pub fn start(scenario: Scenario) -> Result<Self, Error> {
        let mut tasks = JoinSet::new();
        let (mut engines, mut kills) = (Vec::new(), Vec::new());
        for (index, spec) in (0..).zip(&scenario.engines) {
            let outputs = scenario.traffic.output_tokens;
            let (live, socket) = Live::bind(spec.clone(), index, outputs, scenario.seed)
                .map_err(|why| Error::Port { engine: spec.name.clone(), why })?;
            let live = Arc::new(live);
            let (kill, killed) = mpsc::channel(MAX_KILLS);
            tasks.spawn(Arc::clone(&live).run(socket, killed));
            engines.push(live);
            kills.push(kill);
        }
        let start = Instant::now();
        for incident in &scenario.incidents {
            let Some(name) = engine_of(incident) else { continue };
            let concerned = engines.iter().zip(&kills).find(|(live, _)| live.spec.name == name);
            if let Some((live, kill)) = concerned {
                tasks.spawn(befall(start, incident.clone(), Arc::clone(live), kill.clone()));
            }
        }
        // An engine whose last sender is gone would take that for a kill without end.
        tasks.spawn(async move {
            std::future::pending::<()>().await;
            drop(kills);
        });
        Ok(Self {
            boards: (0..).zip(&scenario.gpus).map(|(index, gpu)| Board::new(index, gpu)).collect(),
            co_tenants: co_tenants(&scenario.incidents),
            mishaps: mishap::mishaps(&scenario.incidents),
            xids: xids(&scenario.incidents),
            engines: engines.into(),
            traffic: Arc::default(),
            scenario,
            start,
            tasks,
        })
    }

    /// Sends the scenario's traffic through `gate`. Called once.
    pub fn drive<G: Gate>(&mut self, gate: Arc<G>) {
        let (engines, counters) = (Arc::clone(&self.engines), Arc::clone(&self.traffic));
        let traffic = self.scenario.traffic.clone();
        let bursts = Bursts { start: self.start, incidents: self.scenario.incidents.clone() };
        let seed = self.scenario.seed;
        self.tasks.spawn(traffic::burst(
            traffic.clone(),
            bursts,
            seed,
            Arc::clone(&engines),
            Arc::clone(&counters),
        ));
        self.tasks.spawn(traffic::drive(traffic, seed, engines, counters, gate));
    }

    /// What became of the traffic so far.
    #[must_use]
    pub fn traffic(&self) -> TrafficCounts {
        self.traffic.read()
    }

    /// The engines as they are now.
    #[must_use]
    pub fn engines(&self) -> Vec<SimEngine> {
        self.engines.iter().map(|live| describe(live)).collect()
    }

    /// The GPUs as they are now.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        let now = self.start.elapsed();
        (0..).zip(&self.boards).map(|(gpu, board)| self.device(gpu, board, now)).collect()
    }

    /// The host's memory as it is now.
    #[must_use]
    pub fn host(&self) -> SimHost {
        mishap::host(&self.scenario.incidents, self.start.elapsed())
    }

    /// What happened to engines' processes since the last call, and when.
    pub fn take_mishaps(&mut self) -> Vec<(Instant, Mishap)> {
        let now = self.start.elapsed();
        let due = || self.mishaps.pop_if(|(at, _)| *at <= now);
        std::iter::from_fn(due).map(|(at, mishap)| (self.start + at, mishap)).collect()
    }

    /// Xid errors since the last call.
    pub fn take_device_events(&mut self) -> Vec<XidEvent> {
        let now = self.start.elapsed();
        let mut due = Vec::new();
        while let Some((at, gpu, code)) = self.xids.pop_if(|(at, ..)| *at <= now) {
            if let Some(board) = self.boards.get(gpu) {
                let (uuid, pci) = (Arc::clone(&board.uuid), Arc::clone(&board.pci));
                due.push(XidEvent { at: self.start + at, uuid, pci, code });
            }
        }
        due
    }

    fn device(&self, gpu: usize, board: &Board, now: Duration) -> Device {
        let on_it = || self.engines.iter().filter(|live| live.spec.gpus.contains(&gpu));
        let engines = on_it().filter_map(|live| {
            let (_, [.., worker]) = live.processes()?;
            Some(DeviceProcess { pid: worker, used_bytes: mib(live.memory_mib()) })
        });
        let tenants = self.co_tenants.iter().filter(|tenant| tenant.gpu == gpu);
        let tenants = tenants.map(|tenant| DeviceProcess { pid: tenant.pid, used_bytes: tenant.bytes(now) });
        let busy = on_it().any(|live| live.running() > 0);
        board.with(engines.chain(tenants), busy, hung(&self.scenario.incidents, gpu, now))
    }
}

fn describe(live: &Live) -> SimEngine {
    let roles = [SimRole::ApiServer, SimRole::EngineCore, SimRole::Worker];
    let processes = live.processes().map_or_else(Vec::new, |(life, pids)| {
        let start_ticks = u64::from(life);
        pids.into_iter().zip(roles).map(|(pid, role)| SimProcess { pid, start_ticks, role }).collect()
    });
    SimEngine {
        name: live.spec.name.as_str().into(),
        model: live.spec.model.as_str().into(),
        address: live.address,
        max_model_len: live.spec.max_model_len,
        processes,
        ended: live.ended(),
        frozen: live.frozen(),
    }
}

fn engine_of(incident: &Incident) -> Option<&str> {
    match incident {
        Incident::Stall { engine, .. } | Incident::Kill { engine, .. } | Incident::Sleep { engine, .. } => {
            Some(engine)
        }
        Incident::StuckGauge { engine, .. } => Some(engine),
        _ => None,
    }
}

/// Lets an incident of an engine happen.
async fn befall(start: Instant, incident: Incident, live: Arc<Live>, kill: mpsc::Sender<Duration>) {
    match incident {
        Incident::Stall { at_s, for_s, .. } => {
            sleep_until(start + seconds(at_s)).await;
            live.freeze(true);
            sleep_until(start + seconds(at_s) + seconds(for_s)).await;
            live.freeze(false);
        }
        Incident::Sleep { at_s, for_s, .. } => {
            sleep_until(start + seconds(at_s)).await;
            live.set_asleep(true);
            sleep_until(start + seconds(at_s) + seconds(for_s)).await;
            live.set_asleep(false);
        }
        Incident::StuckGauge { at_s, for_s, usage, .. } => {
            sleep_until(start + seconds(at_s)).await;
            live.stick_gauge(Some(usage));
            sleep_until(start + seconds(at_s) + seconds(for_s)).await;
            live.stick_gauge(None);
        }
        Incident::Kill { at_s, restart_after_s, by, .. } => {
            sleep_until(start + seconds(at_s)).await;
            live.will_end_by(by);
            // When as many kills wait already, one more changes nothing.
            let _ = kill.try_send(seconds(restart_after_s));
        }
        _ => {}
    }
}

fn co_tenants(incidents: &[Incident]) -> Vec<CoTenant> {
    (FIRST_PID + CO_TENANT_PIDS..)
        .zip(incidents)
        .filter_map(|(pid, incident)| match *incident {
            Incident::CoTenant { at_s, gpu, mib_per_s, max_mib, hold_s } => {
                Some(CoTenant { pid, gpu, start: seconds(at_s), mib_per_s, max_mib, hold: seconds(hold_s) })
            }
            _ => None,
        })
        .collect()
}

fn xids(incidents: &[Incident]) -> Vec<(Duration, usize, u64)> {
    let mut xids: Vec<_> = incidents
        .iter()
        .filter_map(|incident| match *incident {
            Incident::Xid { at_s, gpu, code } => Some((seconds(at_s), gpu, code)),
            _ => None,
        })
        .collect();
    xids.sort_unstable_by(|one, other| other.cmp(one));
    xids
}

fn hung(incidents: &[Incident], on: usize, now: Duration) -> bool {
    incidents.iter().any(|incident| match *incident {
        Incident::NvmlHang { at_s, gpu, for_s } => {
            gpu == on && (seconds(at_s)..seconds(at_s) + seconds(for_s)).contains(&now)
        }
        _ => false,
    })
}

/// A scenario's seconds; its check has kept them within a week.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
