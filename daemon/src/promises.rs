//! What is promised, for the next run of the daemon: a table in shared memory beside the socket, written under the node's
//! lock like the page. It outlives the daemon however that ends, and not the machine, whose engines end with it.
//!
//! Nothing rests on it alone. A promise that is missing is found in its engine as a stranger's; one that is there too
//! long is dropped when its engine does not show it.

mod mapping;
mod slot;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io,
    ops::RangeInclusive,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::Ordering::{Relaxed, Release},
};

use gpuadmit_core::{
    node::{Node, Standing},
    promise::Promise,
    request::ReservationId,
};
use nix::{fcntl::posix_fallocate, unistd::geteuid};

use self::{
    mapping::Mapping,
    slot::{SLOT_WORDS, promise, words},
};
use crate::{clock, state::boot_id};

/// Says what the file is, with the version of its form: `gpuadPR2`, little endian.
const MAGIC: u64 = u64::from_le_bytes(*b"gpuadPR2");
/// Words before the slots: magic, boot, epochs, slots. Of the epochs' word the lower half is the writer's epoch, the upper
/// half that of the first run in its line.
const HEADER_WORDS: usize = 4;
const HEADER_BYTES: u64 = 32;
/// Most slots that are read.
const MAX_SLOTS: usize = 1_000_000;
/// Promises looked at in one sweep.
const SWEPT: usize = 256;

/// Where the table of the daemon on `socket` lies.
#[must_use]
pub fn path(socket: &Path) -> PathBuf {
    socket.with_extension("promises")
}

/// What an earlier run on this boot of the machine left.
#[derive(Debug, Default)]
pub struct Left {
    /// The epoch in its ids.
    pub epoch: Option<u32>,
    /// The epoch of the first run in its line: each of them took over from the one before.
    pub first_epoch: Option<u32>,
    /// What it had promised.
    pub promises: Vec<Promise>,
}

/// Reads the table at `path`; nothing where there is none, or it is not ours, of another boot, or of another form.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> io::Result<Left> {
    let mut options = OpenOptions::new();
    let file = match options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Left::default()),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if metadata.uid() != geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if !metadata.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut file = io::BufReader::new(file);
    let mut header = [0; HEADER_WORDS];
    if !next(&mut file, &mut header)? {
        return Ok(Left::default());
    }
    let [magic, boot, epochs, slots] = header;
    if magic != MAGIC || boot != this_boot() {
        return Ok(Left::default());
    }
    let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).ok();
    let epoch = half(epochs);
    let first_epoch = half(epochs >> 32).filter(|first| *first > 0).or(epoch);
    let mut left = Left { epoch, first_epoch, promises: Vec::new() };
    let (mut slot, mut seen, now) = ([0; SLOT_WORDS], BTreeSet::new(), clock::now());
    for _ in 0..usize::try_from(slots).unwrap_or(MAX_SLOTS).min(MAX_SLOTS) {
        if !next(&mut file, &mut slot)? {
            break;
        }
        let one = promise(&slot).filter(|one| one.admitted_at <= now && seen.insert(one.id));
        left.promises.extend(one);
    }
    Ok(left)
}

/// Reads some words; false where the file ends before.
fn next(file: &mut impl io::Read, words: &mut [u64]) -> io::Result<bool> {
    for word in words {
        let mut bytes = [0; 8];
        match file.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        *word = u64::from_le_bytes(bytes);
    }
    Ok(true)
}

