//! The child process: a thread per GPU calls NVML, the main thread never does and so can always end it.
//!
//! ```text
//! GPU 0 ─┐                    ┌─ stdin: "processes" lists now, end of file ends the child
//! GPU 1 ─┤── messages ─► stdout
//! errors ┤                    └─ SIGTERM ends the child
//! unbind ┘   main: looks at every thread's pulse, reports health each second
//! ```

use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use nvml_wrapper::{Nvml, error::NvmlError};

use super::wire::{Bye, Event, Message, Reason, Span};
use crate::clock;

mod calls;
mod events;
mod exit;
mod gpu;
mod health;
mod options;
mod output;
mod pulse;
mod reader;
mod requests;
mod shared;
mod system_events;

pub use options::{BadArgument, ChildOptions};
pub(super) use requests::HINT;

use events::ErrorEvents;
use health::health;
use output::Output;
use pulse::Watch;
use reader::Reader;
use shared::{Shared, Station};

/// Most GPUs read.
const MAX_GPUS: u32 = 64;

/// Reasons to end that may queue; the first counts.
const ENDS: usize = 4;

/// Time between two looks at the threads.
const LOOK: Duration = Duration::from_millis(50);

/// Time between two reports of health.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// Time for threads to leave NVML, for NVML to be shut down, and for the farewell, each.
const END_STEP: Duration = Duration::from_millis(300);

/// Runs the child until its parent is gone, it is told to end, or the driver is.
///
/// A thread asleep in the driver does not delay the end: what it holds is left to the kernel.
pub fn child_main(options: ChildOptions) -> ! {
    let (ends, ended) = mpsc::sync_channel(ENDS);
    match Output::take_stdout() {
        Ok(output) => Main::start(Shared::new(options, output, ends), ended).run(),
        Err(error) => {
            eprintln!("nvml-child: standard output cannot be used: {error}");
            exit::now()
        }
    }
}

/// The main thread.
struct Main {
    shared: Arc<Shared>,
    ended: Receiver<Bye>,
    ready: Receiver<(&'static Nvml, Vec<Arc<Station>>)>,
    nvml: Option<&'static Nvml>,
    watched: Vec<(Arc<Station>, Watch)>,
}

impl Main {
    /// Starts to open the driver, on a thread of its own.
    fn start(shared: Shared, ended: Receiver<Bye>) -> Self {
        let shared = Arc::new(shared);
        requests::listen(&shared);
        let opening = Arc::new(Station::of("the driver"));
        let (tell_ready, ready) = mpsc::sync_channel(1);
        let (theirs, station) = (Arc::clone(&shared), Arc::clone(&opening));
        spawn("nvml-open", &shared, move || match open(&theirs.options.library, &station) {
            Ok((nvml, gpus)) => {
                let stations = start_threads(nvml, gpus, &theirs);
                let _ended = tell_ready.send((nvml, stations));
            }
            Err(bye) => theirs.end(bye.reason, bye.detail),
        });
        Self { shared, ended, ready, nvml: None, watched: vec![(opening, Watch::default())] }
    }

    fn run(mut self) -> ! {
        let mut reported = None;
        loop {
            match self.ended.recv_timeout(LOOK) {
                Ok(bye) => self.end(bye),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => exit::now(),
            }
            if let Ok((nvml, stations)) = self.ready.try_recv() {
                self.nvml = Some(nvml);
                self.watched.extend(stations.into_iter().map(|station| (station, Watch::default())));
            }
            let changed = self.look();
            let now = clock::now();
            if changed || reported.is_none_or(|at| now.since(at) >= HEALTH_INTERVAL) {
                reported = Some(now);
                self.shared.send(&Message::Health(health(&self.watched, self.nvml.is_some())));
            }
        }
    }

