//! One run of the daemon, from the socket to the last answer.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    sync::Arc,
    time::Duration,
};

use gpuadmit_sim::Scenario;
use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::timeout,
};

use crate::{
    config::{Config, ConfigError},
    handle::Handle,
    listen::{Bound, Incoming, ListenError},
    notify::{self, Notifier, Remark},
    outputs::{self, Outputs},
    page::Readers,
    reload::Reloader,
    rpc::{self, Allowed, Parts, Services},
    sources::{self, Sources, SourcesError},
    threads::Threads,
    tokens::Tokens,
};

/// Time for open calls to be answered once the daemon stops.
const ANSWER_GRACE: Duration = Duration::from_secs(1);
/// Time to keep what outlives the daemon and to close the driver; a disk that takes longer has the last regular copy. With the above and what
/// the program gives its tasks it makes less than two seconds.
const KEEP_GRACE: Duration = Duration::from_millis(500);
/// Callers wait so long, at most, until engines have been looked at for the first time: before, every model is unknown.
const SETTLE_AT_LATEST: Duration = Duration::from_secs(3);

/// Why the daemon ended unasked.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system does not let it wait for connections.
    #[error("cannot accept connections: {0}")]
    Accept(#[from] io::Error),
    /// The system gives it no threads.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    /// A source cannot start.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// The descriptors compiled into the program are broken.
    #[error("cannot describe the API: {0}")]
    Descriptors(#[from] tonic_reflection::server::Error),
    /// The server ended.
    #[error("the server ended: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// A task that runs for ever ended.
    #[error("a task of the daemon ended")]
    Task,
}

/// A started daemon: its socket is bound and its sources run; [`Daemon::serve`] answers.
pub struct Daemon {
    config: Config,
    incoming: Incoming,
    threads: Threads,
    handle: Handle,
    services: Arc<Services>,
    stopping: watch::Sender<bool>,
    outputs: Outputs,
    sources: Sources,
    remark: Remark,
}

impl Daemon {
    /// Takes the socket and starts the sources that `config` asks for.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn start(config: Config, simulation: Option<Scenario>) -> Result<Self, DaemonError> {
        let bound = Bound::new(&config.socket)?;
        let readers = Readers::of(bound.file_gid(), bound.file_mode());
        let allowed = Allowed::new(&config.socket, bound.file_gid());
        let threads = Threads::start(&config.limits).map_err(DaemonError::Threads)?;
        let incoming = threads.within(|| Incoming::new(bound, allowed, &config.limits))?;
        let simulated = simulation.is_some();
        let left = outputs::left(&config, simulated);
        let epoch = epoch(left.as_ref().and_then(|left| left.epoch));
        let handle = Handle::new(config.settings(), epoch);
        let outputs = Outputs::start(&config, readers, epoch, left, &handle);
        let sources = sources::start(&config, simulation, &handle)?;
        let stopping = watch::Sender::new(false);
        let services = Arc::new(Services::new(&Parts {
            handle: handle.clone(),
            simulated,
            release_gpu: sources.release_gpu.clone(),
            tokens: Tokens::new(&config),
            message_bytes: usize::try_from(config.limits.message_bytes).unwrap_or(usize::MAX),
            waits_per_session: usize::try_from(config.queue.waits_per_session).unwrap_or(usize::MAX),
            stopping: stopping.subscribe(),
        })?);
        let remark = Remark::default();
        Ok(Self { config, threads, incoming, handle, services, stopping, outputs, sources, remark })
    }

    /// The node.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What reloads its configuration, which `load` reads.
    #[must_use]
    pub fn reloader<L>(&self, load: L) -> Reloader<L>
    where
        L: Fn() -> Result<Config, ConfigError> + Clone + Send + 'static,
    {
        Reloader::new(self.config.clone(), load, self.handle.clone(), self.remark.clone())
    }

    /// Serves until `stop`; then answers what is open, and keeps what outlives it: within two seconds.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let Self { config, incoming, threads, handle, services, stopping, mut outputs, sources, remark } =
            self;
        let mut tasks = JoinSet::new();
        tasks.spawn(handle.clone().run_timeouts());
        tokio::pin!(stop);
        // Callers wait in the socket meanwhile.
        let settled = timeout(SETTLE_AT_LATEST, sources.settled());
        tokio::select! {
            () = &mut stop => {
                tracing::info!("stops before it served");
                end(outputs, &sources).await;
                return Ok(());
            }
            _ = settled => {}
        }
        services.set_serving(true).await;
        tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %config.socket.path.display(), "serving");
        let mut notifier = Notifier::new(remark);
        tasks.spawn(handle.publish(config.snapshot_interval(), move |snapshot| notifier.published(snapshot)));
        let serving =
            rpc::serve(incoming, Arc::clone(&services), config.limits.clone(), stopping.subscribe());
        let serving = threads.run(serving);
        tokio::pin!(serving);
        tokio::select! {
            () = &mut stop => {}
            served = &mut serving => return ended(served),
            _ = tasks.join_next() => return Err(DaemonError::Task),
            () = outputs.run() => return Err(DaemonError::Task),
        }
        tracing::info!("stops");
        notify::stopping();
        services.set_serving(false).await;
        outputs.close_page();
        stopping.send_replace(true);
        let served = timeout(ANSWER_GRACE, serving).await;
        // A caller that did not hang up in time is left: nothing is promised any more that would not be kept.
        drop(threads);
        end(outputs, &sources).await;
        served.map_or(Ok(()), ended)
    }
}

/// How the server ended.
fn ended(served: Result<Result<(), tonic::transport::Error>, JoinError>) -> Result<(), DaemonError> {
    Ok(served.map_err(|_| DaemonError::Task)??)
}

/// Keeps what outlives the daemon and closes the driver, within their time.
async fn end(outputs: Outputs, sources: &Sources) {
    let ends = async { tokio::join!(outputs.end(), sources.end()) };
    if timeout(KEEP_GRACE, ends).await.is_err() {
        tracing::warn!("it ends without waiting for a disk or a driver that takes too long");
    }
}

/// Tells this run's reservation ids from those of earlier runs: 24 bits, random and not 0, but where promises are taken over the one
/// after theirs, so that ids go on ascending with time.
fn epoch(before: Option<u32>) -> u32 {
    const LAST: u32 = 0x00ff_ffff;

    if let Some(next) = before.map(|before| before.saturating_add(1)).filter(|next| *next <= LAST) {
        return next;
    }
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 40).unwrap_or(LAST).max(1)
}
