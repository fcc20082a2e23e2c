//! The host's memory, and what its scheduler says of engines' processes: once a second, and at once when the kernel says
//! that processes wait for memory (a PSI trigger, Documentation/accounting/psi.rst).
//!
//! Engines' processes are learned from what other sources tell ([`Host::listening`]). Everything is read by a thread of
//! its own: a file of a cgroup that is out of memory may take long to answer.

pub mod cgroup;
mod look;
pub mod pressure;
pub mod process;

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use gpuadmit_core::observation::{EngineProcess, Observation, ProcessRole};

use self::{look::Looker, pressure::Trigger};
use super::Observe;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Most engines whose processes are looked at.
const MAX_ENGINES: usize = 64;
/// Longest file read, bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Where to look.
#[derive(Clone, Debug)]
pub struct Options {
    /// `/proc`.
    pub proc: PathBuf,
    /// File system in memory that processes exchange data through.
    pub shared_memory: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self { proc: "/proc".into(), shared_memory: "/dev/shm".into() }
    }
}

/// Engines' own processes, by engine.
type Processes = BTreeMap<Arc<str>, Vec<EngineProcess>>;

#[derive(Debug, Default)]
struct Shared {
    processes: Mutex<Processes>,
    stopped: AtomicBool,
}

impl Shared {
    fn processes(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns processes from what another source tells.
    fn learn(&self, observation: &Observation) {
        match observation {
            Observation::Engine(facts) => {
                let mut all = self.processes();
                if all.len() < MAX_ENGINES || all.contains_key(&facts.engine) {
                    let own = facts.processes.iter().filter(|process| process.role != ProcessRole::Helper);
                    all.insert(Arc::clone(&facts.engine), own.copied().collect());
                }
            }
            Observation::EngineGone { engine, .. } => {
                self.processes().remove(engine);
            }
            _ => {}
        }
    }
}

/// The running source; it stops when this is dropped.
#[derive(Debug)]
pub struct Host(Arc<Shared>);

impl Drop for Host {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }
}

impl Host {
    /// What other sources are to call instead of `observe`: engines' processes are learned from it.
    #[must_use]
    pub fn listening(&self, observe: Observe) -> Observe {
        let shared = Arc::clone(&self.0);
        Arc::new(move |observation| {
            shared.learn(&observation);
            observe(observation);
        })
    }
}

/// Starts to look; observations come from a thread of its own.
///
/// # Errors
/// That of making a thread.
pub fn spawn(options: Options, observe: Observe) -> io::Result<Host> {
    let shared = Arc::new(Shared::default());
    let host = Host(Arc::clone(&shared));
    thread::Builder::new().name("host".into()).spawn(move || run(&options, &shared, &observe))?;
    Ok(host)
}

fn run(options: &Options, shared: &Shared, observe: &Observe) {
    let trigger = Trigger::set(&options.proc);
    let mut looker = Looker::new(options.clone(), trigger.is_ok());
    while !shared.stopped.load(Ordering::Relaxed) {
        let processes = shared.processes().clone();
        for observation in looker.look(&processes) {
            observe(observation);
        }
        match &trigger {
            Ok(trigger) => trigger.wait(LOOK),
            Err(_) => thread::sleep(LOOK),
        }
    }
}

/// The text of a file; `None` when it cannot be read or is longer than what is looked for.
fn read(path: &std::path::Path) -> Option<String> {
    crate::config::read_bounded(path, MAX_FILE_BYTES).ok().flatten()
}

/// The value of `key` in lines of a key and a number.
fn keyed(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix([' ', ':', '\t']))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_whole_word() {
        let text = "oom 3\noom_kill 7\nCoreDumping:\t1\nbroken x\n";
        assert_eq!((keyed(text, "oom"), keyed(text, "oom_kill")), (Some(3), Some(7)));
        assert_eq!(
            (keyed(text, "CoreDumping"), keyed(text, "broken"), keyed(text, "max")),
            (Some(1), None, None)
        );
    }
}
