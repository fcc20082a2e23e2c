//! Reads the kernel's structures at the offsets that the daemon found out.

use aya_ebpf::helpers::generated;
use gpuadmit_abi::{ABSENT, Offsets};

#[unsafe(no_mangle)]
pub(crate) static OFFSETS_2: Offsets = Offsets::UNKNOWN;

/// Field of [`OFFSETS_2`], read so that the compiler cannot know its value.
macro_rules! offset {
    ($field:ident $([$index:literal])?) => {
        // SAFETY: it points to an initialized static of that type.
        unsafe { core::ptr::read_volatile(core::ptr::addr_of!($crate::kernel::OFFSETS_2.$field $([$index])?)) }
    };
}
pub(crate) use offset;

/// A number of the kernel at `offset` from `base`: 0 where there is none. Without a branch, for the verifier follows each.
#[inline(always)]
pub(crate) fn read<T: Number>(base: *const u8, offset: u32) -> T {
    let mut value = T::ZERO;
    read_into(&raw mut value, base, offset);
    value
}

/// The same into its place; on failure the helper writes zeros.
#[inline(always)]
pub(crate) fn read_into<T>(place: *mut T, base: *const u8, offset: u32) {
    let from = base.wrapping_add(offset as usize);
    // SAFETY: `place` has room for a `T`, and the helper checks the address it reads from itself.
    unsafe { generated::bpf_probe_read_kernel(place.cast(), size_of::<T>() as u32, from.cast()) };
}

/// What may be read: any bytes are one.
pub(crate) trait Number: Copy {
    const ZERO: Self;
}

macro_rules! numbers {
    ($($number:ty),*) => { $(impl Number for $number { const ZERO: Self = 0; })* };
}
numbers!(u32, u64, i16, i32, i64);

impl Number for *const u8 {
    const ZERO: Self = core::ptr::null();
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
        read(self.0, offset!(task_pid))
    }

    #[inline(always)]
    pub(crate) fn pid(self) -> u32 {
        read(self.0, offset!(task_tgid))
    }

    /// The process's first thread, whose name and start are the process's.
    #[inline(always)]
    pub(crate) fn leader(self) -> Self {
        Self(read(self.0, offset!(task_group_leader)))
    }

    /// Start, clock ticks since boot.
    #[inline(always)]
    pub(crate) fn start(self) -> u64 {
        read::<u64>(self.0, offset!(task_start)).checked_div(offset!(tick).into()).unwrap_or(0)
    }

    #[inline(always)]
    fn signal(self) -> *const u8 {
        read(self.0, offset!(task_signal))
    }

    /// Threads of the process that have not begun to exit.
    #[inline(always)]
    pub(crate) fn live(self) -> i32 {
        read(self.signal(), offset!(signal_live))
    }

    /// Status of the whole process as wait(2) encodes it: that of its group exit, else that of its first thread.
    #[inline(always)]
    pub(crate) fn status(self) -> i32 {
        let group: i32 = read(self.signal(), offset!(signal_group_exit_code));
        let first: i32 = read(self.leader().0, offset!(task_exit_code));
        if group != 0 { group } else { first }
    }

    #[inline(always)]
    pub(crate) fn oom_score_adj(self) -> i16 {
        read(self.signal(), offset!(signal_oom_score_adj))
    }

    /// Resident pages: private, of files, and shared; `None` where the kernel does not tell.
    #[inline(always)]
    pub(crate) fn resident(self) -> Option<[u64; 3]> {
        let mm: *const u8 = read(self.0, offset!(task_mm));
        let (first, stride) = (offset!(mm_rss), offset!(mm_rss_stride));
        if first == ABSENT || mm.is_null() {
            return None;
        }
        // `MM_ANONPAGES`, `MM_FILEPAGES`, `MM_SHMEMPAGES` of linux/mm_types_task.h. A counter may be below zero for a while.
        let counter = |index: u32| read::<i64>(mm, first.wrapping_add(index.wrapping_mul(stride))).max(0) as u64;
        Some([counter(1), counter(0), counter(3)])
    }
}
