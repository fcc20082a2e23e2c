//! What the child's threads share.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU32, Ordering},
    mpsc::SyncSender,
};

use super::{
    super::wire::{Bye, Identity, Message, Reason},
    options::ChildOptions,
    output::Output,
    pulse::Pulse,
};

/// Shared by all threads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: ChildOptions,
    output: Output,
    ends: SyncSender<Bye>,
    stopping: AtomicBool,
    hints: AtomicU32,
}

impl Shared {
    pub(super) fn new(options: ChildOptions, output: Output, ends: SyncSender<Bye>) -> Self {
        Self { options, output, ends, stopping: AtomicBool::new(false), hints: AtomicU32::new(0) }
    }

    /// Writes a message; without a reader the child ends.
    pub(super) fn send(&self, message: &Message) {
        if let Err(error) = self.output.send(message) {
            self.end(Reason::Stopped, format!("the parent does not read any more: {error}"));
        }
    }

    /// Asks the main thread to end the child. The first reason counts.
    pub(super) fn end(&self, reason: Reason, detail: String) {
        let _full = self.ends.try_send(Bye { reason, detail });
    }

    /// No thread enters NVML from now on.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(super) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Asks for the process lists now.
    pub(super) fn hint(&self) {
        self.hints.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was asked.
    pub(super) fn hints(&self) -> u32 {
        self.hints.load(Ordering::Relaxed)
    }
}

/// A thread that calls NVML, as the main thread sees it.
#[derive(Debug)]
pub(super) struct Station {
    /// What it does, for sentences: `GPU 3`.
    pub(super) name: String,
    /// Whether it reads a GPU.
    pub(super) reads: bool,
    pub(super) pulse: Pulse,
    state: Mutex<State>,
}

/// How it fares.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Its device, once known.
    pub(super) device: Option<Identity>,
    /// Why it delivers nothing; empty when it does.
    pub(super) failure: String,
    /// What it cannot do, though it delivers.
    pub(super) note: String,
}

impl Station {
    /// The thread that reads the GPU at this position.
    pub(super) fn of_gpu(index: u32) -> Self {
        Self { name: format!("GPU {index}"), reads: true, pulse: Pulse::default(), state: Mutex::default() }
    }

    /// A thread that does something else.
    pub(super) fn of(what: &str) -> Self {
        Self { name: what.to_owned(), reads: false, pulse: Pulse::default(), state: Mutex::default() }
    }

    pub(super) fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
