//! What is wrong with this machine as far as gpuadmit is concerned, and what mends it.
//!
//! [`examine`] is a pure function of a [`Case`]: the files of a machine below any root, what the daemon said of itself,
//! and what it thinks of its configuration. Tests plant faults below a root of their own.

mod clock;
mod config;
mod disk;
mod driver;
mod engines;
#[cfg(test)]
mod faults_daemon;
#[cfg(test)]
mod faults_machine;
mod groups;
mod kernel;
mod machine;
#[cfg(test)]
mod planted;
mod rights;
mod service;
mod socket;
#[cfg(test)]
mod tests;

use gpuadmit_client::{CallError, v1::StatusResponse};

pub(crate) use self::{
    config::{Checked, check},
    machine::Machine,
    service::Service,
};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing to do.
    Note,
    /// It works, but less well or less surely.
    Warning,
    /// It does not work.
    Error,
}

impl Level {
    /// For people and programs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What was looked at, a stable word such as `driver.module`.
    pub(crate) check: &'static str,
    /// How bad it is.
    pub(crate) level: Level,
    /// What is the case, and what follows from it.
    pub(crate) text: String,
    /// What mends it: a command where one does.
    pub(crate) remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, text: text.into(), remedy: None }
    }

    fn note(check: &'static str, text: impl Into<String>) -> Self {
        Self { level: Level::Note, ..Self::ok(check, text) }
    }

    fn warning(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warning, remedy: Some(remedy.into()), ..Self::ok(check, text) }
    }

    fn error(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Error, ..Self::warning(check, text, remedy) }
    }

    fn with(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// All that is looked at.
#[derive(Debug)]
pub(crate) struct Case {
    /// The machine's files.
    pub(crate) machine: Machine,
    /// How the daemon is installed and runs.
    pub(crate) service: Service,
    /// What the daemon said, or why it said nothing.
    pub(crate) status: Result<StatusResponse, CallError>,
    /// Its socket.
    pub(crate) socket: String,
    /// What the daemon's program says of its configuration.
    pub(crate) checked: Checked,
    /// This command's version.
    pub(crate) version: &'static str,
}

/// What every check found, in the order in which one would look.
pub(crate) fn examine(case: &Case) -> Vec<Finding> {
    let mut findings = vec![];
    findings.extend(driver::examine(case));
    findings.extend(kernel::examine(case));
    findings.extend(clock::examine(case));
    findings.extend(service::examine(case));
    findings.extend(socket::examine(case));
    findings.extend(config::examine(case));
    findings.extend(disk::examine(case));
    findings.extend(engines::examine(case));
    findings
}
