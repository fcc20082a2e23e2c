//! Records run again, as they were decided or under another policy.
//!
//! Under the policy they were recorded with, a run from its start must come out the same: the node is deterministic. Any
//! other comparison follows what happened: at each request the other policy is asked, and then the recorded decision is
//! carried out, so that every question is asked of the same history, of readings that were really made. What the other
//! policy's own decisions would have led to needs a simulation instead; this says decision by decision where it differs.

mod report;
mod run;

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    path::{Path, PathBuf},
};

use gpuadmit_core::settings::{Risk, Settings};

pub use self::report::{Change, Report};
use self::run::Run;
use super::line::{FORMAT, Head, Line, VERSION};
use crate::config::{Config, ConfigError};

/// Longest line read, bytes: the first may hold all that was learned.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// What decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// As it was recorded.
    Recorded,
    /// Every request counted whole.
    WorstCase,
    /// By forecast, with the default risks.
    Forecast,
    /// As a configuration says.
    Configured(Box<Config>),
}

impl Policy {
    /// By its name, or a configuration file.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn parse(name: &str) -> Result<Self, ConfigError> {
        Ok(match name {
            "recorded" => Self::Recorded,
            "worst-case" => Self::WorstCase,
            "forecast" => Self::Forecast,
            file => Self::Configured(Box::new(Config::load(Path::new(file))?)),
        })
    }

    fn settings(&self, recorded: &Config) -> Settings {
        let settings = recorded.settings();
        match self {
            Self::Recorded => settings,
            Self::WorstCase => Settings { risk: Risk::NONE, ..settings },
            Self::Forecast => Settings { risk: Settings::default().risk, ..settings },
            Self::Configured(config) => config.settings(),
        }
    }
}

/// Why records cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is none of ours, or of another version.
    #[error("{path} has no records of version {VERSION}")]
    Foreign {
        /// Which.
        path: PathBuf,
    },
    /// A line is damaged.
    #[error("{path}, line {line}: {source}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: u64,
        /// How.
        source: serde_json::Error,
    },
}

/// Runs `files`, in the order of their names, under `policy`. Keeps at most `examples` of what differs.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(files: &[PathBuf], policy: &Policy, examples: usize) -> Result<Report, ReplayError> {
    let mut files = files.to_vec();
    files.sort();
    let mut report = Report::new(examples);
    let mut run: Option<Run> = None;
    for path in &files {
        let mut lines = Lines::open(path)?;
        let head = lines.head()?;
        let goes_on = run.as_ref().is_some_and(|run| run.goes_on_with(&head));
        let mut current = match run.take().filter(|_| goes_on) {
            Some(current) => current.next(),
            None => Run::new(head, policy, &mut report),
        };
        while let Some(line) = lines.next()? {
            current.take(line, &mut report);
        }
        run = Some(current);
    }
    Ok(report)
}

/// Lines of a file.
struct Lines {
    path: PathBuf,
    file: BufReader<File>,
    number: u64,
    text: Vec<u8>,
}

impl Lines {
    fn open(path: &Path) -> Result<Self, ReplayError> {
        let file = File::open(path).map_err(|source| ReplayError::Read { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file: BufReader::new(file), number: 0, text: Vec::new() })
    }

    /// Reads the next line; false at the end. The last line of a daemon that was killed may be cut off: it is left out.
    fn read(&mut self) -> Result<bool, ReplayError> {
        self.text.clear();
        self.number += 1;
        let read = (&mut self.file).take(MAX_LINE_BYTES).read_until(b'\n', &mut self.text);
        read.map_err(|source| ReplayError::Read { path: self.path.clone(), source })?;
        Ok(self.text.last() == Some(&b'\n'))
    }

    fn head(&mut self) -> Result<Head, ReplayError> {
        let path = self.path.clone();
        let foreign = || ReplayError::Foreign { path: path.clone() };
        #[derive(serde::Deserialize)]
        struct Format {
            format: String,
            version: u32,
        }
        if !self.read()? {
            return Err(foreign());
        }
        let format: Format = serde_json::from_slice(&self.text).map_err(|_| foreign())?;
        if format.format != FORMAT || format.version != VERSION {
            return Err(foreign());
        }
        serde_json::from_slice(&self.text).map_err(|source| self.damaged(source))
    }

    fn next(&mut self) -> Result<Option<Line>, ReplayError> {
        if !self.read()? {
            return Ok(None);
        }
        serde_json::from_slice(&self.text).map(Some).map_err(|source| self.damaged(source))
    }

    fn damaged(&self, source: serde_json::Error) -> ReplayError {
        ReplayError::Damaged { path: self.path.clone(), line: self.number, source }
    }
}
