//! One run of the daemon, from the socket to the last answer.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    sync::Arc,
    time::Duration,
};

use gpuadmit_sim::Scenario;
use tokio::{sync::watch, task::JoinSet, time::timeout};

use crate::{
    config::Config,
    handle::Handle,
    listen::{Bound, Incoming, ListenError},
    notify::{self, Notifier},
    outputs::Outputs,
    page::Readers,
    rpc::{self, Allowed, Parts, Services},
    sources::{self, Sources, SourcesError},
    tokens::Tokens,
};

/// Time for open calls to be answered once the daemon stops.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// Why the daemon ended unasked.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system does not let it wait for connections.
    #[error("cannot accept connections: {0}")]
    Accept(#[from] io::Error),
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
    handle: Handle,
    services: Arc<Services>,
    stopping: watch::Sender<bool>,
    outputs: Outputs,
    _sources: Sources,
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
        let incoming = Incoming::new(bound, allowed, &config.limits)?;
        let epoch = epoch();
        let handle = Handle::new(config.settings(), epoch);
        let simulated = simulation.is_some();
        let outputs = Outputs::start(&config, readers, epoch, simulated, &handle);
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
        Ok(Self { config, incoming, handle, services, stopping, outputs, _sources: sources })
    }

    /// The node.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Serves until `stop`; then answers what is open, for at most a second.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let Self { config, incoming, handle, services, stopping, mut outputs, _sources } = self;
        services.set_serving(true).await;
        tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %config.socket.path.display(), "serving");
        let mut tasks = JoinSet::new();
        tasks.spawn(handle.clone().run_timeouts());
        let mut notifier = Notifier::default();
        tasks.spawn(handle.publish(config.snapshot_interval(), move |snapshot| notifier.published(snapshot)));
        let serving = rpc::serve(incoming, Arc::clone(&services), &config.limits, stopping.subscribe());
        tokio::pin!(serving);
        tokio::select! {
            () = stop => {}
            served = &mut serving => return Ok(served?),
            _ = tasks.join_next() => return Err(DaemonError::Task),
            () = outputs.run() => return Err(DaemonError::Task),
        }
        notify::stopping();
        services.set_serving(false).await;
        outputs.end().await;
        stopping.send_replace(true);
        match timeout(ANSWER_GRACE, serving).await {
            Ok(served) => Ok(served?),
            Err(_) => Ok(()),
        }
    }
}

/// Tells this run's reservation ids from those of earlier runs: 24 random bits.
fn epoch() -> u32 {
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 40).unwrap_or(0)
}
