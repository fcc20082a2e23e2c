//! Device memory, processes and errors through NVML.
//!
//! A call into the driver can hang for ever in uninterruptible sleep and cannot be cancelled, so NVML runs in a child
//! process of our own: the same binary executed again, with a thread per GPU ([`child`]). It writes [`wire`] messages
//! to a pipe; the parent ([`spawn`]) translates them ([`translate`]) and sees to it that a child runs:
//!
//! ```text
//!           ended, silent or absent: pause, 5 s doubling to 60 s
//!        ┌──────────────────────────────────────────────────────┐
//!        ▼                                                      │
//!     running ── release(d) ──► away, until d is over ──► running again
//! ```
//!
//! A child that does not end is killed; one that does not even die (in the driver) is left to a task that reaps it,
//! and nothing waits for it.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::Observe;

pub mod child;
mod intake;
mod lines;
mod process;
mod replay;
mod supervise;
pub mod translate;
pub mod wire;

pub use process::{ChildCommand, Pauses};

/// Requests to the supervisor that may queue.
const CONTROLS: usize = 16;

/// Where messages come from.
#[derive(Debug)]
pub enum Origin {
    /// A child process, started again whenever it is gone.
    Child(ChildCommand),
    /// A simulated node, in this process.
    Messages(mpsc::Receiver<wire::Message>),
}

/// What the supervisor is asked.
#[derive(Debug)]
enum Control {
    /// Let go of the driver for this long; answer whether nothing of ours holds it.
    Release(Duration, oneshot::Sender<bool>),
    /// List processes now.
    Processes,
}

/// The running source. It stops when the last clone is dropped; dropping never waits for the child.
#[derive(Clone, Debug)]
pub struct Nvml {
    controls: mpsc::Sender<Control>,
}

impl Nvml {
    /// Ends the child and keeps it away for `duration`; zero takes hold again at once. True when no process of ours
    /// holds the driver any more: at once, or false after two seconds when the child could not be ended. False after
    /// zero.
    pub async fn release(&self, duration: Duration) -> bool {
        let (answer, answered) = oneshot::channel();
        if self.controls.send(Control::Release(duration, answer)).await.is_err() {
            return false;
        }
        answered.await.unwrap_or(false)
    }

    /// Asks for the process lists now instead of at their interval. Lost when too many requests queue.
    pub fn hint_processes(&self) {
        let _full = self.controls.try_send(Control::Processes);
    }
}

/// Starts the source on the current tokio runtime.
#[must_use]
pub fn spawn(origin: Origin, observe: Observe) -> Nvml {
    let (controls, asked) = mpsc::channel(CONTROLS);
    match origin {
        Origin::Child(command) => {
            tokio::spawn(supervise::Supervisor::new(command, asked, observe).run());
        }
        Origin::Messages(messages) => {
            tokio::spawn(replay::run(messages, asked, observe));
        }
    }
    Nvml { controls }
}
