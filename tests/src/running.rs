//! The daemon as a program of its own.

use std::{
    fs,
    os::unix::net::{UnixDatagram, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::binary::binary;

/// Longest wait for what happens at once on an idle machine.
pub const SOON: Duration = Duration::from_secs(20);

/// A configuration without sources.
pub const QUIET: &str = "[nvml]\nenabled = false\n[vllm]\ndiscover = false\n[state]\nenabled = false\n[prometheus]\nenabled = false\n";

/// Writes a configuration into `folder`.
///
/// # Panics
/// The folder cannot be written.
pub fn configure(folder: &Path, content: &str) -> PathBuf {
    let file = folder.join("gpuadmit.toml");
    fs::write(&file, content).expect("a folder that can be written");
    file
}

/// The command that starts the daemon with the configuration in `folder`.
#[must_use]
pub fn command(folder: &Path) -> Command {
    let mut command = Command::new(binary("gpuadmitd"));
    command.arg("--config").arg(folder.join("gpuadmit.toml")).stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A running daemon, killed when dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts it without sources on the socket `s` in `folder`.
    ///
    /// # Panics
    /// It does not serve soon.
    #[must_use]
    pub fn start(folder: &Path) -> Self {
        let socket = folder.join("s");
        configure(folder, QUIET);
        let child = command(folder).arg("--socket").arg(&socket).spawn();
        let running = Self(child.expect("the daemon starts"));
        within(SOON, || UnixStream::connect(&socket).is_ok());
        running
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// It is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end soon.
    #[must_use]
    pub fn wait(mut self) -> ExitStatus {
        let mut status = None;
        within(SOON, || {
            status = self.0.try_wait().expect("it is our child");
            status.is_some()
        });
        status.expect("it has ended")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something happens.
///
/// # Panics
/// It does not happen within `time`.
pub fn within(time: Duration, mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < time, "it did not happen within {time:?}");
        sleep(Duration::from_millis(10));
    }
}

/// A service manager, and what it was told.
pub struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    /// All of it since this was last cleared, a line each.
    pub told: String,
}

impl Manager {
    /// One that listens in `folder`.
    ///
    /// # Panics
    /// The folder cannot be written.
    #[must_use]
    pub fn listen(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).expect("a folder that can be written");
        socket.set_read_timeout(Some(SOON)).expect("a time that is not zero");
        Self { socket, path, told: String::new() }
    }

    /// Its address, for `NOTIFY_SOCKET`.
    #[must_use]
    pub fn address(&self) -> &Path {
        &self.path
    }

    /// Waits until it is told `wanted`.
    ///
    /// # Panics
    /// It is not told soon.
    pub fn until(&mut self, wanted: &str) {
        let mut buffer = [0; 4096];
        while !self.told.contains(wanted) {
            let length = self.socket.recv(&mut buffer);
            let length = length.unwrap_or_else(|error| panic!("no {wanted:?} ({error}): {:?}", self.told));
            self.told.push_str(&String::from_utf8_lossy(&buffer[..length]));
            self.told.push('\n');
        }
    }
}
