//! Loads the programs into the kernel and attaches them.

use std::{
    fmt, io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{HashMap, Map, MapData, MapError, PerCpuArray, RingBuf},
    programs::{ProgramError, RawTracePoint, TracePoint},
};
use gpuadmit_abi::{
    ABSENT, ENTERED_MAP, FAILED_MAP, LOST_CALLS, LOST_CHILDREN, LOST_MAP, LOST_RECORDS, OFFSETS_VARIABLE,
    RECORDS_MAP, SIZES_MAP, TOTALS_MAP, WATCHED_MAP,
};
use gpuadmit_core::units::Mono;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::{
    cuda::{self, Probes},
    offsets::{Description, Layout, OffsetsError, find, read},
};

/// Longest release of a kernel, bytes.
const MAX_RELEASE_BYTES: u64 = 256;
/// Largest object file, bytes; ours has some 40 KiB.
const MAX_OBJECT_BYTES: u64 = 1 << 20;
/// Most of an error message that is kept: a verifier's log may have a million lines.
const MAX_MESSAGE_CHARACTERS: usize = 300;

/// What programs tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fact {
    /// Ends of processes.
    Exits,
    /// Fatal signals and who sent them.
    Signals,
    /// Victims of the OOM killer.
    OomVictims,
    /// Changes of `oom_score_adj`.
    OomScores,
    /// New processes.
    Forks,
    /// Processes that become another program.
    Execs,
    /// Xid errors.
    Xids,
}

impl Fact {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Exits, Self::Signals, Self::OomVictims, Self::OomScores, Self::Forks, Self::Execs, Self::Xids];

    /// For sentences.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exits => "exits",
            Self::Signals => "signals",
            Self::OomVictims => "OOM victims",
            Self::OomScores => "oom_score_adj",
            Self::Forks => "forks",
            Self::Execs => "execs",
            Self::Xids => "Xid",
        }
    }

    /// Program and tracepoint.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Exits => ("process_exit", "sched_process_exit"),
            Self::Signals => ("signal_generate", "signal_generate"),
            Self::OomVictims => ("mark_victim", "mark_victim"),
            Self::OomScores => ("oom_score_adj_update", "oom_score_adj_update"),
            Self::Forks => ("process_fork", "sched_process_fork"),
            Self::Execs => ("process_exec", "sched_process_exec"),
            Self::Xids => ("nvidia_dev_xid", "nvidia_dev_xid"),
        }
    }
}

