//! The shared page, written: what each engine and device can take now, beside the socket, for whoever may call there.
//!
//! It is written in place under the node's lock: there is one writer by construction, no figure can overtake a newer
//! one, and a write is some fifty stores into memory that is mapped and resident. A new daemon makes a new file and
//! renames it into place, so that a reader of the old one keeps its mapping and learns by the heartbeat that it is stale.

mod mapping;

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use gpuadmit_core::{
    node::Node,
    request::Headroom,
    snapshot::{DeviceSnapshot, EngineState, Room, Snapshot, Touched},
    units::Mono,
};
use gpuadmit_proto::page::{
    ClassRoom, DEVICE_WORDS, DeviceFigures, ENGINE_WORDS, ENGINES, EngineFigures, MAGIC, Page, UNKNOWN,
    VERSION, pack,
};
use nix::{
    fcntl::posix_fallocate,
    unistd::{Gid, fchown},
};

use self::mapping::Mapping;
use crate::rpc::state_number;

/// Heartbeats that may be missed before the page is not believed any more.
const MISSED_BEATS: u32 = 10;
/// Least age of the heartbeat at which that is so: a busy machine is not a dead daemon.
const LEAST_MAX_AGE: Duration = Duration::from_secs(1);

/// Where the page of the daemon on `socket` lies.
#[must_use]
pub fn path(socket: &Path) -> PathBuf {
    socket.with_extension("page")
}

/// Who may read the page: those who may open the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    /// Group of the socket's file, where it is known.
    pub gid: Option<u32>,
    /// Whether the socket's mode lets others in.
    pub others: bool,
}

impl Readers {
    /// Of the page beside a socket file with this group and these permission bits; who may write a socket may connect.
    #[must_use]
    pub const fn of(gid: Option<u32>, mode: Option<u32>) -> Self {
        let others = matches!(mode, Some(mode) if mode & 0o002 != 0);
        Self { gid, others }
    }
}

/// The writer's side of a page. When it is dropped the page says that it is closed, and its file is removed.
#[derive(Debug)]
pub struct Writer {
    mapping: Mapping,
    path: PathBuf,
    inode: (u64, u64),
    /// Engine ids by slot, and likewise of devices.
    engines: Vec<Option<Arc<str>>>,
    devices: usize,
}

