//! Headroom without a call: the daemon's shared page, read.
//!
//! ```no_run
//! use gpuadmit_client::page::{Class, Reader, path};
//!
//! # fn ask() -> Result<(), gpuadmit_client::page::PageError> {
//! let reader = Reader::open(&path("/run/gpuadmit/gpuadmit.sock"))?;
//! let engine = reader.engine("vllm-8000")?;
//! if let Some(headroom) = engine.headroom(Class::Standard) {
//!     println!("{} tokens, at least {}", headroom.tokens, headroom.tokens_lower);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A page whose daemon has stopped, died or been replaced answers [`PageError::Stale`]: open it again.

mod mapping;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

pub use gpuadmit_proto::page::ClassRoom;
use gpuadmit_proto::page::{
    DeviceFigures, ENGINE_ID_WORDS, EngineFigures, MAGIC, Page, UNKNOWN, VERSION, pack, unpack,
};
use rustix::time::{ClockId, clock_gettime};

use self::mapping::Mapping;
use crate::v1::EngineState;

/// Where the page of the daemon on `socket` lies.
#[must_use]
pub fn path(socket: impl AsRef<Path>) -> PathBuf {
    socket.as_ref().with_extension("page")
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// There is no page, or it may not be read.
    #[error("cannot read {path}: {source}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no page of a version that this client knows.
    #[error("{path} is no page of version {VERSION}")]
    Foreign {
        /// Which.
        path: PathBuf,
    },
    /// The daemon has stopped, or has not shown for too long that it lives. Another one makes another page.
    #[error("the page is stale: its daemon has stopped or hangs")]
    Stale,
    /// The page has no such engine.
    #[error("no engine has the id {0:?}")]
    UnknownEngine(String),
    /// A write began or ended at every try: more writes than a daemon makes.
    #[error("the page is being written without a pause")]
    Busy,
}

/// Priority classes, in the page's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A person waits.
    Interactive,
    /// The default.
    Standard,
    /// Nobody waits.
    Batch,
}

/// What one engine can take now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineRoom {
    figures: EngineFigures,
    now_ns: u64,
}

/// Memory of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRoom {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// Free memory, bytes; `None`: unknown.
    pub free_bytes: Option<u64>,
    /// All memory, bytes.
    pub total_bytes: Option<u64>,
    /// Age of that reading.
    pub age: Option<Duration>,
}

/// A page mapped to be read. Reads are a few dozen loads: no call, no lock, no allocation.
#[derive(Debug)]
pub struct Reader {
    mapping: Mapping,
}

impl Reader {
    /// Maps the page at `path`.
    ///
    /// # Errors
    /// [`PageError::Open`], [`PageError::Foreign`].
    pub fn open(path: &Path) -> Result<Self, PageError> {
        let failed = |source| PageError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let expected = u64::try_from(size_of::<Page>()).unwrap_or(u64::MAX);
        let foreign = || PageError::Foreign { path: path.to_owned() };
        if size != expected {
            return Err(foreign());
        }
        let mapping = Mapping::readable(&file).map_err(failed)?;
        let header = &mapping.page().header;
        let ours = header.magic.load(Relaxed) == MAGIC
            && header.version.load(Relaxed) == VERSION
            && header.size_bytes.load(Relaxed) == expected;
        if ours { Ok(Self { mapping }) } else { Err(foreign()) }
    }

