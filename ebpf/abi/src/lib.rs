//! What gpuadmit's programs in the kernel and its daemon tell each other: records one way, offsets the other.
//!
//! Everything is in the byte order of the machine that both run on.

#![no_std]

/// Name of the map with the watched processes: process id to start time in clock ticks since boot.
pub const WATCHED_MAP: &str = "WATCHED";
/// Most processes watched. Discovery knows of 64 engines, rarely of more than 100 processes each.
pub const MAX_WATCHED: u32 = 8192;
/// Name of the ring buffer of [`Record`]s.
pub const RECORDS_MAP: &str = "RECORDS";
/// Size of the ring buffer: some 2,000 records.
pub const RECORDS_BYTES: u32 = 256 << 10;
/// Name of the per-CPU counters of what did not fit.
pub const LOST_MAP: &str = "LOST";
/// Counter of records that found the ring buffer full.
pub const LOST_RECORDS: u32 = 0;
/// Counter of children that found the watch set full.
pub const LOST_CHILDREN: u32 = 1;
/// Counter of CUDA calls that found no room in a map.
pub const LOST_CALLS: u32 = 2;
/// Number of counters.
pub const LOST_COUNTERS: u32 = 3;
/// Name of the map with what each process did with CUDA memory: process id to [`Totals`].
pub const TOTALS_MAP: &str = "TOTALS";
/// Name of the map with the sizes of what is allocated; the least recently used are forgotten beyond its bound.
pub const SIZES_MAP: &str = "SIZES";
/// Most allocations whose size is remembered: an engine has some thousands, at 2 MiB each 40,000 for a large GPU.
pub const MAX_SIZES: u32 = 1 << 17;
/// Name of the map with the CUDA calls that threads are in.
pub const ENTERED_MAP: &str = "ENTERED";
/// Name of the map with the threads whose last allocation failed.
pub const FAILED_MAP: &str = "FAILED";
/// Most threads in a CUDA call at once, and with a failed allocation.
pub const MAX_CALLING: u32 = 4096;
/// Name of the variable with the [`Offsets`]; it holds the version of this interface, so that no daemon takes an object of
/// another one.
pub const OFFSETS_VARIABLE: &str = "OFFSETS_2";
/// Offset of a field that this kernel does not have.
pub const ABSENT: u32 = u32::MAX;

/// Bytes of a task's name, a closing zero included (`TASK_COMM_LEN`).
pub const COMM_BYTES: usize = 16;

/// The last thread of a process ended. `value`: status as wait(2) encodes it.
pub const EXIT: u32 = 1;
/// A signal was sent. `value`: its number; `detail`: `si_code`; `other`: the sender.
pub const SIGNAL: u32 = 2;
/// The OOM killer chose a process. `memory`: its resident pages, private, of files, shared; `tid`: the thread chosen.
pub const OOM_VICTIM: u32 = 3;
/// `oom_score_adj` was set. `value`: to what.
pub const OOM_SCORE_ADJ: u32 = 4;
/// A process forked. `other`: the child, `other_start`: its start.
pub const FORK: u32 = 5;
/// A process executes another program, `comm`.
pub const EXEC: u32 = 6;
/// The NVIDIA driver reported an Xid. `value`: its number; `comm`: PCI address, cut off after 16 bytes.
pub const XID: u32 = 7;
/// A CUDA allocation failed for want of memory. `value`: which call, an index of [`CUDA_CALLS`]; `memory`: bytes asked for.
pub const ALLOCATION_FAILED: u32 = 8;
/// A thread whose allocation had failed got as much. `value` and `memory` as above.
pub const ALLOCATION_RETRIED: u32 = 9;

/// The probed calls of libcuda (cuda.h): those that allocate, then those that free.
pub const CUDA_CALLS: [&str; 9] = [
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemCreate",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemRelease",
];
/// `CUDA_ERROR_OUT_OF_MEMORY` of cuda.h.
pub const CUDA_OUT_OF_MEMORY: i32 = 2;

/// What a process did with CUDA memory since its first probed call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Start of the process, clock ticks since boot.
    pub start: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Bytes freed, of allocations whose size is known.
    pub freed: u64,
    /// Allocations that failed for want of memory.
    pub failed: u64,
    /// Calls that returned.
    pub calls: u64,
    /// Memory freed whose size is not known: taken before the probes were there, or forgotten.
    pub unknown: u64,
}

/// The process is in the watch set.
pub const WATCHED: u32 = 1;
/// `memory` is known.
pub const HAS_MEMORY: u32 = 2;

