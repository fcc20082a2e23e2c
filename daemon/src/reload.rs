//! SIGHUP: the configuration is read and checked again. A bad one changes nothing, and why is logged and in the status
//! line; a good one is taken over as far as a running daemon can, and the keys that wait for a restart are named.

use std::time::Duration;

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use crate::{
    config::{Change, Config, ConfigError},
    handle::Handle,
    notify::{self, Remark},
};

/// Longest time for the file to be read; a disk that hangs takes longer.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// Why a configuration was not taken over.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    NotAllowed(#[from] ConfigError),
    #[error("its file could not be read within {} s", READ_DEADLINE.as_secs())]
    Hangs,
    #[error("its file is still being read since the last time")]
    StillHangs,
}

/// Reloads a daemon's configuration.
pub struct Reloader<L> {
    running: Config,
    load: L,
    /// Reads the file on a thread of its own, so that a disk that hangs holds up nobody; at most one.
    reading: Option<JoinHandle<Result<Config, ConfigError>>>,
    handle: Handle,
    remark: Remark,
}

impl<L: Fn() -> Result<Config, ConfigError> + Clone + Send + 'static> Reloader<L> {
    /// Of the daemon with node `handle` that runs with `running`; `load` reads its configuration anew.
    pub(crate) const fn new(running: Config, load: L, handle: Handle, remark: Remark) -> Self {
        Self { running, load, reading: None, handle, remark }
    }

    /// Reads the configuration and takes it over, or says why not.
    pub async fn reload(&mut self) {
        notify::reloading();
        match self.read(READ_DEADLINE).await {
            Ok(new) => self.take_over(&new),
            Err(error) => {
                let why = match &error {
                    ReloadError::NotAllowed(error) => error.in_one_line(),
                    ReloadError::Hangs | ReloadError::StillHangs => error.to_string(),
                };
                tracing::error!("the configuration is kept as it was, for the new one is not allowed: {why}");
                self.remark.say(&format!("reload refused: {why}"));
            }
        }
        notify::reloaded();
    }

    async fn read(&mut self, deadline: Duration) -> Result<Config, ReloadError> {
        if self.reading.as_ref().is_some_and(|reading| !reading.is_finished()) {
            return Err(ReloadError::StillHangs);
        }
        // What an earlier one that hung came to in the end may be old.
        let reading = self.reading.insert(spawn_blocking(self.load.clone()));
        match timeout(deadline, reading).await {
            Ok(Ok(read)) => {
                self.reading = None;
                Ok(read?)
            }
            // The runtime that reads it shuts down.
            Ok(Err(_)) | Err(_) => Err(ReloadError::Hangs),
        }
    }

    fn take_over(&mut self, new: &Config) {
        let Change { config, applied, waiting } = self.running.change_to(new);
        if !applied.is_empty() {
            self.handle.reconfigure(&config);
        }
        self.running = config;
        let changed = if applied.is_empty() { "nothing".into() } else { applied.join(", ") };
        tracing::info!(changed, "the configuration is reloaded");
        let remark = if waiting.is_empty() {
            String::new()
        } else {
            format!("restart to change {}", waiting.join(", "))
        };
        if !remark.is_empty() {
            tracing::warn!("{remark}");
        }
        self.remark.say(&remark);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use gpuadmit_core::settings::Settings;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_file_that_cannot_be_read_in_time_changes_nothing_and_is_read_by_one_thread_only() {
        let (come, comes) = mpsc::channel::<Config>();
        let comes = Arc::new(Mutex::new(comes));
        let load = move || Ok(comes.lock().unwrap().recv().unwrap());
        let handle = Handle::new(Settings::default(), 0);
        let mut reloader = Reloader::new(Config::default(), load, handle, Remark::default());
        assert!(matches!(reloader.read(SOON).await, Err(ReloadError::Hangs)));
        assert!(matches!(reloader.read(SOON).await, Err(ReloadError::StillHangs)));
        let old = Config { mode: crate::config::Mode::Observe, ..Config::default() };
        come.send(old).unwrap();
        while reloader.reading.as_ref().is_some_and(|reading| !reading.is_finished()) {
            tokio::time::sleep(SOON).await;
        }
        come.send(Config::default()).unwrap();
        assert_eq!(reloader.read(Duration::from_mins(1)).await.unwrap(), Config::default());
    }
}
