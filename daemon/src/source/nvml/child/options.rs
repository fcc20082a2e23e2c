//! What the child is told on its command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use thiserror::Error;

/// Options of the child, with their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildOptions {
    /// The library: a path, or a name that the dynamic linker looks up.
    pub library: PathBuf,
    /// Time between two readings of a device's memory. 10 ms to 10 s.
    pub memory_interval: Duration,
    /// Time between two listings of its processes and MIG instances, and between two attempts at a GPU that is lost or
    /// cannot be opened. 10 ms to 10 min.
    pub processes_interval: Duration,
    /// A call that takes longer counts as hung. 10 ms to 10 min.
    pub deadline: Duration,
}

/// An argument is wrong.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BadArgument {
    /// Not an option of the child.
    #[error(
        "unknown argument {0:?}; allowed are --library, --memory-interval-ms, --processes-interval-ms, --deadline-ms"
    )]
    Unknown(OsString),
    /// The option stands last.
    #[error("{0} needs a value")]
    NoValue(&'static str),
    /// Out of its range.
    #[error("{name} {value:?}: allowed are {least} to {most} ms")]
    Value {
        /// Option.
        name: &'static str,
        /// As given.
        value: OsString,
        /// Least value.
        least: u64,
        /// Largest value.
        most: u64,
    },
}

const LIBRARY: &str = "--library";

/// An option that is a time: its name, and its range in milliseconds.
struct Time {
    name: &'static str,
    most: u64,
}

const LEAST_MS: u64 = 10;
const MEMORY: Time = Time { name: "--memory-interval-ms", most: 10_000 };
const PROCESSES: Time = Time { name: "--processes-interval-ms", most: 600_000 };
const DEADLINE: Time = Time { name: "--deadline-ms", most: 600_000 };

impl Default for ChildOptions {
    fn default() -> Self {
        Self {
            library: PathBuf::from("libnvidia-ml.so.1"),
            memory_interval: Duration::from_millis(100),
            processes_interval: Duration::from_secs(5),
            deadline: Duration::from_secs(2),
        }
    }
}

impl ChildOptions {
    /// Reads the arguments that [`ChildOptions::to_arguments`] makes; what is not given has its default.
    ///
    /// # Errors
    /// An argument is unknown, lacks its value, or is out of its range.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, BadArgument> {
        let mut options = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let value = arguments.next();
            match name.to_str() {
                Some(LIBRARY) => options.library = value.ok_or(BadArgument::NoValue(LIBRARY))?.into(),
                Some(name) if name == MEMORY.name => options.memory_interval = MEMORY.parse(value)?,
                Some(name) if name == PROCESSES.name => {
                    options.processes_interval = PROCESSES.parse(value)?;
                }
                Some(name) if name == DEADLINE.name => options.deadline = DEADLINE.parse(value)?,
                _ => return Err(BadArgument::Unknown(name)),
            }
        }
        Ok(options)
    }

    /// The arguments that tell a child these options.
    #[must_use]
    pub fn to_arguments(&self) -> Vec<OsString> {
        let time =
            |option: &Time, value: Duration| [option.name.into(), value.as_millis().to_string().into()];
        let mut arguments = vec![LIBRARY.into(), self.library.clone().into_os_string()];
        arguments.extend(time(&MEMORY, self.memory_interval));
        arguments.extend(time(&PROCESSES, self.processes_interval));
        arguments.extend(time(&DEADLINE, self.deadline));
        arguments
    }
}

impl Time {
    fn parse(&self, value: Option<OsString>) -> Result<Duration, BadArgument> {
        let Self { name, most } = *self;
        let value = value.ok_or(BadArgument::NoValue(name))?;
        match value.to_str().and_then(|text| text.parse().ok()) {
            Some(ms) if (LEAST_MS..=most).contains(&ms) => Ok(Duration::from_millis(ms)),
            _ => Err(BadArgument::Value { name, value, least: LEAST_MS, most }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_command_line() {
        let options = ChildOptions {
            library: "/opt/a b/libnvidia-ml.so.1".into(),
            memory_interval: Duration::from_millis(50),
            processes_interval: Duration::from_secs(2),
            deadline: Duration::from_millis(700),
        };
        assert_eq!(ChildOptions::parse(options.to_arguments()), Ok(options));
        assert_eq!(ChildOptions::parse([]), Ok(ChildOptions::default()));
    }

    #[test]
    fn bad_arguments_are_named() {
        let parse = |arguments: &[&str]| {
            let refused = ChildOptions::parse(arguments.iter().map(OsString::from)).unwrap_err();
            refused.to_string()
        };
        assert_eq!(parse(&["--deadline-ms", "9"]), "--deadline-ms \"9\": allowed are 10 to 600000 ms");
        assert_eq!(
            parse(&["--memory-interval-ms", "-1"]),
            "--memory-interval-ms \"-1\": allowed are 10 to 10000 ms"
        );
        assert_eq!(parse(&["--library"]), "--library needs a value");
        assert!(parse(&["--frequency", "1"]).starts_with("unknown argument \"--frequency\""));
    }
}
