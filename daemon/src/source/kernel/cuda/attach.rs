//! Puts the programs on libcuda's calls: by one link for all places of a program where the kernel has such (Linux 6.6),
//! which takes CAP_BPF and CAP_PERFMON, else by a perf event for each, which takes CAP_SYS_ADMIN.

use std::{os::fd::OwnedFd, path::Path};

use aya::{
    Ebpf,
    programs::{
        UProbe,
        uprobe::{UProbeLink, UProbeScope},
    },
};

use super::{
    super::programs::Message,
    multi::{self, Multi},
    symbols::Offsets,
};

/// Programs for the entry of each of [`gpuadmit_abi::CUDA_CALLS`].
const ENTRIES: [&str; 9] = [
    "cuda_alloc",
    "cuda_alloc_managed",
    "cuda_alloc_pitch",
    "cuda_alloc_async",
    "cuda_alloc_from_pool",
    "cuda_create",
    "cuda_free",
    "cuda_free_async",
    "cuda_release",
];
/// Program for the return of all.
const RETURN: &str = "cuda_return";

/// The probes on one file; gone when this is dropped.
pub(super) struct Attached {
    /// Places probed.
    pub(super) calls: usize,
    _links: Links,
}

/// Held open.
enum Links {
    Multi { _links: Vec<OwnedFd> },
    Perf { _links: Vec<UProbeLink> },
}

/// Loaded programs.
pub(super) enum Attacher {
    Multi(Multi),
    /// Those that aya has loaded.
    Perf,
}

impl Attacher {
    /// Loads the programs of `object` beside those in `ebpf`, whose maps they share.
    ///
    /// # Errors
    /// One sentence: why neither way works.
    pub(super) fn load(object: &[u8], ebpf: &mut Ebpf, maps: &multi::Maps) -> Result<Self, String> {
        let names = ENTRIES.iter().chain([&RETURN]);
        match Multi::load(object, maps, names.clone().copied()) {
            Ok(programs) => return Ok(Self::Multi(programs)),
            Err(error) => tracing::debug!(%error, "no link for many uprobes"),
        }
        for name in names {
            program(ebpf, name)?.load().map_err(|error| Message::of(&error).to_string())?;
        }
        Ok(Self::Perf)
    }

    /// For sentences.
    pub(super) const fn way(&self) -> &'static str {
        match self {
            Self::Multi(_) => "uprobe_multi",
            Self::Perf => "perf events",
        }
    }

    /// Probes the calls at `symbols` in the file at `path`: first all returns, so that no entry is without one.
    pub(super) fn attach(&self, ebpf: &mut Ebpf, path: &str, symbols: &Offsets) -> Result<Attached, String> {
        let all: Vec<u64> = symbols.values().flatten().copied().collect();
        let entries =
            symbols.iter().filter_map(|(call, places)| Some((*ENTRIES.get(*call)?, places.as_slice())));
        let wanted = [(RETURN, all.as_slice())].into_iter().chain(entries);
        let links = match self {
            Self::Multi(programs) => {
                let links = wanted.map(|(name, places)| programs.attach(name, path, places, name == RETURN));
                Links::Multi { _links: links.collect::<Result<_, _>>()? }
            }
            Self::Perf => {
                let mut links = vec![];
                for (name, place) in
                    wanted.flat_map(|(name, places)| places.iter().map(move |place| (name, *place)))
                {
                    links.push(one(program(ebpf, name)?, path.as_ref(), place)?);
                }
                Links::Perf { _links: links }
            }
        };
        Ok(Attached { calls: all.len(), _links: links })
    }
}

fn one(program: &mut UProbe, path: &Path, place: u64) -> Result<UProbeLink, String> {
    let attached = program.attach(place, path, UProbeScope::AllProcesses);
    attached.and_then(|id| program.take_link(id)).map_err(|error| Message::of(&error).to_string())
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut UProbe, String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("there is no program {name}"))?;
    program.try_into().map_err(|error| Message::of(&error).to_string())
}