    /// Looks at every thread's pulse; true when one stopped or beats again.
    fn look(&mut self) -> bool {
        let now_ns = clock::now().0;
        let deadline_ns = u64::try_from(self.shared.options.deadline.as_nanos()).unwrap_or(u64::MAX);
        let mut changed = false;
        for (station, watch) in &mut self.watched {
            let since_ns = station.pulse.since_ns();
            let Some(what) = watch.check(since_ns, now_ns, deadline_ns) else { continue };
            changed = true;
            if let Some(device) = station.state().device {
                let span =
                    Span { not_before_ns: since_ns.unwrap_or(now_ns).min(now_ns), not_after_ns: now_ns };
                self.shared.send(&Message::Event(Event { device, span, what }));
            }
        }
        changed
    }

    /// Ends the child in well under a second: gives threads the time to leave NVML, shuts it down if all did.
    fn end(&self, bye: Bye) -> ! {
        self.shared.stop();
        let steps = END_STEP.as_millis() / 10;
        let quiet = (0..steps).any(|_| {
            thread::sleep(END_STEP / 30);
            self.watched.iter().all(|(station, _)| station.pulse.since_ns().is_none())
        });
        if let (true, Some(nvml)) = (quiet, self.nvml) {
            within(END_STEP, move || calls::shutdown(nvml));
        }
        let shared = Arc::clone(&self.shared);
        within(END_STEP, move || shared.send(&Message::Bye(bye)));
        exit::now()
    }
}

/// Opens the library and the driver.
fn open(library: &Path, station: &Station) -> Result<(&'static Nvml, u32), Bye> {
    let path = library.display();
    let opened = station.pulse.call(|| Nvml::builder().lib_path(library.as_os_str()).init()).0;
    let nvml: &'static Nvml = match opened {
        Ok(nvml) => Box::leak(Box::new(nvml)),
        Err(NvmlError::LibloadingError(error)) => {
            return Err(absent(format!("the NVIDIA library {path} cannot be loaded: {error}")));
        }
        Err(error) => return Err(absent(format!("the NVIDIA driver cannot be opened by {path}: {error}"))),
    };
    match station.pulse.call(|| nvml.device_count()).0 {
        Ok(0) => Err(absent("the NVIDIA driver has no GPU".to_owned())),
        Ok(count) => Ok((nvml, count.min(MAX_GPUS))),
        Err(error) => Err(absent(format!("the NVIDIA driver does not tell its GPUs: {error}"))),
    }
}

const fn absent(detail: String) -> Bye {
    Bye { reason: Reason::Absent, detail }
}

fn start_threads(nvml: &'static Nvml, gpus: u32, shared: &Arc<Shared>) -> Vec<Arc<Station>> {
    let (opened, to_watch) = mpsc::sync_channel(usize::try_from(MAX_GPUS).unwrap_or(1));
    let mut stations = Vec::new();
    for index in 0..gpus {
        let station = Arc::new(Station::of_gpu(index));
        stations.push(Arc::clone(&station));
        let reader = Reader { nvml, index, shared: Arc::clone(shared), station, opened: opened.clone() };
        spawn(&format!("nvml-gpu-{index}"), shared, move || reader.run());
    }
    let station = Arc::new(Station::of("events"));
    stations.push(Arc::clone(&station));
    let events = ErrorEvents { nvml, shared: Arc::clone(shared), station, opened: to_watch };
    spawn("nvml-events", shared, move || events.run());

    let station = Arc::new(Station::of("driver events"));
    stations.push(Arc::clone(&station));
    let theirs = Arc::clone(shared);
    spawn("nvml-unbind", shared, move || events::watch_unbinding(nvml, &theirs, &station));
    stations
}

fn spawn(name: &str, shared: &Shared, body: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(body) {
        shared.end(Reason::Failed, format!("thread {name} cannot be started: {error}"));
    }
}

/// Does something that may block, and goes on after `most` at the latest.
fn within(most: Duration, body: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::sync_channel(1);
    let started = thread::Builder::new().spawn(move || {
        body();
        let _late = done.send(());
    });
    if started.is_ok() {
        let _late = finished.recv_timeout(most);
    }
}
