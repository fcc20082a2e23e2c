//! What the daemon leaves for others and for its next run beside its answers, and how each of it fares. None of it is
//! needed to decide: what cannot be made is told in `status` and done without.

use std::{io, path::Path, time::Duration};

use gpuadmit_core::{
    book::Learned,
    observation::{Observation, SourceHealth, SourceReport},
    units::Span,
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    clock,
    config::{self, Config},
    handle::Handle,
    metrics::Exporter,
    page::{self, Readers},
    promises::{self, Left},
    records::{self, Bounds, Recorder},
    state::{Found, State, Store},
};

/// Time between two reports of how they fare.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// How one output fares, in the words of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fares {
    health: SourceHealth,
    detail: String,
}

impl Fares {
    fn new(health: SourceHealth, detail: impl Into<String>) -> Self {
        Self { health, detail: detail.into() }
    }
}

/// All of them.
pub(crate) struct Outputs {
    handle: Handle,
    page: Fares,
    promises: Fares,
    state: Fares,
    store: Option<Store>,
    recorder: Result<Recorder, Fares>,
    exporter: Exporter,
    save_every: Duration,
}

impl Outputs {
    /// Makes what `config` asks for, and takes up what an earlier run left. A simulated node leaves and takes nothing.
    pub(crate) fn start(
        config: &Config,
        readers: Readers,
        epoch: u32,
        left: Option<Left>,
        handle: &Handle,
    ) -> Self {
        let simulated = left.is_none();
        let page = start_page(config, readers, epoch, handle);
        let (store, state) = open_state(&config.state, simulated, handle);
        let handed_over = left.as_ref().is_some_and(|left| !left.promises.is_empty());
        let promises = start_promises(config, epoch, left, handle);
        let recorder = start_records(config, epoch, handed_over, handle);
        let exporter = Exporter::start(config, simulated, handle);
        let save_every = Duration::from_millis(config.state.interval_ms);
        Self { handle: handle.clone(), page, promises, state, store, recorder, exporter, save_every }
    }