impl Writer {
    /// Makes the page at `path`; `beat`: time between two calls of [`Self::refresh`].
    ///
    /// # Errors
    /// The file cannot be made there, or not be mapped.
    pub fn create(path: PathBuf, readers: Readers, epoch: u32, beat: Duration) -> io::Result<Self> {
        let beside = beside(&path);
        let _ = fs::remove_file(&beside);
        // The descriptor that makes a file may write whatever its mode says; nobody else may, not even we again.
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o400).open(&beside)?;
        let made = Self::fill(&file, readers, epoch, beat).and_then(|mapping| {
            fs::rename(&beside, &path)?;
            let found = file.metadata()?;
            Ok((mapping, (found.dev(), found.ino())))
        });
        match made {
            Ok((mapping, inode)) => {
                Ok(Self { mapping, path, inode, engines: vec![None; ENGINES], devices: 0 })
            }
            Err(error) => {
                let _ = fs::remove_file(&beside);
                Err(error)
            }
        }
    }

    fn fill(file: &File, readers: Readers, epoch: u32, beat: Duration) -> io::Result<Mapping> {
        let size = u64::try_from(size_of::<Page>()).map_err(io::Error::other)?;
        // Not a length alone: a page that cannot be had when it is written to ends the program.
        posix_fallocate(file, 0, i64::try_from(size).map_err(io::Error::other)?)?;
        let mapping = Mapping::writable(file)?;
        let header = &mapping.page().header;
        header.version.store(VERSION, Relaxed);
        header.size_bytes.store(size, Relaxed);
        header.epoch.store(epoch.into(), Relaxed);
        header.heartbeat_ns.store(crate::clock::now().0, Relaxed);
        let max_age = (beat * MISSED_BEATS).max(LEAST_MAX_AGE);
        header.max_age_ns.store(u64::try_from(max_age.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        header.magic.store(MAGIC, Relaxed);
        if let Some(gid) = readers.gid.filter(|gid| file.metadata().is_ok_and(|file| file.gid() != *gid)) {
            // Without the right to give it to that group, the daemon's own may read it.
            let _ = fchown(file, None, Some(Gid::from_raw(gid)));
        }
        let mode = if readers.others { 0o444 } else { 0o440 };
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(mapping)
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what a call has changed.
    pub fn touched(&mut self, touched: Touched, node: &Node, now: Mono) {
        match touched {
            Touched::None => {}
            Touched::One(index) => {
                if let Some(room) = node.room(now, index) {
                    self.engine(&room, now);
                }
            }
            Touched::All => self.all(node, now),
        }
    }

    /// Writes everything anew, and the heartbeat.
    pub fn refresh(&mut self, node: &Node, snapshot: &Snapshot) {
        self.all(node, snapshot.at);
        let slots = self.mapping.page().devices.iter();
        let used = snapshot.devices.len().max(self.devices);
        let devices = snapshot.devices.iter().map(|device| self::device(device, snapshot.at));
        let words = devices.chain(std::iter::repeat([0; DEVICE_WORDS]));
        slots.take(used).zip(words).for_each(|(slot, words)| slot.write(&words));
        self.devices = snapshot.devices.len();
        let header = &self.mapping.page().header;
        header.admitted.store(snapshot.decisions.admitted, Relaxed);
        header.denied.store(snapshot.decisions.denied, Relaxed);
        header.heartbeat_ns.store(snapshot.at.0, Relaxed);
    }

    fn all(&mut self, node: &Node, now: Mono) {
        let rooms: Vec<Room<'_>> = (0..node.rooms()).filter_map(|index| node.room(now, index)).collect();
        for (slot, id) in self.mapping.page().engines.iter().zip(&mut self.engines) {
            if id.as_ref().is_some_and(|id| !rooms.iter().any(|room| room.engine == id)) {
                slot.write(&[0; ENGINE_WORDS]);
                *id = None;
            }
        }
        rooms.iter().for_each(|room| self.engine(room, now));
    }

    fn engine(&mut self, room: &Room<'_>, now: Mono) {
        let own = self.engines.iter().position(|id| id.as_ref() == Some(room.engine));
        let free = || self.engines.iter().position(Option::is_none);
        let Some(index) = own.or_else(free) else { return };
        if let (Some(slot), Some(id)) = (self.mapping.page().engines.get(index), self.engines.get_mut(index))
        {
            if id.is_none() {
                *id = Some(Arc::clone(room.engine));
            }
            slot.write(&figures(room, now).to_words());
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.mapping.page().header.closed.store(1, Relaxed);
        let ours = fs::metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.inode);
        if ours {
            // At the end nobody is left to tell; a page that stays says by its header that it is closed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Name under which the file is made before it is renamed into place.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    name.into()
}

fn figures(room: &Room<'_>, now: Mono) -> EngineFigures {
    let by_class = room.headrooms.by_class().map(|(_, headroom)| headroom);
    let known = by_class.iter().all(Option::is_some);
    let age = by_class.iter().flatten().map(|headroom| headroom.age).max();
    EngineFigures {
        id: pack(room.engine),
        state: state(room.state),
        headroom_known: u64::from(known),
        read_at_ns: age.map_or(UNKNOWN, |age| now.before(age).0),
        written_at_ns: now.0,
        classes: by_class.map(|headroom| class(headroom.filter(|_| known).unwrap_or_default())),
        reservations: room.reservations,
        admitted: room.admitted,
        denied: room.denied,
        demand_permille: room.demand.map_or(UNKNOWN, permille),
    }
}

fn state(state: EngineState) -> u64 {
    u64::try_from(state_number(state)).unwrap_or_default()
}

fn class(headroom: Headroom) -> ClassRoom {
    ClassRoom {
        blocks: headroom.blocks.0,
        blocks_lower: headroom.blocks_lower.0,
        tokens: headroom.tokens.0,
        tokens_lower: headroom.tokens_lower.0,
    }
}

/// Thousandths, below [`UNKNOWN`].
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
fn permille(ratio: f64) -> u64 {
    (ratio * 1000.0).clamp(0.0, 1e15) as u64
}

fn device(device: &DeviceSnapshot, now: Mono) -> [u64; DEVICE_WORDS] {
    let memory = device.memory.map(|split| split.memory);
    let figures = DeviceFigures {
        uuid: pack(&device.uuid),
        free_bytes: memory.map_or(UNKNOWN, |memory| memory.free.0),
        total_bytes: memory.map_or(UNKNOWN, |memory| memory.total.0),
        read_at_ns: device.age.map_or(UNKNOWN, |age| now.before(age).0),
    };
    figures.to_words()
}
