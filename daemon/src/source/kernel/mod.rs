//! The kernel's word on processes and devices: who ends, by which signal and whose, whom the OOM killer chooses.
//!
//! Where the daemon may, small programs in the kernel tell of these within microseconds ([`programs`], [`record`]). Where
//! it may not, the same facts come later and with less detail: ends by [`pidfd`], OOM kills by the counters of
//! [`cgroup`]s, the rest by looking into `/proc` every second. Whose memory ran out, and Xid errors where the driver has
//! no tracepoint, come from the kernel's log ([`kmsg`]). The source's report says which fact comes from where, and which
//! right is missing.
//!
//! One thread reads all of it and calls the observer itself: between the kernel's word and the node there is no queue.

pub mod btf;
pub mod cgroup;
pub mod cuda;
pub mod exit;
pub mod format;
pub mod kmsg;
pub mod object;
pub mod offsets;
pub mod pci;
pub mod pidfd;
pub mod programs;
mod reader;
pub mod record;
mod report;
pub mod rights;
mod shared;
mod trim;
pub mod watch;
pub mod xid;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
};

use gpuadmit_core::observation::{DeviceEvent, EngineProcess, Observation};

use self::{offsets::Description, reader::Reader, shared::Shared, xid::Way};
use super::Observe;
use crate::clock;

/// How to listen.
#[derive(Clone, Debug)]
pub struct Options {
    /// File with the programs; `None`: where it is installed, or in the source tree.
    pub object: Option<PathBuf>,
    /// Whether programs are loaded into the kernel at all.
    pub programs: bool,
    /// The kernel's log; `None`: it is not read.
    pub log: Option<PathBuf>,
    /// Files that describe the kernel.
    pub description: Description,
    /// Whether libcuda is probed in engines' processes; takes programs.
    pub cuda: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            object: None,
            programs: true,
            log: Some("/dev/kmsg".into()),
            description: Description::default(),
            cuda: false,
        }
    }
}

/// The running source; it stops when this is dropped.
#[derive(Debug)]
pub struct Kernel {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Starts to listen; observations come from a thread of its own.
///
/// # Errors
/// Those of making an epoll instance or a thread. Missing rights are no error.
pub fn spawn(options: &Options, observe: Observe) -> io::Result<Kernel> {
    let (shared, reader) = Reader::new(options, observe)?;
    let thread = thread::Builder::new().name("kernel".into()).spawn(move || reader.run())?;
    Ok(Kernel { shared, thread: Some(thread) })
}

impl Kernel {
    /// Watches these processes and all that they will fork, until they end.
    pub fn watch(&self, processes: &[EngineProcess]) {
        self.shared.watch(processes);
    }

    /// What other sources are to call instead of `observe`: engines' processes are watched as they become known, and an
    /// Xid that was told already is not told again.
    #[must_use]
    pub fn listening(&self, observe: Observe) -> Observe {
        let shared = Arc::clone(&self.shared);
        Arc::new(move |observation| {
            if shared.is_news(&observation) {
                observe(observation);
            }
        })
    }
}

impl Shared {
    /// Takes from another source's observation what is of use here. `false`: it was told already.
    fn is_news(&self, observation: &Observation) -> bool {
        match observation {
            Observation::Engine(facts) => self.watch(&facts.processes),
            Observation::Device(reading) => {
                // What was taken before a reading is in it.
                self.tell_allocations();
                if let Some(address) = pci::parse(&reading.pci) {
                    let mut xids = locked(&self.xids);
                    match (&reading.parent, reading.instance) {
                        (None, _) => xids.learn(address, &reading.uuid),
                        (Some(_), Some(instance)) => xids.learn_part(address, instance, &reading.uuid),
                        (Some(_), None) => {}
                    }
                }
            }
            Observation::DeviceEvent { uuid, event: DeviceEvent::Xid { code }, .. } => {
                return locked(&self.xids).is_new(clock::now(), Way::Nvml, uuid, *code);
            }
            _ => {}
        }
        true
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that listens to the kernel panicked");
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
