//! The daemon's configuration: whether it takes it, who may read and change it, and what matters here of it.

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde::Deserialize;
use tokio::{process::Command, time::timeout};

use super::{
    Case, Finding, Service,
    machine::{Machine, Want},
};

/// Longest time for the daemon's program to read its configuration.
const CHECK_DEADLINE: Duration = Duration::from_secs(10);
/// Most lines shown of what it says.
const MAX_LINES: usize = 20;

/// What matters here; the daemon's own rules are asked of its program.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
    pub(super) kernel: Kernel,
    pub(super) nvml: Switch,
    pub(super) state: State,
    pub(super) records: Records,
    engine: Vec<Engine>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Kernel {
    pub(super) object: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct Switch {
    pub(super) enabled: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct State {
    pub(super) enabled: bool,
    pub(super) path: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct Records {
    pub(super) enabled: bool,
    pub(super) path: PathBuf,
    pub(super) file_bytes: u64,
    pub(super) files: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Engine {
    api_key_file: Option<PathBuf>,
}

// The daemon's own defaults (systemd/gpuadmit.toml).
impl Default for Switch {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl Default for State {
    fn default() -> Self {
        Self { enabled: true, path: "/var/lib/gpuadmit".into() }
    }
}

impl Default for Records {
    fn default() -> Self {
        Self { enabled: false, path: "/var/lib/gpuadmit/records".into(), file_bytes: 64 << 20, files: 16 }
    }
}

impl Config {
    /// What the file says; the defaults where it cannot be found, read or understood.
    pub(super) fn read(machine: &Machine, path: &Path) -> Self {
        if path.is_relative() {
            return Self::default();
        }
        machine.read(path).and_then(|text| toml::from_str(&text).ok()).unwrap_or_default()
    }
}

/// What the daemon's program says of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// Nothing.
    Fine,
    /// What is wrong.
    Refused(String),
    /// There is no file.
    Absent,
    /// Why it was not asked.
    NotAsked(String),
}

/// Asks it.
pub(crate) async fn check(machine: &Machine, service: &Service) -> Checked {
    let config = service.config_path();
    if config.is_relative() {
        return Checked::NotAsked("the folder that the daemon runs in is not for this user to see".into());
    }
    if machine.access(config).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Checked::Absent;
    }
    let Some(program) = service.program() else {
        return Checked::NotAsked("gpuadmitd is not installed".into());
    };
    let mut command = Command::new(machine.path(program));
    command.arg("--config").arg(machine.path(config)).arg("--check-config");
    command.env_remove("GPUADMIT_SOCKET").stdin(Stdio::null()).kill_on_drop(true);
    match timeout(CHECK_DEADLINE, command.output()).await {
        Ok(Ok(output)) if output.status.success() => Checked::Fine,
        Ok(Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Checked::Refused(text.lines().take(MAX_LINES).collect::<Vec<_>>().join("; "))
        }
        Ok(Err(error)) => Checked::NotAsked(format!("{} cannot be run: {error}", program.display())),
        Err(_) => Checked::NotAsked(format!("{} did not answer in time", program.display())),
    }
}

pub(super) fn examine(case: &Case) -> Vec<Finding> {
    let mut findings = vec![verdict(case)];
    findings.extend(permissions(case));
    findings.extend(keys(case));
    findings
}

fn verdict(case: &Case) -> Finding {
    const CHECK: &str = "config.valid";
    let path = case.service.config_path.display();
    match &case.checked {
        Checked::Fine => Finding::ok(CHECK, format!("{path} is taken")),
        Checked::Absent if case.service.is_told_config() => {
            let text = format!("no {path}, which the daemon is told to read: it does not start");
            Finding::error(
                CHECK,
                text,
                format!(
                    "test -e {path} || install -D -m 0644 /dev/null {path} (an empty one means the defaults)"
                ),
            )
        }
        Checked::Absent => Finding::ok(CHECK, format!("no {path}: the defaults hold")),
        Checked::NotAsked(why) => {
            let note = Finding::note(CHECK, format!("{path} was not checked: {why}"));
            if case.service.config_path.is_relative() {
                note.with("run gpuadmit doctor as root")
            } else {
                note
            }
        }
        // What the daemon may read this user may not.
        Checked::Refused(text) if text.contains("Permission denied") => {
            Finding::note(CHECK, format!("{path} was not checked: {text}"))
                .with("run gpuadmit doctor as root")
        }
        Checked::Refused(text) => {
            let text = format!("{path} is refused: {text}");
            Finding::error(CHECK, text, format!("mend {path}, then gpuadmitd --config {path} --check-config"))
        }
    }
}

fn permissions(case: &Case) -> Option<Finding> {
    const CHECK: &str = "config.permissions";
    let path = case.service.config_path.display();
    if case.service.config_path.is_relative() {
        return None;
    }
    let file = case.machine.access(&case.service.config_path).ok()?;
    if file.mode & 0o002 != 0 {
        let text =
            format!("every user may change {path} (mode {:04o}), and with it what is admitted", file.mode);
        return Some(Finding::error(CHECK, text, format!("chmod o-w {path}")));
    }
    let who = case.service.identity()?;
    Some(if file.allows(who, Want::Read) {
        Finding::ok(CHECK, format!("mode {:04o}", file.mode))
    } else {
        let text = format!("the daemon's user may not read {path}: it does not start");
        Finding::error(CHECK, text, format!("chgrp gpuadmit {path} && chmod 0640 {path}"))
    })
}

/// Keys of engines that others can read.
fn keys(case: &Case) -> Vec<Finding> {
    const CHECK: &str = "config.keys";
    let paths = case.service.config.engine.iter().filter_map(|engine| engine.api_key_file.as_ref());
    paths
        .filter_map(|path| {
            let shown = path.display();
            let Ok(file) = case.machine.access(path) else {
                let text = format!("no {shown}: the daemon does not start without that API key");
                return Some(Finding::error(CHECK, text, format!("write the engine's key into {shown}")));
            };
            let readable = case.service.identity().is_none_or(|who| file.allows(who, Want::Read));
            if !readable {
                let text = format!("the daemon's user may not read {shown}: it does not start");
                return Some(Finding::error(
                    CHECK,
                    text,
                    format!("chgrp gpuadmit {shown} && chmod 0640 {shown}"),
                ));
            }
            (file.mode & 0o004 != 0).then(|| {
                let text = format!("every user can read the API key in {shown} (mode {:04o})", file.mode);
                Finding::warning(CHECK, text, format!("chgrp gpuadmit {shown} && chmod 0640 {shown}"))
            })
        })
        .collect()
}