/// Something that happened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When, CLOCK_MONOTONIC nanoseconds.
    pub time: u64,
    /// Start of the process, clock ticks since boot.
    pub start: u64,
    /// Start of the other process, clock ticks since boot; 0: unknown.
    pub other_start: u64,
    /// Three amounts of memory, by kind.
    pub memory: [u64; 3],
    /// [`EXIT`] and so on.
    pub kind: u32,
    /// [`WATCHED`], [`HAS_MEMORY`].
    pub flags: u32,
    /// The process; 0: unknown, but for `tid`.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Another process, by kind.
    pub other: u32,
    /// By kind.
    pub value: i32,
    /// By kind.
    pub detail: i32,
    /// Nothing; keeps the size a multiple of eight.
    pub zero: u32,
    /// Name of the process: that of its first thread.
    pub comm: [u8; COMM_BYTES],
    /// Name of the other process.
    pub other_comm: [u8; COMM_BYTES],
}

/// Bytes of a record.
pub const RECORD_BYTES: usize = 112;

const _: () = assert!(size_of::<Record>() == RECORD_BYTES);

impl Record {
    /// The record in `bytes`; `None` when they are of another length. Any content is a record.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader((bytes.len() == RECORD_BYTES).then_some(bytes)?);
        Some(Self {
            time: reader.wide()?,
            start: reader.wide()?,
            other_start: reader.wide()?,
            memory: [reader.wide()?, reader.wide()?, reader.wide()?],
            kind: reader.word()?,
            flags: reader.word()?,
            pid: reader.word()?,
            tid: reader.word()?,
            other: reader.word()?,
            value: reader.word()?.cast_signed(),
            detail: reader.word()?.cast_signed(),
            zero: reader.word()?,
            comm: reader.take()?,
            other_comm: reader.take()?,
        })
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn wide(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

/// Where the running kernel keeps what the programs read, bytes from the start of each structure; [`ABSENT`]: nowhere.
/// The daemon finds them out and sets them before the programs are loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// `task_struct.pid`.
    pub task_pid: u32,
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.comm`.
    pub task_comm: u32,
    /// `task_struct.exit_code`.
    pub task_exit_code: u32,
    /// `task_struct.group_leader`.
    pub task_group_leader: u32,
    /// `task_struct.start_boottime`, nanoseconds.
    pub task_start: u32,
    /// `task_struct.signal`.
    pub task_signal: u32,
    /// `task_struct.mm`.
    pub task_mm: u32,
    /// `signal_struct.live`.
    pub signal_live: u32,
    /// `signal_struct.group_exit_code`.
    pub signal_group_exit_code: u32,
    /// `signal_struct.oom_score_adj`.
    pub signal_oom_score_adj: u32,
    /// `kernel_siginfo.si_code`.
    pub siginfo_code: u32,
    /// `mm_struct.rss_stat`, the first of its counters.
    pub mm_rss: u32,
    /// Bytes from one of these counters to the next.
    pub mm_rss_stride: u32,
    /// Whether tracepoint oom:mark_victim passes a task (1) or the id of a thread (0).
    pub victim_is_task: u32,
    /// Field `dev` of tracepoint nvidia:nvidia_dev_xid, a `__data_loc`.
    pub xid_device: u32,
    /// Field `error_code` of it.
    pub xid_code: u32,
    /// Registers of the first four arguments of a C function, in `pt_regs`.
    pub arguments: [u32; 4],
    /// Register of its result.
    pub result: u32,
    /// Nanoseconds in a clock tick.
    pub tick: u32,
}

/// Fields of [`Offsets`].
pub const OFFSET_WORDS: usize = 23;

const _: () = assert!(size_of::<Offsets>() == OFFSET_WORDS * size_of::<u32>());

impl Offsets {
    /// Of a kernel of which nothing is known.
    pub const UNKNOWN: Self = Self {
        task_pid: ABSENT,
        task_tgid: ABSENT,
        task_comm: ABSENT,
        task_exit_code: ABSENT,
        task_group_leader: ABSENT,
        task_start: ABSENT,
        task_signal: ABSENT,
        task_mm: ABSENT,
        signal_live: ABSENT,
        signal_group_exit_code: ABSENT,
        signal_oom_score_adj: ABSENT,
        siginfo_code: ABSENT,
        mm_rss: ABSENT,
        mm_rss_stride: ABSENT,
        victim_is_task: 0,
        xid_device: ABSENT,
        xid_code: ABSENT,
        arguments: [ABSENT; 4],
        result: ABSENT,
        tick: 10_000_000,
    };

    /// As they lie in memory.
    #[must_use]
    pub const fn words(&self) -> [u32; OFFSET_WORDS] {
        [
            self.task_pid,
            self.task_tgid,
            self.task_comm,
            self.task_exit_code,
            self.task_group_leader,
            self.task_start,
            self.task_signal,
            self.task_mm,
            self.signal_live,
            self.signal_group_exit_code,
            self.signal_oom_score_adj,
            self.siginfo_code,
            self.mm_rss,
            self.mm_rss_stride,
            self.victim_is_task,
            self.xid_device,
            self.xid_code,
            self.arguments[0],
            self.arguments[1],
            self.arguments[2],
            self.arguments[3],
            self.result,
            self.tick,
        ]
    }
}
