//! The pipe to the parent.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    sync::{Mutex, PoisonError},
};

use super::super::wire::Message;

/// Writes whole lines, one at a time.
#[derive(Debug)]
pub(super) struct Output(Mutex<File>);

impl Output {
    /// Takes standard output for itself and gives whatever else writes there (the driver's library may) standard error.
    pub(super) fn take_stdout() -> io::Result<Self> {
        let pipe = io::stdout().as_fd().try_clone_to_owned()?;
        nix::unistd::dup2_stdout(io::stderr())?;
        Ok(Self(Mutex::new(File::from(pipe))))
    }

    /// Writes a message. An error means that the parent is gone.
    pub(super) fn send(&self, message: &Message) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }
}
