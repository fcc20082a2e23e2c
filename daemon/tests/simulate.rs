//! The simulated node, seen through the real sources and the node's snapshot.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail by panicking")]

use std::{sync::Arc, time::Duration};

use gpuadmit_core::{
    event::EventKind,
    settings::Settings,
    snapshot::{EngineState, Snapshot},
    units::Bytes,
};
use gpuadmit_sim::Scenario;
use gpuadmitd::{
    handle::Handle,
    simulate,
    source::{
        nvml::{self, Nvml, Origin},
        vllm::{self, Vllm},
    },
};
use tokio::{task::JoinHandle, time::timeout};

/// Far longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

struct Running {
    handle: Handle,
    publisher: JoinHandle<()>,
    _sources: (Nvml, Vllm),
}

impl Running {
    fn start(scenario: &str) -> Self {
        let handle = Handle::new(Settings::default(), 1);
        let node = simulate::start(Scenario::parse(scenario).unwrap(), &handle).unwrap();
        let nvml = nvml::spawn(Origin::Messages(node.devices), handle.observer());
        let options = vllm::Options { discover: false, engines: node.engines, ..vllm::Options::default() };
        let vllm = vllm::spawn(options, node.observe);
        let publisher = tokio::spawn(handle.clone().publish(Duration::from_millis(20), |_| {}));
        Self { handle, publisher, _sources: (nvml, vllm) }
    }

    async fn until(&self, what: &str, holds: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        let mut snapshots = self.handle.watch();
        let found = timeout(PATIENCE, snapshots.wait_for(|snapshot| holds(snapshot))).await;
        let Ok(Ok(snapshot)) = found else {
            panic!("{what} did not come about: {:#?}", self.handle.snapshot())
        };
        Arc::clone(&snapshot)
    }

    fn has_seen(&self, kind: EventKind) -> bool {
        let (events, _) = self.handle.events_after(0, 1000);
        events.iter().any(|event| event.kind == kind)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.publisher.abort();
    }
}

fn state(snapshot: &Snapshot, engine: &str) -> Option<EngineState> {
    snapshot.engines.iter().find(|known| &*known.engine == engine).map(|known| known.state)
}

#[tokio::test]
async fn without_a_scenario_both_engines_serve_and_their_memory_is_attributed_to_them() {
    let running = Running::start("");
    let snapshot = running
        .until("two ready engines on two devices", |snapshot| {
            let ready = snapshot.engines.iter().all(|engine| {
                engine.state == EngineState::Ready && engine.headroom.is_some() && engine.devices.len() == 1
            });
            ready && snapshot.engines.len() == 2 && snapshot.devices.len() == 2
        })
        .await;
    for device in &snapshot.devices {
        // 73,403 MiB as the scenario has it, nobody else.
        let memory = device.memory.unwrap();
        let split = (memory.engine, memory.co_tenant, memory.unattributed);
        assert_eq!(split, (Some(Bytes(73_403 << 20)), Some(Bytes(0)), Some(Bytes(0))));
    }
}

#[tokio::test]
async fn traffic_goes_through_admission_and_beside_it() {
    let running = Running::start("[traffic]\nrequests_per_second = 50.0\nbypass = 0.5");
    running
        .until("traffic of both kinds", |snapshot| {
            let bypassing: u64 = snapshot.engines.iter().filter_map(|engine| engine.bypass_requests).sum();
            snapshot.decisions.admitted >= 20 && bypassing > 0
        })
        .await;
}

#[tokio::test]
async fn a_killed_engine_is_down_and_ready_again_after_its_restart() {
    let kill = "[[incident]]\nkind='kill'\nat_s=1\nengine='sim-1'\nrestart_after_s=1";
    let running = Running::start(kill);
    running.until("ready", |snapshot| state(snapshot, "sim-1") == Some(EngineState::Ready)).await;
    running.until("down", |snapshot| state(snapshot, "sim-1") == Some(EngineState::Down)).await;
    running.until("ready again", |snapshot| state(snapshot, "sim-1") == Some(EngineState::Ready)).await;
    assert!(running.has_seen(EventKind::EngineRestarted));
}

#[tokio::test]
async fn a_hung_driver_and_an_xid_become_events() {
    let text = "[[incident]]\nkind='nvml_hang'\nat_s=0.5\ngpu=1\nfor_s=3
                [[incident]]\nkind='xid'\nat_s=0.5\ngpu=0\ncode=31";
    let running = Running::start(text);
    let seen = |kind| running.has_seen(kind);
    running
        .until("events", |_| {
            seen(EventKind::Xid) && seen(EventKind::NvmlHung) && seen(EventKind::DeviceRecovered)
        })
        .await;
}
