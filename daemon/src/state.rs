//! What outlives the daemon: one JSON file in its state directory, written whole and renamed into place.
//!
//! Nothing in it is needed. A file that is damaged, too large, or of another format is put aside and the daemon starts
//! as if there had been none. Each section is optional, so that one can be added or left out alone; sections of a newer
//! daemon are ignored.

mod guards;
mod lengths;
mod moment;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub(crate) use self::moment::boot_id;
pub use self::{guards::Guards, lengths::Lengths, moment::Moment};
use crate::config::read_bounded;

/// What the file says it is.
const FORMAT: &str = "gpuadmit-state";
/// Version of the format; another one is refused.
const VERSION: u32 = 1;
/// Largest state file, bytes: what is larger is neither written nor read.
pub const MAX_STATE_BYTES: u64 = 8 << 20;
/// Name of the file in the state directory.
const FILE: &str = "state.json";

/// The sections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// How long outputs get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lengths: Option<Lengths>,
    /// Prompt sizes that have ended engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guards: Option<Guards>,
}

/// The file: what it is, when it was written, and the sections.
#[derive(Serialize, Deserialize)]
struct Envelope {
    format: String,
    version: u32,
    written: Moment,
    #[serde(flatten)]
    state: State,
}

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is too large to be one.
    #[error("it is larger than {MAX_STATE_BYTES} bytes")]
    TooLarge,
    /// It is no JSON of this form.
    #[error("it is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    /// It is another program's, or of another version.
    #[error("it is {format:?} version {version}, not {FORMAT:?} version {VERSION}")]
    Foreign {
        /// What it says it is.
        format: String,
        /// Which version.
        version: u32,
    },
}

/// What a directory had.
#[derive(Debug)]
pub enum Found {
    /// A file that can be used, and when it was written.
    State(Box<State>, Moment),
    /// No file yet.
    Nothing,
    /// A file that cannot, put aside under that name where that was possible.
    Refused(Refusal, Option<PathBuf>),
}

/// The state file of a directory that exists.
#[derive(Clone, Debug)]
pub struct Store {
    file: PathBuf,
}

impl Store {
    /// The store in `directory`; `None` where there is no such directory: it is never made here, for it belongs to the
    /// service manager.
    #[must_use]
    pub fn open(directory: &Path) -> Option<Self> {
        directory.is_dir().then(|| Self { file: directory.join(FILE) })
    }

    /// Where it lies.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Reads it; puts aside what is refused.
    #[must_use]
    pub fn load(&self) -> Found {
        match read(&self.file) {
            Ok(Some(Envelope { state, written, .. })) => Found::State(Box::new(state), written),
            Ok(None) => Found::Nothing,
            Err(refusal) => {
                let aside = self.file.with_extension("json.refused");
                let moved = fs::rename(&self.file, &aside).is_ok();
                Found::Refused(refusal, moved.then_some(aside))
            }
        }
    }

    /// Writes it: whole beside the old one, to the disk, then into its place.
    ///
    /// # Errors
    /// The directory cannot be written, or the state is larger than [`MAX_STATE_BYTES`].
    pub fn save(&self, state: State) -> io::Result<()> {
        let format = FORMAT.into();
        let envelope = Envelope { format, version: VERSION, written: Moment::now(), state };
        let text = serde_json::to_vec(&envelope)?;
        if !u64::try_from(text.len()).is_ok_and(|length| length <= MAX_STATE_BYTES) {
            return Err(io::Error::other(format!("{} bytes are too many for a state file", text.len())));
        }
        let new = self.file.with_extension("json.new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &self.file)?;
        // The rename itself is only on the disk when its directory is.
        self.file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

fn read(file: &Path) -> Result<Option<Envelope>, Refusal> {
    let text = match read_bounded(file, MAX_STATE_BYTES) {
        Ok(text) => text.ok_or(Refusal::TooLarge)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Refusal::Read(error)),
    };
    let head: Head = serde_json::from_str(&text)?;
    if head.format != FORMAT || head.version != VERSION {
        return Err(Refusal::Foreign { format: head.format, version: head.version });
    }
    Ok(Some(serde_json::from_str(&text)?))
}

/// What is read first: another version may have other sections.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}
