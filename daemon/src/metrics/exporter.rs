//! Opens the endpoint's doors, and tells how it fares. A door that cannot be opened is tried again: the daemon decides
//! without it.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    net::{TcpListener, UnixListener},
    task::JoinSet,
    time::sleep,
};

use super::{
    Metrics,
    events::Told,
    process::Process,
    server::{Door, Server},
};
use crate::{
    config::{Config, Prometheus, Socket},
    handle::Handle,
    listen::Bound,
};

/// Time between two attempts to open a door.
const RETRY: Duration = Duration::from_secs(5);

/// How one door fares: where it is, or why there is none.
type Opened = Arc<Mutex<Result<String, String>>>;

/// The running endpoint; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Exporter {
    doors: Vec<Opened>,
    _tasks: JoinSet<()>,
}

impl Exporter {
    /// Starts what `config` asks for.
    pub(crate) fn start(config: &Config, simulated: bool, handle: &Handle) -> Self {
        let (mut doors, mut tasks) = (Vec::new(), JoinSet::new());
        let Prometheus { enabled, address, socket, connections } = &config.prometheus;
        if !enabled {
            return Self { doors, _tasks: tasks };
        }
        let told = Arc::new(Told::default());
        tasks.spawn(Arc::clone(&told).follow(handle.clone()));
        let metrics = Metrics { handle: handle.clone(), told, process: Process::starts_now(), simulated };
        let server = Server::new(metrics, usize::try_from(*connections).unwrap_or(1));
        let places = [
            Some(address).filter(|address| !address.is_empty()).cloned().map(Place::Tcp),
            socket.clone().map(|path| Place::Unix(Socket { path, ..config.socket.clone() })),
        ];
        for place in places.into_iter().flatten() {
            let opened = Arc::new(Mutex::new(Err("not open yet".to_owned())));
            tasks.spawn(keep_open(place, server.clone(), Arc::clone(&opened)));
            doors.push(opened);
        }
        Self { doors, _tasks: tasks }
    }

    /// Where it listens, or why it does not; `None`: nobody asked for it.
    pub(crate) fn fares(&self) -> Option<Result<String, String>> {
        let fares = self.doors.iter().map(|door| door.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let (open, shut): (Vec<_>, Vec<_>) = fares.partition(Result::is_ok);
        let words = |some: Vec<Result<String, String>>| {
            some.into_iter().map(|one| one.unwrap_or_else(|error| error)).collect::<Vec<_>>().join("; ")
        };
        match (open.is_empty(), shut.is_empty()) {
            (true, true) => None,
            (_, false) => Some(Err(words(shut))),
            (false, true) => Some(Ok(words(open))),
        }
    }
}

enum Place {
    Tcp(String),
    Unix(Socket),
}

impl Place {
    /// Opens it: the door, where it is, and what must be kept as long as it is open.
    async fn open(&self) -> Result<(Door, String, Option<Bound>), String> {
        match self {
            Self::Tcp(address) => {
                let failed = |error: io::Error| format!("cannot listen on {address}: {error}");
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let at = listener.local_addr().map_err(failed)?;
                Ok((Door::Tcp(listener), format!("http://{at}/metrics"), None))
            }
            Self::Unix(socket) => {
                let bound = Bound::make(socket).map_err(|error| error.to_string())?;
                let failed =
                    |error: io::Error| format!("cannot listen on {}: {error}", socket.path.display());
                let listener = bound.listener().and_then(UnixListener::from_std).map_err(failed)?;
                Ok((Door::Unix(listener), format!("unix:{}", socket.path.display()), Some(bound)))
            }
        }
    }
}

async fn keep_open(place: Place, server: Server, fares: Opened) {
    let tell = |now: Result<String, String>| *fares.lock().unwrap_or_else(PoisonError::into_inner) = now;
    loop {
        match place.open().await {
            Ok((door, at, _bound)) => {
                tracing::info!("metrics for Prometheus at {at}");
                tell(Ok(at));
                server.serve(door).await;
                return;
            }
            Err(error) => {
                tracing::warn!("{error}; trying again every {} s", RETRY.as_secs());
                tell(Err(error));
            }
        }
        sleep(RETRY).await;
    }
}