    /// Saves and reports, for ever.
    pub(crate) async fn run(&mut self) {
        let mut ticks = interval(REPORT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut save_at = Instant::now() + self.save_every;
        loop {
            ticks.tick().await;
            if Instant::now() >= save_at {
                self.save().await;
                save_at = Instant::now() + self.save_every;
            }
            tell(&self.handle, "page", &self.page);
            tell(&self.handle, "promises", &self.promises);
            tell(&self.handle, "state", &self.state);
            tell(&self.handle, "records", &recorded_fares(&self.recorder));
            tell(&self.handle, "prometheus", &exported_fares(&self.exporter));
        }
    }

    /// Nothing is shown any more.
    pub(crate) fn close_page(&self) {
        self.handle.show_on(None);
    }

    /// Saves a last time and ends the records.
    pub(crate) async fn end(mut self) {
        self.save().await;
        self.handle.record_in(None);
        if let Ok(recorder) = self.recorder {
            // An error: the runtime is ending, and takes the writer with it.
            let _ = spawn_blocking(move || recorder.end()).await;
        }
    }

    async fn save(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let (lengths, guards) = (self.handle.learned().into(), self.handle.keep_guards().into());
        let state = State { lengths: Some(lengths), guards: Some(guards) };
        let file = store.file().to_owned();
        let saved = spawn_blocking(move || store.save(state)).await.unwrap_or_else(|error| Err(error.into()));
        self.state = saved_fares(&file, saved);
    }
}

fn saved_fares(file: &Path, saved: io::Result<()>) -> Fares {
    match saved {
        Ok(()) => Fares::new(SourceHealth::Ok, format!("kept in {}", file.display())),
        Err(error) => {
            tracing::warn!("cannot keep what was learned in {}: {error}", file.display());
            Fares::new(SourceHealth::Failed, format!("cannot write {}: {error}", file.display()))
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

/// What an earlier run promised; `None` for a simulated node, which keeps nothing and takes nothing over.
pub(crate) fn left(config: &Config, simulated: bool) -> Option<Left> {
    if simulated {
        return None;
    }
    let path = promises::path(&config.socket.path);
    let left = if config.state.enabled { promises::read(&path) } else { Ok(Left::default()) };
    Some(left.unwrap_or_else(|error| {
        tracing::warn!("promises of an earlier run are lost: cannot read {}: {error}", path.display());
        Left::default()
    }))
}

fn start_promises(config: &Config, epoch: u32, left: Option<Left>, handle: &Handle) -> Fares {
    let Some(left) = left else {
        return Fares::new(SourceHealth::Absent, "a simulated node keeps nothing");
    };
    if !config.state.enabled {
        return Fares::new(SourceHealth::Absent, "switched off (state.enabled)");
    }
    let path = promises::path(&config.socket.path);
    let slots = usize::try_from(config.limits.reservations).unwrap_or(usize::MAX);
    let count = left.promises.len();
    let epochs = left.first_epoch.unwrap_or(epoch).min(epoch)..=epoch;
    let writer = promises::Writer::create(&path, slots, epochs, &left.promises);
    let fares = match &writer {
        Ok(_) => Fares::new(SourceHealth::Ok, format!("{count} taken over, kept in {}", path.display())),
        Err(error) => {
            let detail = format!("not kept: cannot make {}: {error}", path.display());
            tracing::warn!("promises are {detail}");
            Fares::new(SourceHealth::Failed, detail)
        }
    };
    if count > 0 {
        tracing::info!(count, "promises of the run before are taken over");
    }
    handle.keep_promises(left, writer.ok());
    fares
}

fn open_state(config: &config::State, simulated: bool, handle: &Handle) -> (Option<Store>, Fares) {
    if simulated || !config.enabled {
        let why = if simulated { "a simulated node keeps nothing" } else { "switched off (state.enabled)" };
        return (None, Fares::new(SourceHealth::Absent, why));
    }
    let Some(store) = Store::open(&config.path) else {
        let why = format!("nothing is kept: there is no directory {} (state.path)", config.path.display());
        return (None, Fares::new(SourceHealth::Absent, why));
    };
    let fares = match store.load() {
        Found::State(state, written) => {
            let age = clock::now().since(written.to_mono());
            if let Some(lengths) = state.lengths {
                handle.take_up(lengths.into());
            }
            if let Some(guards) = state.guards {
                handle.take_up_guards(guards.after(age));
            }
            let detail = format!("taken up from {}, {} s old", store.file().display(), age.as_secs());
            Fares::new(SourceHealth::Ok, detail)
        }
        Found::Nothing => Fares::new(SourceHealth::Ok, format!("nothing yet in {}", store.file().display())),
        Found::Refused(refusal, aside) => {
            let kept = aside.map_or_else(String::new, |aside| format!("; kept as {}", aside.display()));
            let detail = format!("{} is not used: {refusal}{kept}", store.file().display());
            tracing::warn!("{detail}");
            Fares::new(SourceHealth::Degraded, detail)
        }
    };
    (Some(store), fares)
}

fn start_records(config: &Config, epoch: u32, handed_over: bool, handle: &Handle) -> Result<Recorder, Fares> {
    let records = &config.records;
    if !records.enabled {
        return Err(Fares::new(SourceHealth::Absent, "switched off (records.enabled)"));
    }
    let bounds = Bounds {
        directory: records.path.clone(),
        file_bytes: records.file_bytes,
        files: usize::try_from(records.files).unwrap_or(usize::MAX),
    };
    let learned = Some(handle.learned()).filter(|learned| *learned != Learned::default());
    match records::begin(bounds, config, epoch, learned, handed_over) {
        Ok((journal, recorder)) => {
            handle.record_in(Some(journal));
            Ok(recorder)
        }
        Err(error) => {
            let detail = format!("cannot record into {}: {error}", records.path.display());
            tracing::warn!("{detail}");
            Err(Fares::new(SourceHealth::Failed, detail))
        }
    }
}

fn recorded_fares(recorder: &Result<Recorder, Fares>) -> Fares {
    let fares = match recorder {
        Ok(recorder) => recorder.fares(),
        Err(fares) => return fares.clone(),
    };
    if let Some(error) = fares.failed {
        return Fares::new(SourceHealth::Failed, format!("cannot write {}: {error}", fares.file));
    }
    match fares.lost {
        0 => Fares::new(SourceHealth::Ok, format!("into {}", fares.file)),
        lost => {
            let detail = format!("into {}; {lost} lines lost: the disk is too slow", fares.file);
            Fares::new(SourceHealth::Degraded, detail)
        }
    }
}

fn exported_fares(exporter: &Exporter) -> Fares {
    match exporter.fares() {
        None => Fares::new(SourceHealth::Absent, "switched off (prometheus.enabled)"),
        Some(Ok(at)) => Fares::new(SourceHealth::Ok, format!("metrics at {at}")),
        Some(Err(why)) => Fares::new(SourceHealth::Failed, why),
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
