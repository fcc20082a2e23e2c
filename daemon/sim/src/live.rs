//! An engine in real time: a scheduler that steps, a port that listens, processes that die and come back.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    net::{TcpListener, TcpSocket},
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep},
};

use crate::{
    engine::{Engine, Job, Output, Refusal},
    exposition, http,
    number::{count, float},
    random::Random,
    scenario::{End, EngineSpec, Length},
    stats::Finish,
};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 256;
/// Kills that may be asked for and not yet done.
pub(crate) const MAX_KILLS: usize = 4;
/// Pause between two attempts to have the engine's port again after its death.
const REBIND_PAUSE: Duration = Duration::from_millis(200);
/// Linux gives out no pid above 2^22 (`PID_MAX_LIMIT`): numbers from here on never meet a real process.
pub(crate) const FIRST_PID: u32 = 4_200_000;
/// Pids set apart for each engine.
const PIDS_PER_ENGINE: u32 = 3000;
/// Processes of an engine.
const PROCESSES: u32 = 3;
/// Device memory that a sleeping engine keeps (its CUDA context), MiB.
const ASLEEP_MIB: u64 = 1500;

/// How far a request has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens generated.
    pub generated: u64,
    /// Set when it has ended.
    pub finish: Option<Finish>,
}

/// Why a request does not get into an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The engine refuses it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No process of the engine is there, or it is still loading.
    #[error("the engine is not running")]
    NotRunning,
}

/// The end of an engine's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimEnd {
    /// How.
    pub by: End,
    /// When.
    pub at: Instant,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) prompt_tokens: u64,
    /// `None`: the rest of the context window.
    pub(crate) max_tokens: Option<u64>,
    /// Go on to the limit, whatever the model would do.
    pub(crate) ignore_eos: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Down,
    Loading { since: Instant },
    Up { life: u32, start: f64 },
}

#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    frozen: bool,
    asleep: bool,
    /// What the gauge of the KV cache shows whatever is in it.
    stuck_at: Option<f64>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    lives: u32,
    engine: Engine,
    /// How it is to end next.
    will_end_by: Option<End>,
    ended: Option<SimEnd>,
    streams: BTreeMap<u64, watch::Sender<Progress>>,
    last_id: u64,
    random: Random,
}

/// An engine in real time.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) spec: EngineSpec,
    pub(crate) address: SocketAddr,
    index: u32,
    outputs: Length,
    origin: Instant,
    state: Mutex<State>,
    hold: watch::Sender<Hold>,
    wake: Notify,
}

impl Live {
    /// The `index`-th engine, with a port of its own that nobody listens on yet.
    pub(crate) fn bind(
        spec: EngineSpec,
        index: u32,
        outputs: Length,
        seed: u64,
    ) -> std::io::Result<(Self, TcpSocket)> {
        let socket = reserve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let state = State {
            phase: Phase::Down,
            lives: 0,
            engine: Engine::new(spec.limits(), seed),
            will_end_by: None,
            ended: None,
            streams: BTreeMap::new(),
            last_id: 0,
            random: Random::new(seed ^ u64::from(index)),
        };
        let live = Self {
            address: socket.local_addr()?,
            spec,
            index,
            outputs,
            origin: Instant::now(),
            state: Mutex::new(state),
            hold: watch::Sender::new(Hold::default()),
            wake: Notify::new(),
        };
        Ok((live, socket))
    }

    /// Lives, is killed with a time until restart, lives again, for ever.
    pub(crate) async fn run(self: Arc<Self>, mut socket: TcpSocket, mut kills: mpsc::Receiver<Duration>) {
        loop {
            let life = Life::start(&self);
            let restart_after = tokio::select! {
                () = self.live(socket) => return,
                asked = kills.recv() => asked,
            };
            drop(life);
            let Some(restart_after) = restart_after else { return };
            socket = self.rebind().await;
            sleep(restart_after).await;
        }
    }

    async fn live(self: &Arc<Self>, socket: TcpSocket) {
        sleep(Duration::from_millis(self.spec.load_ms)).await;
        // The socket is bound: listening fails only when the system is out of memory for sockets.
        let Ok(listener) = socket.listen(BACKLOG) else { return };
        self.up();
        tokio::join!(self.serve(listener), self.step());
    }

