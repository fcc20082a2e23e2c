//! A real child over the fake library, and what the source says.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "what fails here fails the test")]

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use gpuadmit_core::observation::{DeviceEvent, DeviceReading, Observation, SourceHealth, SourceReport};
use gpuadmitd::source::nvml::{self, ChildCommand, Nvml, Origin, Pauses, child::ChildOptions};
use serde_json::Value;
use tokio::{sync::mpsc, time::timeout};

/// Longest time for anything expected here; what is expected comes in a fraction of it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A source and the node that it sees.
pub(crate) struct Rig {
    pub(crate) nvml: Nvml,
    directory: tempfile::TempDir,
    seen: mpsc::UnboundedReceiver<Observation>,
}

/// What a rig is made of, before it starts.
pub(crate) struct Parts {
    directory: tempfile::TempDir,
    command: ChildCommand,
}

impl Parts {
    /// A child with quick intervals, on a node with these devices.
    pub(crate) fn new(world: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), world);
        let options = ChildOptions {
            library: directory.path().join("libnvidia-ml.so.1"),
            memory_interval: Duration::from_millis(20),
            processes_interval: Duration::from_millis(100),
            deadline: Duration::from_millis(250),
        };
        let command = ChildCommand {
            program: PathBuf::from(env!("CARGO_BIN_EXE_nvml-child")),
            arguments: options.to_arguments(),
            environment: vec![("GPUADMIT_FAKE_NVML".into(), directory.path().join("world.json").into())],
            pauses: Pauses { first: Duration::from_millis(50), longest: Duration::from_millis(200) },
        };
        Self { directory, command }
    }

    /// With another value of an option of the child.
    pub(crate) fn with(mut self, option: &str, value: &str) -> Self {
        self.command.arguments.extend([OsString::from(option), OsString::from(value)]);
        self
    }

    /// The child's command, to be run without a parent that looks after it.
    pub(crate) fn into_command(self) -> (std::process::Command, tempfile::TempDir) {
        install_library(self.directory.path());
        let ChildCommand { program, arguments, environment, .. } = self.command;
        let mut command = std::process::Command::new(program);
        command.args(arguments).envs(environment).stdin(Stdio::piped()).stdout(Stdio::piped());
        (command, self.directory)
    }

    /// With a shell script in the place of the child.
    pub(crate) fn with_shell(mut self, script: &str) -> Self {
        self.command.program = PathBuf::from("/bin/sh");
        self.command.arguments = vec!["-c".into(), script.into()];
        self
    }

    /// Starts; the library is there.
    pub(crate) fn start(self) -> Rig {
        install_library(self.directory.path());
        self.start_without_library()
    }

    /// Starts before the driver is installed.
    pub(crate) fn start_without_library(self) -> Rig {
        let (see, seen) = mpsc::unbounded_channel();
        let observe: gpuadmitd::source::Observe = Arc::new(move |observation| drop(see.send(observation)));
        let nvml = nvml::spawn(Origin::Child(self.command), observe);
        Rig { nvml, directory: self.directory, seen }
    }
}

impl Rig {
    /// Changes the node.
    pub(crate) fn change(&self, world: &Value) {
        write(self.directory.path(), world);
    }

    /// Installs the driver.
    pub(crate) fn install_library(&self) {
        install_library(self.directory.path());
    }

    /// The first thing seen from now on that `choose` takes.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        mut choose: impl FnMut(Observation) -> Option<T>,
    ) -> T {
        let mut last = None;
        let found = timeout(PATIENCE, async {
            loop {
                let observation = self.seen.recv().await.expect("the source runs");
                last = Some(format!("{observation:?}"));
                if let Some(found) = choose(observation) {
                    return found;
                }
            }
        });
        found.await.unwrap_or_else(|_| panic!("{what} did not come; the last seen was {last:?}"))
    }

    /// The next reading of a device that fits.
    pub(crate) async fn reading(
        &mut self,
        uuid: &str,
        fits: impl Fn(&DeviceReading) -> bool,
    ) -> DeviceReading {
        self.until(&format!("a reading of {uuid}"), |observation| match observation {
            Observation::Device(reading) if &*reading.uuid == uuid && fits(&reading) => Some(*reading),
            _ => None,
        })
        .await
    }

    /// The next event of a device.
    pub(crate) async fn event(&mut self, uuid: &str) -> DeviceEvent {
        self.until(&format!("an event of {uuid}"), |observation| match observation {
            Observation::DeviceEvent { uuid: of, event, .. } if &*of == uuid => Some(event),
            _ => None,
        })
        .await
    }

    /// The next report of this health whose sentence has these words.
    pub(crate) async fn report(&mut self, health: SourceHealth, words: &str) -> SourceReport {
        self.until(&format!("{health:?} with {words:?}"), |observation| match observation {
            Observation::Source(report) if report.health == health && report.detail.contains(words) => {
                Some(report)
            }
            _ => None,
        })
        .await
    }

    /// Everything seen in the time of this many readings of a device that delivers.
    pub(crate) async fn meanwhile(&mut self, readings: usize, of: &str) -> Vec<Observation> {
        let mut seen = Vec::new();
        let mut left = readings;
        self.until(&format!("{readings} readings of {of}"), |observation| {
            left -= usize::from(matches!(&observation, Observation::Device(reading) if &*reading.uuid == of));
            seen.push(observation);
            (left == 0).then_some(())
        })
        .await;
        seen
    }

    /// Forgets what was seen so far.
    pub(crate) fn forget(&mut self) {
        while self.seen.try_recv().is_ok() {}
    }

    /// Processes that run on this rig's library.
    pub(crate) fn children(&self) -> Vec<i32> {
        children(self.directory.path())
    }

    /// Drops the source, as the daemon does when it ends, and waits for the end of its child.
    pub(crate) async fn end(self) {
        let Self { nvml, directory, seen } = self;
        drop((nvml, seen));
        let gone = async {
            while !children(directory.path()).is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, gone).await.expect("the child ends");
    }
}

/// How a process ended; one that does not end in time is killed, and `None`.
pub(crate) fn exit_of(mut child: std::process::Child) -> Option<std::process::ExitStatus> {
    let until = std::time::Instant::now() + PATIENCE;
    while std::time::Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().and_then(|()| child.wait()).unwrap();
    None
}

fn children(directory: &Path) -> Vec<i32> {
    let library = directory.as_os_str().as_encoded_bytes();
    let of_rig = |pid: &i32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.windows(library.len()).any(|part| part == library)
    };
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(of_rig).collect()
}

fn write(directory: &Path, world: &Value) {
    let new = directory.join("world.json.new");
    fs::write(&new, world.to_string()).unwrap();
    fs::rename(new, directory.join("world.json")).unwrap();
}

/// Cargo builds the fake library beside the tests, of which it is a dependency.
pub(crate) fn install_library(directory: &Path) {
    let tests = std::env::current_exe().unwrap();
    let library = tests.parent().unwrap().join("libgpuadmit_fake_nvml.so");
    assert!(library.exists(), "{} is missing", library.display());
    symlink(library, directory.join("libnvidia-ml.so.1")).unwrap();
}
