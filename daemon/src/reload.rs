//! SIGHUP: the configuration is read and checked again. A bad one changes nothing, and why is logged and in the status
//! line; a good one is taken over as far as a running daemon can, and the keys that wait for a restart are named.

use crate::{
    config::{Change, Config, ConfigError},
    handle::Handle,
    notify::{self, Remark},
};

/// Reloads a daemon's configuration.
pub struct Reloader<L> {
    running: Config,
    load: L,
    handle: Handle,
    remark: Remark,
}

impl<L: Fn() -> Result<Config, ConfigError>> Reloader<L> {
    /// Of the daemon with node `handle` that runs with `running`; `load` reads its configuration anew.
    pub(crate) const fn new(running: Config, load: L, handle: Handle, remark: Remark) -> Self {
        Self { running, load, handle, remark }
    }

    /// Reads the configuration and takes it over, or says why not.
    pub fn reload(&mut self) {
        notify::reloading();
        match (self.load)() {
            Ok(new) => self.take_over(&new),
            Err(error) => {
                tracing::error!(
                    "the configuration is kept as it was, for the new one is not allowed: {error}"
                );
                self.remark.say(&format!("reload refused: {error}"));
            }
        }
        notify::reloaded();
    }

    fn take_over(&mut self, new: &Config) {
        let Change { config, applied, waiting } = self.running.change_to(new);
        if !applied.is_empty() {
            self.handle.reconfigure(&config);
        }
        self.running = config;
        tracing::info!(applied = applied.join(", "), "the configuration is reloaded");
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
