//! An event as a place to go on from.

use std::{
    convert::Infallible,
    fmt,
    fs::{self, File},
    io::{self, Read as _},
    path::PathBuf,
    str::FromStr,
};

use anyhow::Context as _;
use gpuadmit_client::v1::WatchEventsResponse;

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
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| Self::Resume(text.to_owned()), Self::Number))
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
        match read {
            Ok(_) => Ok(Some(text.trim()).filter(|text| !text.is_empty()).and_then(|text| text.parse().ok())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.0.display())),
        }
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
