//! Listens to the kernel source and keeps what it says.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

use gpuadmit_core::{
    observation::{Observation, OomScope, ProcessChange, ProcessEvent, SourceReport},
    units::Mono,
};
use gpuadmit_tests::skip::skip;
use gpuadmitd::{
    clock,
    source::kernel::{self, Kernel, Options},
};

/// Longest wait for anything: a virtual machine without acceleration is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) type Heard = ProcessEvent;

/// This test cannot run here.
pub(crate) fn skipped<T>(why: &str) -> Option<T> {
    skip(why);
    None
}

/// A listening source.
pub(crate) struct Ears {
    pub(crate) kernel: Kernel,
    heard: mpsc::Receiver<(Mono, Observation)>,
    gate: Arc<Mutex<()>>,
}

/// The committed programs, or those named in the environment.
pub(crate) fn object() -> PathBuf {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/gpuadmit.bpf.o");
    std::env::var_os("GPUADMIT_BPF_OBJECT").map_or_else(|| committed.into(), PathBuf::from)
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

impl Ears {
    pub(crate) fn new(options: &Options) -> Self {
        let (say, heard) = mpsc::channel();
        let gate = Arc::new(Mutex::new(()));
        let entrance = Arc::clone(&gate);
        let observe = Arc::new(move |observation| {
            let now = clock::now();
            drop(entrance.lock().unwrap_or_else(PoisonError::into_inner));
            let _ = say.send((now, observation));
        });
        Self { kernel: kernel::spawn(options, observe).unwrap(), heard, gate }
    }

    /// With programs; `None`, loudly: this machine cannot run them.
    pub(crate) fn with_programs() -> Option<Self> {
        if !is_root() {
            return skipped("loading programs into the kernel takes root");
        }
        if !PathBuf::from("/sys/kernel/btf/vmlinux").exists() {
            return skipped("this kernel does not describe its types");
        }
        let ears = Self::new(&Options { object: Some(object()), ..Options::default() });
        let report = ears.report(|_| true);
        let facts = "BPF: exits, signals, OOM victims, oom_score_adj, forks, execs";
        assert!(report.detail.contains(facts), "{}", report.detail);
        Some(ears)
    }

    pub(crate) fn without_programs() -> Self {
        Self::new(&Options { programs: false, log: None, ..Options::default() })
    }

    /// The next observation and when it came.
    pub(crate) fn next(&self) -> (Mono, Observation) {
        self.heard.recv_timeout(PATIENCE).expect("nothing is told any more")
    }

    /// All that is told of processes up to the first event that fits.
    pub(crate) fn until(&self, fits: impl Fn(&Heard) -> bool) -> Vec<Heard> {
        let (mut told, start) = (vec![], Instant::now());
        loop {
            if let (_, Observation::Process(event)) = self.next() {
                told.push(*event);
                if told.last().is_some_and(&fits) {
                    return told;
                }
            }
            assert!(start.elapsed() < PATIENCE, "not told: {told:?}");
        }
    }

    pub(crate) fn until_exit(&self, pid: u32) -> Vec<Heard> {
        self.until(|event| event.pid == pid && matches!(event.what, ProcessChange::Exit { .. }))
    }

    /// The first report that fits.
    pub(crate) fn report(&self, fits: impl Fn(&SourceReport) -> bool) -> SourceReport {
        let start = Instant::now();
        loop {
            if let (_, Observation::Source(report)) = self.next()
                && fits(&report)
            {
                return report;
            }
            assert!(start.elapsed() < PATIENCE, "no such report");
        }
    }

    /// Whose memory ran out comes by the kernel's log, before or after the rest; where it can be read.
    pub(crate) fn scope_of(&self, heard: &[Heard], pid: u32, scope: &OomScope) {
        if fs::File::open("/dev/kmsg").is_err() {
            return skipped("the kernel's log cannot be read").unwrap_or(());
        }
        let told = ProcessChange::OomVictim { rss: None, scope: Some(scope.clone()) };
        let fits = |event: &Heard| event.pid == pid && event.what == told && event.watched;
        if !heard.iter().any(fits) {
            self.until(fits);
        }
    }

    /// Holds the observer up until dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
