//! Keeps one task per engine: the configured ones, and those that scans find.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpuadmit_core::{
    observation::{Observation, SourceHealth, SourceReport},
    units::Span,
};
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::{MissedTickBehavior, interval},
};

use super::{
    ConfiguredEngine, Options,
    address::Address,
    discover::{Found, Scan, Scanner},
    engine::{Asking, Engine, Known},
    http,
    process::{Identity, Proc},
    settled::FirstLook,
};
use crate::source::Observe;

/// How long a connection may take that finds out whether a port refuses.
const PROBE_DEADLINE: Duration = Duration::from_millis(200);
/// Longest detail of a report, characters.
const MAX_DETAIL: usize = 1024;

/// A task that ends when this is dropped.
pub(super) struct Task(JoinHandle<()>);

impl Task {
    pub(super) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    pub(super) async fn stop(mut self) {
        self.0.abort();
        // Only that it ended matters, not how.
        drop((&mut self.0).await);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An engine with its task.
struct Running {
    known: watch::Sender<Known>,
    /// Its first process, where it is seen.
    root: Option<Identity>,
    _task: Task,
}

/// The supervisor's state.
pub(super) struct Supervisor {
    options: Options,
    observe: Observe,
    running: BTreeMap<Arc<str>, Running>,
    /// Until the first scan is taken in.
    first_look: Option<FirstLook>,
}

impl Supervisor {
    pub(super) fn new(options: Options, observe: Observe, first_look: FirstLook) -> Self {
        Self { options, observe, running: BTreeMap::new(), first_look: Some(first_look) }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(mut self) {
        for engine in self.options.engines.clone() {
            self.start_configured(&engine);
        }
        if !self.options.discover {
            self.first_look = None;
            return std::future::pending().await;
        }
        let mut scanner = self.scanner();
        let mut scans = interval(self.options.scan_interval);
        scans.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            scans.tick().await;
            let scanned = spawn_blocking(move || {
                let scan = scanner.scan();
                (scanner, scan)
            });
            scanner = match scanned.await {
                Ok((mut scanner, scan)) => {
                    for root in self.take(scan).await {
                        scanner.forget(root);
                    }
                    self.first_look = None;
                    scanner
                }
                // Only a runtime that shuts down gets here; what was seen is found again.
                Err(_) => self.scanner(),
            };
        }
    }

    fn scanner(&self) -> Scanner {
        Scanner::new(Proc::new(&self.options.proc_root), self.options.discover_uids.clone())
    }

    /// Starts, changes and ends tasks as a scan says. Returns the engines that are over though some process is left.
    async fn take(&mut self, scan: Scan) -> Vec<Identity> {
        let (mut over, mut problems) = (vec![], scan.problems);
        self.end_missing(&scan.engines, &scan.roots, scan.span);
        let mut taken: BTreeMap<Arc<str>, Identity> = BTreeMap::new();
        for found in scan.engines {
            let configured = self.configured(&found.address).cloned();
            let id = engine_id(&found.address, configured.as_ref());
            if let Some(first) = taken.get(&id) {
                let (first, second) = (first.pid, found.root.pid);
                problems.push(format!(
                    "vllm (pid {second}) is left out, for pid {first} has its id {id}: name it in an [[engine]] entry"
                ));
                continue;
            }
            if !found.has_api_server() && http::refuses(&found.address, PROBE_DEADLINE).await {
                over.push(found.root);
                self.end(&id, scan.span, "its API server is gone and its port refuses connections");
                continue;
            }
            taken.insert(id.clone(), found.root);
            self.update(id, found, configured.as_ref());
        }
        self.report(scan.span, &problems, taken.len());
        over
    }

    /// Ends engines whose processes the scan did not find.
    fn end_missing(&mut self, engines: &[Found], roots: &std::collections::BTreeSet<Identity>, span: Span) {
        let missing = |root: &Identity| !engines.iter().any(|found| found.root == *root);
        let ended: Vec<(Arc<str>, Identity)> = self
            .running
            .iter()
            .filter_map(|(id, running)| Some((id.clone(), running.root.filter(missing)?)))
            .collect();
        for (id, root) in ended {
            let evidence = if roots.contains(&root) {
                "it cannot be reached where it was told to listen"
            } else {
                "none of its own processes is left in /proc"
            };
            self.end(&id, span, evidence);
        }
    }

    fn end(&mut self, id: &Arc<str>, span: Span, evidence: &str) {
        if self.running.remove(id).is_none() {
            return;
        }
        let evidence = evidence.into();
        (self.observe)(Observation::EngineGone { engine: id.clone(), span, evidence });
        // A configured engine may come back, or be somewhere else than its processes were.
        let configured = self.options.engines.iter().find(|engine| *engine.id == **id).cloned();
        if let Some(engine) = configured {
            self.start_configured(&engine);
        }
    }

    fn update(&mut self, id: Arc<str>, found: Found, configured: Option<&ConfiguredEngine>) {
        let known = Known {
            address: configured.map_or(found.address, |engine| engine.address.clone()),
            obstacle: found.obstacle,
            command: Some(found.command),
            processes: found.processes,
            models: configured.map(|engine| engine.models.clone()).unwrap_or_default(),
        };
        match self.running.get_mut(&id) {
            Some(running) if running.known.borrow().address == known.address => {
                running.root = Some(found.root);
                running.known.send_if_modified(|before| {
                    let changed = *before != known;
                    *before = known;
                    changed
                });
            }
            _ => self.start(
                id,
                known,
                Some(found.root),
                configured.and_then(|engine| engine.api_key.as_deref()),
            ),
        }
    }

    fn start_configured(&mut self, engine: &ConfiguredEngine) {
        let known = Known {
            address: engine.address.clone(),
            obstacle: None,
            command: None,
            processes: vec![],
            models: engine.models.clone(),
        };
        self.start(engine.id.as_str().into(), known, None, engine.api_key.as_deref());
    }

    fn start(&mut self, id: Arc<str>, known: Known, root: Option<Identity>, api_key: Option<&str>) {
        let (known, receiver) = watch::channel(known);
        let asking = Asking { pace: self.options.pace(), deadline: self.options.scrape_timeout };
        let engine = Engine::new(id.clone(), receiver, api_key, asking, self.observe.clone());
        let task = Task::spawn(engine.run(self.first_look.clone()));
        self.running.insert(id, Running { known, root, _task: task });
    }

    fn configured(&self, address: &Address) -> Option<&ConfiguredEngine> {
        self.options.engines.iter().find(|engine| engine.address.same_server(address))
    }

    fn report(&self, span: Span, problems: &[String], engines: usize) {
        let health = if problems.is_empty() { SourceHealth::Ok } else { SourceHealth::Degraded };
        let found = format!("{engines} vllm engines found");
        let sentences: Vec<&str> =
            std::iter::once(found.as_str()).chain(problems.iter().map(String::as_str)).collect();
        let detail = sentences.join("; ").chars().take(MAX_DETAIL).collect();
        let source = "discovery".into();
        (self.observe)(Observation::Source(SourceReport { source, span, health, detail, busy: None }));
    }
}

/// The configured id, else `vllm-PORT`, `vllm-SOCKET` or `vllm-headless-RANK`.
fn engine_id(address: &Address, configured: Option<&ConfiguredEngine>) -> Arc<str> {
    match (configured, address) {
        (Some(engine), _) => engine.id.as_str().into(),
        (None, Address::Tcp { port, .. }) => format!("vllm-{port}").into(),
        (None, Address::Unix(path)) => {
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            format!("vllm-{}", stem.unwrap_or_default()).into()
        }
        (None, Address::Headless { rank }) => format!("vllm-headless-{rank}").into(),
    }
}