/// The first half of the boot's id; 0 where it cannot be read.
fn this_boot() -> u64 {
    let digits: String = boot_id().chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// The writer's side. Its file stays when it is dropped; where nothing is promised, its header alone.
#[derive(Debug)]
pub struct Writer {
    mapping: Mapping,
    path: PathBuf,
    /// Device and inode of the file, which another run may have replaced by its own.
    inode: (u64, u64),
    slots: usize,
    /// Slots in use.
    used: BTreeMap<ReservationId, usize>,
    /// Slots used before; those from `fresh` on never were.
    free: Vec<usize>,
    fresh: usize,
    /// The last one that was looked at.
    swept: Option<ReservationId>,
}

impl Writer {
    /// Makes the table at `path` with room for `slots` promises, `left` of an earlier run among them. `epochs` are those of
    /// the first run in this one's line, and of this one.
    ///
    /// # Errors
    /// The file cannot be made there, or not be mapped.
    pub fn create(
        path: &Path,
        slots: usize,
        epochs: RangeInclusive<u32>,
        left: &[Promise],
    ) -> io::Result<Self> {
        let beside = path.with_extension("promises.new");
        let _ = fs::remove_file(&beside);
        let slots = slots.clamp(1, MAX_SLOTS);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&beside)?;
        let made = Self::fill(&file, path.to_owned(), slots, &epochs).and_then(|mut writer| {
            left.iter().for_each(|promise| writer.give(promise));
            fs::rename(&beside, path)?;
            Ok(writer)
        });
        if made.is_err() {
            let _ = fs::remove_file(&beside);
        }
        made
    }

    fn fill(file: &File, path: PathBuf, slots: usize, epochs: &RangeInclusive<u32>) -> io::Result<Self> {
        let words = HEADER_WORDS + slots * SLOT_WORDS;
        // Not a length alone: a page that cannot be had when it is written to ends the program.
        let bytes = i64::try_from(words * size_of::<u64>()).map_err(io::Error::other)?;
        posix_fallocate(file, 0, bytes)?;
        let mapping = Mapping::writable(file, words)?;
        let counted = u64::try_from(slots).unwrap_or(u64::MAX);
        let epochs = u64::from(*epochs.start()) << 32 | u64::from(*epochs.end());
        let header = [MAGIC, this_boot(), epochs, counted];
        mapping.words().iter().zip(header).for_each(|(word, value)| word.store(value.to_le(), Relaxed));
        let inode = file.metadata().map(|file| (file.dev(), file.ino()))?;
        let (used, free, fresh, swept) = (BTreeMap::new(), Vec::new(), 0, None);
        Ok(Self { mapping, path, inode, slots, used, free, fresh, swept })
    }

    /// Whether a promise is in it.
    #[must_use]
    pub fn has(&self, id: ReservationId) -> bool {
        self.used.contains_key(&id)
    }

    /// Puts a promise in. One that finds no room is not kept.
    pub fn give(&mut self, promise: &Promise) {
        let Some(words) = words(promise) else { return };
        let fresh = || (self.fresh < self.slots).then_some(self.fresh);
        let Some(index) = self.free.pop().or_else(fresh) else { return };
        self.fresh = self.fresh.max(index + 1);
        self.used.insert(promise.id, index);
        let Some((id, rest)) = self.slot(index).split_first() else { return };
        rest.iter().zip(words.iter().skip(1)).for_each(|(word, value)| word.store(value.to_le(), Relaxed));
        // With its id it begins to count: a daemon that is killed before has not promised it.
        id.store(promise.id.0.to_le(), Release);
    }

    /// Takes a promise out.
    pub fn end(&mut self, id: ReservationId) {
        let Some(index) = self.used.remove(&id) else { return };
        if let Some(id) = self.slot(index).first() {
            id.store(0, Release);
        }
        self.free.push(index);
    }

    /// Takes out some of those that `node` does not hold any more; the next sweep goes on behind them.
    pub fn sweep(&mut self, node: &Node) {
        let from = self.swept.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let range = self.used.range((from, std::ops::Bound::Unbounded));
        let some: Vec<ReservationId> = range.map(|(id, _)| *id).take(SWEPT).collect();
        self.swept = some.last().copied().filter(|_| some.len() == SWEPT);
        for id in some {
            if node.standing(id) == Standing::Ended {
                self.end(id);
            }
        }
    }

    fn slot(&self, index: usize) -> &[std::sync::atomic::AtomicU64] {
        let start = HEADER_WORDS + index * SLOT_WORDS;
        self.mapping.words().get(start..start + SLOT_WORDS).unwrap_or_default()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let ours = fs::metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.inode);
        if self.used.is_empty() && ours {
            // A file that cannot be cut is an empty table all the same.
            let _ =
                OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(HEADER_BYTES));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{slot::tests::some, *};

    fn ids(path: &Path) -> Vec<u64> {
        let mut ids: Vec<u64> = read(path).unwrap().promises.iter().map(|one| one.id.0).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn what_is_there_twice_or_from_the_future_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.promises");
        let mut writer = Writer::create(&path, 3, 9..=9, &[some(1)]).unwrap();
        writer.used.clear();
        writer.give(&some(1));
        writer.give(&Promise { admitted_at: gpuadmit_core::units::Mono(u64::MAX), ..some(2) });
        assert_eq!(ids(&path), [1]);
    }

    #[test]
    fn a_pipe_in_its_place_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.promises");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn what_is_promised_is_read_while_the_writer_lives_and_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.promises");
        let mut writer = Writer::create(&path, 3, 7..=9, &[some(1)]).unwrap();
        writer.give(&some(2));
        writer.give(&some(3));
        writer.give(&some(4));
        assert_eq!(ids(&path), [1, 2, 3], "there is room for three");
        writer.end(ReservationId(2));
        writer.give(&some(5));
        assert_eq!(ids(&path), [1, 3, 5]);
        std::mem::forget(writer);
        let left = read(&path).unwrap();
        assert_eq!((left.first_epoch, left.epoch, left.promises.len()), (Some(7), Some(9), 3));
        assert!(left.promises.contains(&some(5)));
    }

    #[test]
    fn a_table_that_another_run_put_in_its_place_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.promises");
        let old = Writer::create(&path, 3, 9..=9, &[]).unwrap();
        let _new = Writer::create(&path, 3, 10..=10, &[some(1)]).unwrap();
        drop(old);
        assert_eq!(ids(&path), [1]);
    }

    #[test]
    fn of_an_empty_table_the_header_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.promises");
        let mut writer = Writer::create(&path, 3, 9..=9, &[]).unwrap();
        writer.give(&some(1));
        writer.end(ReservationId(1));
        drop(writer);
        assert_eq!(fs::metadata(&path).unwrap().len(), HEADER_BYTES);
        let left = read(&path).unwrap();
        assert_eq!((left.epoch, left.promises.len()), (Some(9), 0));
    }

    #[test]
    fn what_the_node_does_not_hold_is_swept_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.promises");
        let promises: Vec<_> = (1..=600).map(some).collect();
        let mut writer = Writer::create(&path, 1000, 9..=9, &promises).unwrap();
        let node = Node::new(gpuadmit_core::settings::Settings::default(), 1);
        (0..3).for_each(|_| writer.sweep(&node));
        assert_eq!(writer.used.len(), 0);
    }

    #[test]
    fn a_file_of_another_boot_or_form_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.promises");
        assert_eq!(read(&path).unwrap().epoch, None, "there is none");
        for other in [[0; 4], [MAGIC, this_boot() ^ 1, 9, 1]] {
            let bytes: Vec<u8> = other.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
            fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path).unwrap().epoch, None);
        }
        let short: Vec<u8> = [MAGIC, this_boot(), 9, 5].iter().flat_map(|word| word.to_le_bytes()).collect();
        fs::write(&path, short).unwrap();
        assert_eq!(read(&path).unwrap().promises.len(), 0, "five slots were to follow");
    }
}
