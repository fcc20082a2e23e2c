//! What the daemon leaves for others beside its answers, and how each of it fares. None of it is needed to decide: what
//! cannot be made is told in `status` and done without.

use std::time::Duration;

use gpuadmit_core::{
    observation::{Observation, SourceHealth, SourceReport},
    units::Span,
};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    clock,
    config::Config,
    handle::Handle,
    page::{self, Readers},
};

/// Time between two reports of how they fare.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// How one output fares, in the words of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fares {
    pub(crate) health: SourceHealth,
    pub(crate) detail: String,
}

impl Fares {
    pub(crate) fn new(health: SourceHealth, detail: impl Into<String>) -> Self {
        Self { health, detail: detail.into() }
    }
}

/// All of them.
pub(crate) struct Outputs {
    page: Fares,
}

impl Outputs {
    /// Makes what `config` asks for.
    pub(crate) fn start(config: &Config, readers: Readers, epoch: u32, handle: &Handle) -> Self {
        Self { page: start_page(config, readers, epoch, handle) }
    }

    /// Reports for ever how they fare.
    pub(crate) async fn report(self, handle: Handle) {
        let mut ticks = interval(REPORT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            tell(&handle, "page", &self.page);
        }
    }
}

fn start_page(config: &Config, readers: Readers, epoch: u32, handle: &Handle) -> Fares {
    if !config.page.enabled {
        return Fares::new(SourceHealth::Absent, "switched off (page.enabled)");
    }
    let path = page::path(&config.socket.path);
    match page::Writer::create(path.clone(), readers, epoch, config.snapshot_interval()) {
        Ok(writer) => {
            handle.show_on(Some(writer));
            Fares::new(SourceHealth::Ok, format!("headroom at {}", path.display()))
        }
        Err(error) => {
            tracing::warn!("no shared page: cannot make {}: {error}", path.display());
            Fares::new(SourceHealth::Failed, format!("cannot make {}: {error}", path.display()))
        }
    }
}

fn tell(handle: &Handle, name: &str, fares: &Fares) {
    handle.observe(Observation::Source(SourceReport {
        source: name.into(),
        span: Span::at(clock::now()),
        health: fares.health,
        detail: fares.detail.clone(),
        busy: None,
    }));
}