    async fn serve(self: &Arc<Self>, listener: TcpListener) {
        http::serve(listener, self).await;
    }

    /// The port again, not listening: connections are refused meanwhile, and nobody else gets it.
    async fn rebind(&self) -> TcpSocket {
        loop {
            match reserve(self.address) {
                Ok(socket) => return socket,
                Err(_) => sleep(REBIND_PAUSE).await,
            }
        }
    }

    async fn step(&self) {
        let mut hold = self.hold.subscribe();
        loop {
            let took = self.lock().engine.begin_step(self.now());
            let Some(took) = took else {
                self.wake.notified().await;
                continue;
            };
            sleep(took).await;
            // The sender is in `self`, so that this ends only when the hold does.
            let _ = hold.wait_for(|hold| !hold.frozen && !hold.asleep).await;
            self.finish_step();
        }
    }

    fn finish_step(&self) {
        let now = self.now();
        let mut state = self.lock();
        for Output { id, generated, finish } in state.engine.finish_step(now) {
            if let Some(stream) = state.streams.get(&id) {
                stream.send_replace(Progress { generated, finish });
            }
            if finish.is_some() {
                state.streams.remove(&id);
            }
        }
    }

    fn up(&self) {
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut state = self.lock();
        state.phase = Phase::Up { life: state.lives, start };
    }

    /// Puts a request into the queue. It is aborted when what is returned is dropped before its end.
    pub(crate) fn submit(self: &Arc<Self>, ask: Ask) -> Result<Stream, SubmitError> {
        let now = self.now();
        let mut guard = self.lock();
        let state = &mut *guard;
        if !matches!(state.phase, Phase::Up { .. }) {
            return Err(SubmitError::NotRunning);
        }
        let drawn = self.outputs.draw(&mut state.random);
        let job = Job {
            id: state.last_id + 1,
            prompt_tokens: ask.prompt_tokens,
            max_tokens: ask.max_tokens.unwrap_or(self.rest(ask.prompt_tokens)),
            natural_tokens: if ask.ignore_eos { u64::MAX } else { drawn },
        };
        state.engine.submit(now, job)?;
        state.last_id = job.id;
        let (sender, progress) = watch::channel(Progress::default());
        state.streams.insert(job.id, sender);
        drop(guard);
        self.wake.notify_one();
        Ok(Stream { live: Arc::clone(self), id: job.id, progress })
    }

    /// Output tokens that the context window leaves after a prompt.
    pub(crate) const fn rest(&self, prompt_tokens: u64) -> u64 {
        self.spec.max_model_len.saturating_sub(prompt_tokens)
    }

    fn abort(&self, id: u64) {
        let mut state = self.lock();
        if state.streams.remove(&id).is_some() {
            state.engine.abort(id);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Freezes the scheduler, or lets it go on.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.hold.send_modify(|hold| hold.frozen = frozen);
    }

    /// Lets the gauge of the KV cache stick, or go on.
    pub(crate) fn stick_gauge(&self, at: Option<f64>) {
        self.hold.send_modify(|hold| hold.stuck_at = at);
    }

    /// Whether the scheduler is frozen.
    pub(crate) fn frozen(&self) -> bool {
        self.hold.borrow().frozen
    }

    /// Says how its next end is to look.
    pub(crate) fn will_end_by(&self, end: End) {
        self.lock().will_end_by = Some(end);
    }

    /// How and when its last life ended.
    pub(crate) fn ended(&self) -> Option<SimEnd> {
        self.lock().ended
    }

    /// Puts the engine to sleep: its requests are aborted. Or wakes it.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.hold.send_modify(|hold| hold.asleep = asleep);
        if !asleep {
            return;
        }
        let now = self.now();
        let mut state = self.lock();
        for id in state.engine.abort_all() {
            if let Some(stream) = state.streams.remove(&id) {
                stream.send_modify(|progress| progress.finish = Some(Finish::Abort));
            }
        }
        if state.engine.begin_step(now).is_some() {
            state.engine.finish_step(now);
        }
    }

