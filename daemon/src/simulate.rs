//! The simulated node, on the paths of the real one: its GPUs speak the NVML child's messages, its engines are scraped
//! over HTTP, its traffic asks for admission. Only discovery is played here: the processes have no `/proc`.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use gpuadmit_core::units::Mono;
use gpuadmit_sim::{Scenario, SimEngine, SimNode};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    clock,
    handle::Handle,
    source::{
        Observe,
        nvml::wire,
        vllm::{ConfiguredEngine, address::Address},
    },
};

mod devices;
mod engines;
mod gate;
mod host;

use self::{devices::Devices, engines::Engines, gate::Gateway, host::Host};

/// Messages of the devices that may wait for the NVML source.
const MAX_MESSAGES: usize = 256;
/// Time between two looks at the simulated node: that between two readings of a real GPU's memory.
const LOOK: Duration = Duration::from_millis(100);
/// Traffic starts when every engine is known, or after this time.
const TRAFFIC_AT_LATEST: Duration = Duration::from_secs(3);

/// A running simulated node, for the sources to be pointed at. It ends when nobody reads its devices any more.
pub struct Simulated {
    /// What the NVML source is to read.
    pub devices: mpsc::Receiver<wire::Message>,
    /// What the vLLM source is to scrape.
    pub engines: Vec<ConfiguredEngine>,
    /// What the vLLM source is to observe with: it adds to each engine's facts the processes that discovery would have
    /// found.
    pub observe: Observe,
}

/// Starts a simulated node, and its traffic through `handle`.
///
/// # Errors
/// An engine gets no port.
pub fn start(scenario: Scenario, handle: &Handle) -> Result<Simulated, gpuadmit_sim::Error> {
    let node = SimNode::start(scenario)?;
    let addressed = node.engines().iter().map(configured).collect();
    let engines = Engines::new(handle.observer());
    let observe = engines.observer();
    let (messages, devices) = mpsc::channel(MAX_MESSAGES);
    let host = Host::new(handle.observer());
    tokio::spawn(run(node, engines, (Devices::new(messages), host), handle.clone()));
    Ok(Simulated { devices, engines: addressed, observe })
}

fn configured(engine: &SimEngine) -> ConfiguredEngine {
    let (host, port) = (engine.address.ip().to_string(), engine.address.port());
    let address = Address::Tcp { host, port };
    ConfiguredEngine { id: engine.name.to_string(), address, models: Vec::new(), api_key: None }
}

async fn run(mut node: SimNode, engines: Engines, (mut devices, mut host): (Devices, Host), handle: Handle) {
    let mut traffic = Some(tokio::spawn(all_known(handle.clone(), node.engines().len())));
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        looks.tick().await;
        // What happens before this is in what is read next.
        let since = clock::now();
        let (now, mishaps, xids) = (node.engines(), node.take_mishaps(), node.take_device_events());
        if devices.tell(&node.devices(), &xids).await.is_err() {
            return;
        }
        host.befall(&engines, mishaps);
        engines.look(&now);
        host.look(since, &now, &node.host());
        if traffic.take_if(|known| known.is_finished()).is_some() {
            node.drive(Arc::new(Gateway::new(handle.clone())));
        }
    }
}

/// The daemon's clock at `at`. All of a run are off by the same: they keep their order, however busy the machine is.
fn mono(at: Instant) -> Mono {
    static ANCHOR: OnceLock<(Mono, std::time::Instant)> = OnceLock::new();
    let (mono, anchor) = *ANCHOR.get_or_init(|| (clock::now(), std::time::Instant::now()));
    let at = at.into_std();
    mono.before(anchor.saturating_duration_since(at)) + at.saturating_duration_since(anchor)
}

/// Returns when the node knows as many engines with headroom, or it takes too long.
async fn all_known(handle: Handle, engines: usize) {
    let mut snapshots = handle.watch();
    let known = snapshots.wait_for(|snapshot| {
        let known = snapshot.engines.iter().filter(|engine| engine.headroom.is_some());
        known.count() >= engines
    });
    // Too late or not at all: the traffic then meets what there is.
    drop(timeout(TRAFFIC_AT_LATEST, known).await);
}
