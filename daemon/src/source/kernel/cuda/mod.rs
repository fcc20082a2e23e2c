//! Probes in libcuda: which allocations of device memory fail, and how much each watched process takes and gives back.
//!
//! Off unless the operator asks for them, for they run within the engines. An uprobe sits on a file, not on a process: the
//! libcuda of each file that a watched process has mapped is probed once, whatever container it is seen from, and calls of
//! processes that are not watched cost a look into a hash map.

mod attach;
pub mod mapped;
mod multi;
pub mod release;
pub mod symbols;
pub(super) mod tally;

pub(super) use self::multi::Maps;

use std::{
    collections::BTreeMap,
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
    time::Duration,
};

use aya::Ebpf;
use gpuadmit_core::units::Mono;

use self::{
    attach::{Attached, Attacher},
    mapped::Mapped,
};
use crate::regular;

/// Most files probed at once.
const MAX_FILES: usize = 16;
/// Most processes whose mapped files are looked at in one turn: each takes a millisecond or a few.
const MAX_LOOKS: usize = 16;
/// A process that has not mapped libcuda is looked at again after this time, then after twice as long, and so on.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A file, whatever its path: device and inode.
type Inode = (u64, u64);

/// What is known of a watched process.
#[derive(Clone, Debug)]
struct Process {
    start_ticks: u64,
    /// The libcuda that it has mapped.
    inode: Option<Inode>,
    look_at: Mono,
    pause: Duration,
    /// Why its libcuda cannot be probed.
    trouble: Option<String>,
}

/// A probed libcuda, or one that cannot be.
struct Library {
    path: String,
    probes: Result<Attached, String>,
}

/// All probes.
pub(super) struct Probes {
    attacher: Attacher,
    libraries: BTreeMap<Inode, Library>,
    processes: BTreeMap<u32, Process>,
}

impl Probes {
    /// Loads the programs of `object` beside those in `ebpf`, whose maps they share.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn load(object: &[u8], ebpf: &mut Ebpf, maps: &Maps) -> Result<Self, String> {
        let attacher = Attacher::load(object, ebpf, maps)?;
        Ok(Self { attacher, libraries: BTreeMap::new(), processes: BTreeMap::new() })
    }

    /// Looks at the watched processes, ids and start times, for a libcuda that is not probed yet, and lets go of those that
    /// no process has mapped any more.
    pub(super) fn look(&mut self, now: Mono, watched: &[(u32, u64)], ebpf: &mut Ebpf) {
        self.processes.retain(|pid, process| watched.contains(&(*pid, process.start_ticks)));
        for (pid, start_ticks) in watched {
            self.processes.entry(*pid).or_insert_with(|| Process {
                start_ticks: *start_ticks,
                inode: None,
                look_at: now,
                pause: FIRST_PAUSE,
                trouble: None,
            });
        }
        let due =
            self.processes.iter().filter(|(_, process)| process.inode.is_none() && process.look_at <= now);
        let due: Vec<u32> = due.map(|(pid, _)| *pid).take(MAX_LOOKS).collect();
        for pid in due {
            let found = self.look_at(pid, ebpf);
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            (process.look_at, process.pause) = (now + process.pause, (process.pause * 2).min(LONGEST_PAUSE));
            match found {
                Ok(inode) => (process.inode, process.trouble) = (inode, None),
                Err(error) => process.trouble = Some(error.to_string()),
            }
        }
        let used: Vec<Inode> = self.processes.values().filter_map(|process| process.inode).collect();
        self.libraries.retain(|inode, library| {
            let stays = used.contains(inode);
            if !stays {
                tracing::info!(
                    path = library.path,
                    "libcuda is no longer probed: no watched process has it mapped"
                );
            }
            stays
        });
    }

    /// Probes the libcuda that a process has mapped; `None`: it has none.
    fn look_at(&mut self, pid: u32, ebpf: &mut Ebpf) -> io::Result<Option<Inode>> {
        let Some(Mapped { path, .. }) = mapped::of(pid)? else { return Ok(None) };
        let file =
            regular::open(&Path::new(&format!("/proc/{pid}/root")).join(path.trim_start_matches('/')))?;
        let metadata = file.metadata()?;
        let inode = (metadata.dev(), metadata.ino());
        if !self.libraries.contains_key(&inode) && self.libraries.len() < MAX_FILES {
            let probes = symbols::offsets(&file).map_err(|error| error.to_string()).and_then(|symbols| {
                self.attacher.attach(ebpf, &format!("/proc/self/fd/{}", file.as_raw_fd()), &symbols)
            });
            match &probes {
                Ok(attached) => tracing::info!(path, calls = attached.calls, "libcuda is probed"),
                Err(error) => tracing::warn!(path, error, "libcuda cannot be probed"),
            }
            self.libraries.insert(inode, Library { path, probes });
        }
        Ok(Some(inode))
    }

    /// Whether all that is there is covered, and a sentence that says what is.
    pub(super) fn coverage(&self) -> (bool, String) {
        let mut parts = vec![];
        for (inode, library) in &self.libraries {
            let count = self.processes.values().filter(|process| process.inode == Some(*inode)).count();
            parts.push(match &library.probes {
                Ok(attached) => format!("{} calls of {} in {count} processes", attached.calls, library.path),
                Err(why) => format!("none of {} in {count} processes: {why}", library.path),
            });
        }
        let troubles =
            self.processes.iter().filter_map(|(pid, process)| Some((pid, process.trouble.as_ref()?)));
        // One is enough to say.
        parts
            .extend(troubles.take(1).map(|(pid, why)| format!("process {pid} cannot be looked into: {why}")));
        let whole = parts.len() == self.libraries.values().filter(|library| library.probes.is_ok()).count();
        if parts.is_empty() {
            parts.push("mapped by no watched process yet".into());
        }
        (whole, format!("libcuda probes ({}): {}", self.attacher.way(), parts.join(", ")))
    }
}