    /// `/metrics`; `None` while no process is up.
    pub(crate) fn metrics(&self, wanted: &[String]) -> Option<String> {
        let Hold { asleep, stuck_at, .. } = *self.hold.borrow();
        let state = self.lock();
        let Phase::Up { start, .. } = state.phase else { return None };
        let mut stats = state.engine.stats().clone();
        drop(state);
        stats.gauges.kv_usage = stuck_at.unwrap_or(stats.gauges.kv_usage);
        let process = exposition::Process { start, asleep };
        Some(exposition::render(&self.spec, &stats, process, wanted))
    }

    /// Requests in the batch at the end of the last step.
    pub(crate) fn running(&self) -> u64 {
        self.lock().engine.stats().gauges.running
    }

    /// Its life, counted from 1, and the pids of API server, EngineCore and worker; `None` while it is down.
    pub(crate) fn processes(&self) -> Option<(u32, [u32; 3])> {
        let state = self.lock();
        if state.phase == Phase::Down {
            return None;
        }
        let place = state.lives % (PIDS_PER_ENGINE / PROCESSES) * PROCESSES;
        let first = FIRST_PID + self.index * PIDS_PER_ENGINE + place;
        Some((state.lives, [first, first + 1, first + 2]))
    }

    /// Device memory it holds on each of its GPUs, MiB.
    pub(crate) fn memory_mib(&self) -> u64 {
        if self.hold.borrow().asleep {
            return self.spec.memory_mib.min(ASLEEP_MIB);
        }
        match self.lock().phase {
            Phase::Down => 0,
            Phase::Up { .. } => self.spec.memory_mib,
            Phase::Loading { since } => {
                let loaded = since.elapsed().as_secs_f64() * 1e3 / float(self.spec.load_ms.max(1));
                count(float(self.spec.memory_mib) * loaded.min(1.0))
            }
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From the start of the processes to their death, which drops every request.
struct Life<'a>(&'a Live);

impl<'a> Life<'a> {
    fn start(live: &'a Live) -> Self {
        let mut state = live.lock();
        state.lives = state.lives.wrapping_add(1);
        let seed = state.random.bits();
        state.engine = Engine::new(live.spec.limits(), seed);
        state.phase = Phase::Loading { since: Instant::now() };
        drop(state);
        Self(live)
    }
}

impl Drop for Life<'_> {
    fn drop(&mut self) {
        // Not at the start of a life: an incident that begins with the node may come before the first.
        self.0.hold.send_replace(Hold::default());
        let mut state = self.0.lock();
        state.phase = Phase::Down;
        state.ended = state.will_end_by.map(|by| SimEnd { by, at: Instant::now() });
        state.streams.clear();
    }
}

/// A request in an engine.
#[derive(Debug)]
pub(crate) struct Stream {
    live: Arc<Live>,
    id: u64,
    progress: watch::Receiver<Progress>,
}

impl Stream {
    /// Number of the request in its engine.
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// The next progress; `None` when the engine has died.
    pub(crate) async fn next(&mut self) -> Option<Progress> {
        self.progress.changed().await.ok()?;
        Some(*self.progress.borrow_and_update())
    }

    /// Where it stands.
    pub(crate) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Its end; `None` when the engine has died.
    pub(crate) async fn end(&mut self) -> Option<Progress> {
        self.progress.wait_for(|progress| progress.finish.is_some()).await.ok().map(|progress| *progress)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.live.abort(self.id);
    }
}

fn reserve(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[tokio::test]
    async fn what_begins_before_the_first_life_lasts_until_its_end() {
        let Scenario { engines, traffic, .. } = Scenario::parse("").unwrap();
        let spec = engines.into_iter().next().unwrap();
        let (live, _socket) = Live::bind(spec, 0, traffic.output_tokens, 1).unwrap();
        live.stick_gauge(Some(0.5));
        let stuck = || live.hold.borrow().stuck_at;
        let life = Life::start(&live);
        assert_eq!(stuck(), Some(0.5));
        drop(life);
        assert_eq!(stuck(), None);
    }
}
