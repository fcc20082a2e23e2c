//! Logging, to standard error. Prompt text is never logged.

use std::{
    env,
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
};

use nix::sys::stat::fstat;
use tracing_subscriber::EnvFilter;

/// Starts logging by `level`, which has been checked. Without time stamps under journald, which adds its own.
pub fn start(level: &str) {
    let filter = EnvFilter::try_new(level).unwrap_or_else(|_| EnvFilter::new("info"));
    let format = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // A second call (tests in one process) keeps the first's.
    let _ = if under_journald() { format.without_time().try_init() } else { format.try_init() };
}

/// Whether standard error goes to the journal: `JOURNAL_STREAM` holds its device and inode (systemd.exec(5)).
fn under_journald() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    fstat(io::stderr().as_fd()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}
