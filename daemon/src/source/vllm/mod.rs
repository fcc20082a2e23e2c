//! vLLM engines: found by their processes or configured, asked who they are, and scraped.
//!
//! ```text
//! supervise ── scan, every second ──► discover ─► process, cmdline, role      (/proc)
//!     │ one task per engine
//!     └─► engine ─► scrape ─► http ─► reading ─► exposition, families, rank  (/metrics)
//!              └──► identity ─► http                                          (/version, /v1/models)
//! ```

use std::{path::PathBuf, time::Duration};

use supervise::{Supervisor, Task};

pub use self::settled::Settled;
use self::{address::Address, cost::Pace};
use crate::source::Observe;

pub mod address;
pub mod cmdline;
pub mod config_file;
pub mod cost;
pub mod discover;
mod engine;
pub mod exposition;
mod families;
mod filter;
pub mod http;
pub mod identity;
mod json_options;
pub mod model_source;
mod numbers;
mod options;
mod place;
pub mod process;
mod rank;
pub mod reading;
pub mod role;
pub mod scrape;
mod settled;
pub mod startline;
mod supervise;
mod tree;

/// How to find and ask engines.
#[derive(Clone)]
pub struct Options {
    /// Find engines by their processes. Default: yes.
    pub discover: bool,
    /// Users whose engines are found. Default: empty, all.
    pub discover_uids: Vec<u32>,
    /// Engines to ask whether found or not. A found one with the same address takes the configured id.
    pub engines: Vec<ConfiguredEngine>,
    /// Time between two looks at the process list, 100 ms to 1 min. Default: 1 s.
    pub scan_interval: Duration,
    /// Most of one core that scraping may cost an engine, share above 0 up to 1. Default: 0.01.
    pub cpu_share: f64,
    /// Shortest time between two scrapes, 10 ms or more. Default: 50 ms.
    pub min_interval: Duration,
    /// Longest time between two scrapes, up to 1 min. Default: 1 s.
    pub max_interval: Duration,
    /// How long an engine may take to answer, 100 ms to 1 min: a busy one was seen to need 4 s. Default: 5 s.
    pub scrape_timeout: Duration,
    /// Where the process list is. Default: `/proc`.
    pub proc_root: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            discover: true,
            discover_uids: vec![],
            engines: vec![],
            scan_interval: Duration::from_secs(1),
            cpu_share: 0.01,
            min_interval: Duration::from_millis(50),
            max_interval: Duration::from_secs(1),
            scrape_timeout: Duration::from_secs(5),
            proc_root: "/proc".into(),
        }
    }
}

impl Options {
    const fn pace(&self) -> Pace {
        Pace { cpu_share: self.cpu_share, min_interval: self.min_interval, max_interval: self.max_interval }
    }
}

/// An engine as configured. Not `Debug`: it holds a secret.
#[derive(Clone)]
pub struct ConfiguredEngine {
    /// Unique id, at most 128 bytes.
    pub id: String,
    /// Where it listens.
    pub address: Address,
    /// Models it serves, for an engine that does not list them to us.
    pub models: Vec<String>,
    /// Key sent as bearer token.
    pub api_key: Option<String>,
}

/// The running source. Its tasks end when this is dropped.
pub struct Vllm {
    task: Task,
    settled: Settled,
}

impl Vllm {
    /// Ends its tasks and waits for that.
    pub async fn stop(self) {
        self.task.stop().await;
    }

    /// When it will have looked once: for engines, and at each of them. A look that failed is one.
    pub fn settled(&self) -> Settled {
        self.settled.clone()
    }
}

/// Starts finding and asking engines; what they say goes to `observe`. Must be called within a tokio runtime.
#[must_use]
pub fn spawn(options: Options, observe: Observe) -> Vllm {
    let (first_look, settled) = settled::pair();
    let task = Task::spawn(Supervisor::new(options, observe, first_look).run());
    Vllm { task, settled }
}
