//! Reads the kernel's structures at the offsets that the daemon found out.


use aya_ebpf::helpers::{bpf_probe_read_kernel, generated};
use gpuadmit_abi::{ABSENT, COMM_BYTES, Offsets};

#[unsafe(no_mangle)]
pub(crate) static OFFSETS_1: Offsets = Offsets::UNKNOWN;

/// Field of [`OFFSETS_1`], read so that the compiler cannot know its value.
macro_rules! offset {
    ($field:ident) => {
        // SAFETY: it points to an initialized static of that type.
        unsafe { core::ptr::read_volatile(core::ptr::addr_of!($crate::kernel::OFFSETS_1.$field)) }
    };
}
pub(crate) use offset;

/// `T` at `offset` from `base`; `None` where there is none.
#[inline(always)]
pub(crate) fn read<T>(base: *const u8, offset: u32) -> Option<T> {
    if base.is_null() || offset == ABSENT {
        return None;
    }
    // SAFETY: the helper checks the address itself, and fails on a bad one.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast::<T>()) }.ok()
}

/// A `struct task_struct`: a thread.
#[derive(Clone, Copy)]
pub(crate) struct Task(pub(crate) *const u8);

impl Task {
    #[inline(always)]
    pub(crate) fn current() -> Self {
        // SAFETY: the helper has no preconditions.
        Self(unsafe { generated::bpf_get_current_task() } as *const u8)
    }

    #[inline(always)]
    pub(crate) fn tid(self) -> u32 {
        read(self.0, offset!(task_pid)).unwrap_or(0)
    }

    #[inline(always)]
    pub(crate) fn pid(self) -> u32 {
        read(self.0, offset!(task_tgid)).unwrap_or(0)
    }

    /// The process's first thread, whose name and start are the process's.
    #[inline(always)]
    pub(crate) fn leader(self) -> Self {
        Self(read(self.0, offset!(task_group_leader)).unwrap_or(self.0))
    }

    /// Start, clock ticks since boot.
    #[inline(always)]
    pub(crate) fn start(self) -> u64 {
        let nanoseconds: u64 = read(self.0, offset!(task_start)).unwrap_or(0);
        nanoseconds / u64::from(offset!(tick)).max(1)
    }

    #[inline(always)]
    pub(crate) fn comm(self) -> [u8; COMM_BYTES] {
        read(self.0, offset!(task_comm)).unwrap_or([0; COMM_BYTES])
    }

    #[inline(always)]
    fn signal(self) -> *const u8 {
        read(self.0, offset!(task_signal)).unwrap_or(core::ptr::null())
    }

    /// Threads of the process that have not begun to exit.
    #[inline(always)]
    pub(crate) fn live(self) -> Option<i32> {
        read(self.signal(), offset!(signal_live))
    }

    /// Status of the whole process as wait(2) encodes it: that of its group exit, else that of its first thread.
    #[inline(always)]
    pub(crate) fn status(self) -> i32 {
        let group: i32 = read(self.signal(), offset!(signal_group_exit_code)).unwrap_or(0);
        if group != 0 {
            return group;
        }
        read(self.leader().0, offset!(task_exit_code)).unwrap_or(0)
    }

    #[inline(always)]
    pub(crate) fn oom_score_adj(self) -> Option<i16> {
        read(self.signal(), offset!(signal_oom_score_adj))
    }

    /// Resident pages: of files, private, and shared (`MM_FILEPAGES`, `MM_ANONPAGES`, `MM_SHMEMPAGES`).
    #[inline(always)]
    pub(crate) fn resident(self) -> Option<[u64; 3]> {
        let mm: *const u8 = read(self.0, offset!(task_mm))?;
        let (first, stride) = (offset!(mm_rss), offset!(mm_rss_stride));
        if first == ABSENT || stride == ABSENT {
            return None;
        }
        let counter = |index: u32| -> Option<u64> {
            let pages: i64 = read(mm, first.wrapping_add(index.wrapping_mul(stride)))?;
            Some(pages.max(0) as u64)
        };
        Some([counter(1)?, counter(0)?, counter(3)?])
    }
}
