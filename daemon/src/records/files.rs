//! The files of the records: one after the other, each of bounded size, and no more than so many.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufWriter, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{
    fact::Fact,
    line::{Head, Input, Line},
};
use crate::state::Moment;

const PREFIX: &str = "records-";
const SUFFIX: &str = ".jsonl";
/// Engines whose facts begin each file.
const MAX_ENGINES: usize = 64;

/// Where they lie and how many they may become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Directory; its last part is made.
    pub directory: PathBuf,
    /// A file that has become so large is the last but one, bytes.
    pub file_bytes: u64,
    /// Files kept, the one being written included.
    pub files: usize,
}

/// The file being written.
pub(crate) struct Files {
    bounds: Bounds,
    head: Head,
    file: BufWriter<File>,
    path: PathBuf,
    bytes: u64,
    /// The last facts of each engine, so that every file can be read alone.
    engines: BTreeMap<String, Line>,
}

impl Files {
    /// Begins the first file.
    pub(crate) fn begin(bounds: Bounds, head: Head) -> io::Result<Self> {
        match DirBuilder::new().mode(0o750).create(&bounds.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let (file, path) = create(&bounds.directory, &head)?;
        let file = BufWriter::new(file);
        let mut files = Self { bounds, head, file, path, bytes: 0, engines: BTreeMap::new() };
        files.put_head()?;
        files.forget_oldest()?;
        Ok(files)
    }

    /// The file being written.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line.
    pub(crate) fn add(&mut self, line: Line) -> io::Result<()> {
        if self.bytes >= self.bounds.file_bytes {
            self.next()?;
        }
        self.put(&line)?;
        if let Input::Reload(config) = &line.input {
            self.head.config.clone_from(config);
        }
        if let Input::Fact(fact) = &line.input
            && let Fact::Engine(facts) = &**fact
            && (self.engines.len() < MAX_ENGINES || self.engines.contains_key(facts.id()))
        {
            self.engines.insert(facts.id().to_owned(), line);
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn next(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.head.part = self.head.part.saturating_add(1);
        self.head.written = Moment::now();
        let (file, path) = create(&self.bounds.directory, &self.head)?;
        (self.file, self.path, self.bytes) = (BufWriter::new(file), path, 0);
        self.put_head()?;
        let known: Vec<Line> = self.engines.values().cloned().collect();
        known.iter().try_for_each(|line| self.put(line))?;
        self.forget_oldest()
    }

    fn put_head(&mut self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.head)?;
        self.write(text)
    }

    fn put(&mut self, line: &Line) -> io::Result<()> {
        let text = serde_json::to_vec(line)?;
        self.write(text)
    }

    fn write(&mut self, mut text: Vec<u8>) -> io::Result<()> {
        text.push(b'\n');
        self.bytes = self.bytes.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
        self.file.write_all(&text)
    }

    /// Names begin with the time, so that their order is that of the files.
    fn forget_oldest(&self) -> io::Result<()> {
        let mut names: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&self.bounds.directory)? {
            let name = entry?.file_name();
            let ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
            if ours {
                names.push(self.bounds.directory.join(name));
            }
        }
        names.sort();
        let surplus = names.len().saturating_sub(self.bounds.files);
        names.iter().take(surplus).try_for_each(fs::remove_file)
    }
}

fn create(directory: &Path, head: &Head) -> io::Result<(File, PathBuf)> {
    let Head { written, epoch, part, .. } = head;
    let path = directory.join(format!("{PREFIX}{:013}-{epoch:06x}-{part:06}{SUFFIX}", written.unix_ms));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path)?;
    Ok((file, path))
}
