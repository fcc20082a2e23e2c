//! An event as a place to go on from.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read as _},
    path::PathBuf,
    str::FromStr,
};

use anyhow::{Context as _, anyhow};
use gpuadmit_client::v1::WatchEventsResponse;

use crate::command::id;

/// Most that is read of a file.
const MOST_BYTES: u64 = 256;

/// An event, named by its number in this run of the daemon, or across runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Number(u64),
    Resume(String),
}

impl Place {
    /// That of an event. Daemons that name none have its number.
    pub(super) fn of(response: &WatchEventsResponse) -> Self {
        match (&*response.resume, &response.event) {
            ("", event) => Self::Number(event.as_ref().map_or(0, |event| event.cursor)),
            (resume, _) => Self::Resume(resume.to_owned()),
        }
    }

    pub(super) const fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Resume(_) => None,
        }
    }

    pub(super) fn resume(&self) -> Option<String> {
        match self {
            Self::Number(_) => None,
            Self::Resume(resume) => Some(resume.clone()),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    /// Only the daemon knows what a `resume` looks like beyond its dot.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('.') {
            return Ok(Self::Resume(text.to_owned()));
        }
        id::parse(text).map(Self::Number).map_err(|why| format!("{why}; or an event's `resume`, as 4242.17"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Resume(resume) => f.write_str(resume),
        }
    }
}

/// A file with the last event that was shown.
#[derive(Debug)]
pub(super) struct CursorFile(pub(super) PathBuf);

impl CursorFile {
    /// What it has; `None`: there is none yet.
    pub(super) fn read(&self) -> anyhow::Result<Option<Place>> {
        let mut text = String::new();
        let read = File::open(&self.0).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
        let place = match read {
            Ok(_) => Some(text.trim()).filter(|text| !text.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.0.display())),
        };
        let wrong = |why| anyhow!("{} names no event: {why}; remove it to begin anew", self.0.display());
        place.map(str::parse).transpose().map_err(wrong)
    }

    /// Replaces it as a whole.
    pub(super) fn write(&self, place: &Place) -> anyhow::Result<()> {
        let mut new = self.0.clone().into_os_string();
        new.push(".new");
        fs::write(&new, format!("{place}\n"))
            .and_then(|()| fs::rename(&new, &self.0))
            .with_context(|| format!("cannot write {}", self.0.display()))
    }
}
