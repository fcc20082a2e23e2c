//! The threads that answer calls: their own, so that no source holds them up, and few, so that a connection's calls stay on
//! one core instead of being passed to another.

use std::io;

use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinHandle,
};

use crate::config::Limits;

/// They end when this is dropped, and what runs on them with them.
#[derive(Debug)]
pub(crate) struct Threads {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Threads {
    /// `limits.workers` of them.
    ///
    /// # Errors
    /// The system gives none.
    pub(crate) fn start(limits: &Limits) -> io::Result<Self> {
        let workers = usize::try_from(limits.workers).unwrap_or(1);
        let runtime =
            Builder::new_multi_thread().worker_threads(workers).thread_name("calls").enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Makes something whose input and output these threads are to wait for.
    pub(crate) fn within<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        make()
    }

    /// Runs `work` on them.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(work)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Without waiting: it may be dropped where blocking is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