/// Why no program runs.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// The object file cannot be read.
    #[error("cannot read {path}: {source}")]
    Object {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not tell of itself what must be known.
    #[error(transparent)]
    Offsets(#[from] OffsetsError),
    /// Maps cannot be made, or the object is none.
    #[error("the programs cannot be loaded: {0}")]
    Load(Message),
    /// The programs of the fact without which the others are of little use.
    #[error("{0}")]
    Attach(Message),
}

/// An error's text and those of its causes, cut to a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message(String);

impl Message {
    pub(super) fn of(error: &dyn std::error::Error) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let more = error.to_string();
            // Some errors have said it already.
            if !text.ends_with(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self(line.chars().take(MAX_MESSAGE_CHARACTERS).collect())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The running programs; they end when this is dropped.
pub struct Programs {
    ebpf: Ebpf,
    /// What they tell.
    pub records: RingBuf<MapData>,
    lost: PerCpuArray<MapData, u64>,
    /// Facts that they tell of.
    pub served: Vec<Fact>,
    /// Facts that they do not, and why.
    pub failed: Vec<(Fact, String)>,
    /// Probes in libcuda, and what they add up; `None`: not asked for.
    cuda: Option<Result<Probes, String>>,
    totals: Option<TotalsOf>,
}

/// CUDA memory by process id, [`gpuadmit_abi::Totals`].
pub(super) type TotalsOf = HashMap<MapData, u32, [u64; 6]>;

/// What is wanted beside the facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Probes in libcuda.
    pub cuda: bool,
}

/// What found no room since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Records.
    pub records: u64,
    /// Children that are not watched.
    pub children: u64,
    /// CUDA calls.
    pub calls: u64,
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs")
            .field("served", &self.served)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// The watch set in the kernel: process id to start time.
pub type Watched = HashMap<MapData, u32, u64>;

/// Loads what is in `object` and attaches it.
///
/// # Errors
/// [`ProgramsError`]; when only some facts cannot be served, that is no error.
pub fn start(
    object: &Path,
    description: &Description,
    wanted: Wanted,
) -> Result<(Programs, Watched), ProgramsError> {
    let bytes = read(object, MAX_OBJECT_BYTES)
        .map_err(|source| ProgramsError::Object { path: object.display().to_string(), source })?;
    let layout = find(description)?;
    allow_locked_memory();
    let words = layout.offsets.words();
    let mut loader = EbpfLoader::new();
    loader.override_global(OFFSETS_VARIABLE, &words[..], true);
    if !wanted.cuda {
        for name in [ENTERED_MAP, FAILED_MAP, SIZES_MAP, TOTALS_MAP] {
            loader.map_max_entries(name, 1);
        }
    }
    let loaded = loader.load(&bytes);
    let mut ebpf = loaded.map_err(|error: EbpfError| ProgramsError::Load(Message::of(&error)))?;
    let cuda = wanted.cuda.then(|| {
        refusal(&layout, description)?;
        let maps = files(&ebpf);
        Probes::load(&bytes, &mut ebpf, &maps)
    });
    let map = |ebpf: &mut Ebpf, name: &str| {
        let missing = || ProgramsError::Load(Message(format!("there is no map {name}")));
        ebpf.take_map(name).ok_or_else(missing)
    };
    let wrong = |error: MapError| ProgramsError::Load(Message::of(&error));
    let watched = Watched::try_from(map(&mut ebpf, WATCHED_MAP)?).map_err(wrong)?;
    let records = RingBuf::try_from(map(&mut ebpf, RECORDS_MAP)?).map_err(wrong)?;
    let lost: Map = map(&mut ebpf, LOST_MAP)?;
    let lost = PerCpuArray::try_from(lost).map_err(wrong)?;
    let totals = TotalsOf::try_from(map(&mut ebpf, TOTALS_MAP)?).map_err(wrong)?;
    let totals = matches!(cuda, Some(Ok(_))).then_some(totals);
    let mut programs = Programs { ebpf, records, lost, served: vec![], failed: vec![], cuda, totals };
    programs.attach_all(layout.has_xid)?;
    Ok((programs, watched))
}

/// Why libcuda is not to be probed on this kernel.
fn refusal(layout: &Layout, description: &Description) -> Result<(), String> {
    let path = &description.release;
    let release =
        read(path, MAX_RELEASE_BYTES).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if let Some(why) = cuda::release::refusal(String::from_utf8_lossy(&release).trim()) {
        return Err(why);
    }
    let known = layout.offsets.result != ABSENT;
    known.then_some(()).ok_or_else(|| "this kernel does not tell where it keeps registers".into())
}

/// The files of all maps.
fn files(ebpf: &Ebpf) -> cuda::Maps {
    let file = |map: &Map| match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::RingBuf(data) => Some(data.fd().as_fd().as_raw_fd()),
        _ => None,
    };
    ebpf.maps().filter_map(|(name, map)| Some((name.to_owned(), file(map)?))).collect()
}

impl Programs {
    fn attach_all(&mut self, has_xid: bool) -> Result<(), ProgramsError> {
        for fact in Fact::ALL {
            if fact == Fact::Xids && !has_xid {
                self.failed.push((fact, "the driver has no readable tracepoint for it".into()));
                continue;
            }
            match self.attach(fact) {
                Ok(()) => self.served.push(fact),
                // Without it nothing would leave the watch set.
                Err(error) if fact == Fact::Exits => return Err(ProgramsError::Attach(Message::of(&error))),
                Err(error) => self.failed.push((fact, Message::of(&error).to_string())),
            }
        }
        Ok(())
    }

    fn attach(&mut self, fact: Fact) -> Result<(), ProgramError> {
        let (name, tracepoint) = fact.names();
        let program = self.ebpf.program_mut(name).ok_or(ProgramError::UnexpectedProgramType)?;
        if fact == Fact::Xids {
            let program: &mut TracePoint = program.try_into()?;
            program.load()?;
            program.attach("nvidia", tracepoint)?;
        } else {
            let program: &mut RawTracePoint = program.try_into()?;
            program.load()?;
            program.attach(tracepoint)?;
        }
        Ok(())
    }

    /// What CUDA calls add up to; once, and only where libcuda is probed.
    pub(super) fn take_totals(&mut self) -> Option<TotalsOf> {
        self.totals.take()
    }

    /// Looks for a libcuda that watched processes, ids and start times, have mapped.
    pub(super) fn probe(&mut self, now: Mono, watched: &[(u32, u64)]) {
        if let Some(Ok(probes)) = &mut self.cuda {
            probes.look(now, watched, &mut self.ebpf);
        }
    }

    /// Whether libcuda is probed wherever it is mapped, and a sentence of it; `None`: it was not asked for.
    pub(super) fn cuda_coverage(&self) -> Option<(bool, String)> {
        Some(match self.cuda.as_ref()? {
            Ok(probes) => probes.coverage(),
            Err(why) => (false, format!("no libcuda probes: {why}")),
        })
    }

    /// What found no room since the start.
    #[must_use]
    pub fn lost(&self) -> Lost {
        let count = |counter| {
            let values = self.lost.get(&counter, 0);
            values.map_or(0, |values| values.iter().fold(0, |sum: u64, one| sum.saturating_add(*one)))
        };
        Lost { records: count(LOST_RECORDS), children: count(LOST_CHILDREN), calls: count(LOST_CALLS) }
    }
}

/// Kernels before 5.11 count what maps take as locked memory. Where the limit cannot be lifted, it is raised as far as
/// it may be.
fn allow_locked_memory() {
    let unlimited = nix::libc::RLIM_INFINITY;
    if setrlimit(Resource::RLIMIT_MEMLOCK, unlimited, unlimited).is_err()
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK)
    {
        let raised = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard);
        tracing::debug!(?raised, hard, "locked memory cannot be unlimited");
    }
}