    /// Epoch in the reservation ids of the daemon that writes it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.mapping.page().header.epoch.load(Relaxed)
    }

    /// What the engine `id` can take now.
    ///
    /// # Errors
    /// [`PageError::Stale`], [`PageError::UnknownEngine`], [`PageError::Busy`].
    pub fn engine(&self, id: &str) -> Result<EngineRoom, PageError> {
        let now_ns = self.fresh()?;
        let wanted = pack::<ENGINE_ID_WORDS>(id);
        let [first, second, ..] = wanted;
        let slots = self.mapping.page().engines.iter();
        for slot in slots.filter(|slot| slot.peek(0) == first && slot.peek(1) == second) {
            let words = slot.read().ok_or(PageError::Busy)?;
            match EngineFigures::from_words(&words) {
                Some(figures) if figures.id == wanted => return Ok(EngineRoom { figures, now_ns }),
                _ => {}
            }
        }
        Err(PageError::UnknownEngine(id.into()))
    }

    /// What every engine can take now.
    ///
    /// # Errors
    /// [`PageError::Stale`], [`PageError::Busy`].
    pub fn engines(&self) -> Result<Vec<EngineRoom>, PageError> {
        let now_ns = self.fresh()?;
        let words = self.mapping.page().engines.iter().map(|slot| slot.read().ok_or(PageError::Busy));
        let rooms = words.filter_map(|words| {
            let figures = words.map(|words| EngineFigures::from_words(&words)).transpose()?;
            Some(figures.map(|figures| EngineRoom { figures, now_ns }))
        });
        rooms.collect()
    }

    /// Memory of every device.
    ///
    /// # Errors
    /// [`PageError::Stale`], [`PageError::Busy`].
    pub fn devices(&self) -> Result<Vec<DeviceRoom>, PageError> {
        let now_ns = self.fresh()?;
        let words = self.mapping.page().devices.iter().map(|slot| slot.read().ok_or(PageError::Busy));
        let devices =
            words.filter_map(|words| words.map(|words| DeviceFigures::from_words(&words)).transpose());
        devices.map(|device| Ok(DeviceRoom::new(&device?, now_ns))).collect()
    }

    /// Now, when the page may be believed.
    fn fresh(&self) -> Result<u64, PageError> {
        let header = &self.mapping.page().header;
        let now_ns = now_ns();
        let age = now_ns.saturating_sub(header.heartbeat_ns.load(Relaxed));
        let stale = age > header.max_age_ns.load(Relaxed) || header.closed.load(Relaxed) != 0;
        if stale { Err(PageError::Stale) } else { Ok(now_ns) }
    }
}

impl EngineRoom {
    /// Engine id.
    #[must_use]
    pub fn id(&self) -> String {
        unpack(&self.figures.id)
    }

    /// State; unspecified for one that this client does not know.
    #[must_use]
    pub fn state(&self) -> EngineState {
        let number = i32::try_from(self.figures.state).unwrap_or_default();
        EngineState::try_from(number).unwrap_or_default()
    }

    /// Headroom for `class`; `None`: unknown.
    #[must_use]
    pub const fn headroom(&self, class: Class) -> Option<ClassRoom> {
        let [interactive, standard, batch] = self.figures.classes;
        if self.figures.headroom_known == 0 {
            return None;
        }
        Some(match class {
            Class::Interactive => interactive,
            Class::Standard => standard,
            Class::Batch => batch,
        })
    }

    /// Age of the engine reading that headroom rests on; `None`: there is none.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        age(self.now_ns, self.figures.read_at_ns)
    }

    /// Demand against what it can do, 1 = as much; `None`: unknown.
    #[must_use]
    pub fn demand(&self) -> Option<f64> {
        let thousandths = u32::try_from(self.figures.demand_permille).ok();
        thousandths.map(|thousandths| f64::from(thousandths) / 1000.0)
    }

    /// Reservations held.
    #[must_use]
    pub const fn reservations(&self) -> u64 {
        self.figures.reservations
    }

    /// Admitted, and denied but for callers' mistakes, since the engine was found.
    #[must_use]
    pub const fn decisions(&self) -> (u64, u64) {
        (self.figures.admitted, self.figures.denied)
    }
}

impl DeviceRoom {
    fn new(figures: &DeviceFigures, now_ns: u64) -> Self {
        let known = |figure| Some(figure).filter(|figure| *figure != UNKNOWN);
        Self {
            uuid: unpack(&figures.uuid),
            free_bytes: known(figures.free_bytes),
            total_bytes: known(figures.total_bytes),
            age: age(now_ns, figures.read_at_ns),
        }
    }
}

fn age(now_ns: u64, read_at_ns: u64) -> Option<Duration> {
    (read_at_ns != UNKNOWN).then(|| Duration::from_nanos(now_ns.saturating_sub(read_at_ns)))
}

/// `CLOCK_MONOTONIC`, the daemon's clock.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).unwrap_or_default();
    part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
}
