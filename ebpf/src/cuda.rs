//! What watched processes do with CUDA memory, by probes on entry and return of libcuda's calls for it.
//!
//! Bytes are added up here, so that no number of calls can overflow the ring buffer; a record is made only of an allocation
//! that failed, and of the one that then succeeded. Where one of the calls is made from within another, the outer one counts.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_pid_tgid, generated},
    macros::{map, uprobe, uretprobe},
    maps::{HashMap, LruHashMap},
    programs::{ProbeContext, RetProbeContext},
};
use gpuadmit_abi::{
    ALLOCATION_FAILED, ALLOCATION_RETRIED, CUDA_OUT_OF_MEMORY, LOST_CALLS, MAX_CALLING, MAX_SIZES, MAX_WATCHED, Totals,
};

use crate::{
    WATCHED, count, current_pid, is_watched,
    kernel::{Task, offset, read},
    tell,
};

/// `BPF_NOEXIST` of linux/bpf.h.
const IF_ABSENT: u64 = 1;
/// Indices of `CUDA_CALLS` from this one on free.
const FIRST_FREE: u32 = 6;

/// A call that a thread is in.
#[repr(C)]
#[derive(Clone, Copy)]
struct Call {
    /// Bytes asked for; of a call that frees: the size of what it frees, 0 where it is not known.
    bytes: u64,
    /// Where it puts the address of what it allocates; of a call that frees: the address.
    place: u64,
    /// Where it puts the length of a row, and how many rows; 0: it has none.
    pitch: u64,
    rows: u64,
    /// Index of `CUDA_CALLS`.
    which: u32,
    /// Probed calls that were made from within it and have not returned.
    within: u32,
}

/// An allocation.
#[repr(C)]
#[derive(Clone, Copy)]
struct Address {
    /// Process id, and the lower half of its start: the id may be another one's later.
    process: u64,
    address: u64,
}

/// By thread.
#[map]
static ENTERED: HashMap<u64, Call> = HashMap::with_max_entries(MAX_CALLING, 0);
/// Bytes that a thread asked for in vain.
#[map]
static FAILED: LruHashMap<u64, u64> = LruHashMap::with_max_entries(MAX_CALLING, 0);
#[map]
static SIZES: LruHashMap<Address, u64> = LruHashMap::with_max_entries(MAX_SIZES, 0);
#[map]
static TOTALS: HashMap<u32, Totals> = HashMap::with_max_entries(MAX_WATCHED, 0);

macro_rules! allocating {
    ($($name:ident, $which:literal;)*) => {
        $(#[uprobe]
        pub fn $name(ctx: ProbeContext) -> u32 {
            let registers = ctx.as_ptr().cast();
            enter(Call {
                bytes: read(registers, offset!(arguments[1])),
                place: read(registers, offset!(arguments[0])),
                pitch: 0,
                rows: 0,
                which: $which,
                within: 0,
            })
        })*
    };
}

allocating! {
    cuda_alloc, 0;
    cuda_alloc_managed, 1;
    cuda_alloc_async, 3;
    cuda_alloc_from_pool, 4;
    cuda_create, 5;
}

#[uprobe]
pub fn cuda_alloc_pitch(ctx: ProbeContext) -> u32 {
    let registers = ctx.as_ptr().cast();
    let (width, rows): (u64, u64) = (read(registers, offset!(arguments[2])), read(registers, offset!(arguments[3])));
    enter(Call {
        bytes: width.wrapping_mul(rows),
        place: read(registers, offset!(arguments[0])),
        pitch: read(registers, offset!(arguments[1])),
        rows,
        which: 2,
        within: 0,
    })
}

macro_rules! freeing {
    ($($name:ident, $which:literal;)*) => {
        $(#[uprobe]
        pub fn $name(ctx: ProbeContext) -> u32 {
            let place = read(ctx.as_ptr().cast(), offset!(arguments[0]));
            enter(Call { bytes: 0, place, pitch: 0, rows: 0, which: $which, within: 0 })
        })*
    };
}

freeing! {
    cuda_free, 6;
    cuda_free_async, 7;
    cuda_release, 8;
}

#[uretprobe]
pub fn cuda_return(ctx: RetProbeContext) -> u32 {
    let thread = bpf_get_current_pid_tgid();
    let Some(entered) = ENTERED.get_ptr_mut(&thread) else { return 0 };
    // SAFETY: the entry is this thread's own, and only this thread removes it.
    let entered = unsafe { &mut *entered };
    if entered.within > 0 {
        entered.within -= 1;
        return 0;
    }
    let call = *entered;
    let _ = ENTERED.remove(&thread);
    let code = read::<u32>(ctx.as_ptr().cast(), offset!(result)) as i32;
    returned(thread, call, code);
    0
}

/// A thread is about to end: nothing of it is to be taken for a later one's with its id.
#[inline(always)]
pub(crate) fn thread_ends() {
    let thread = bpf_get_current_pid_tgid();
    let _ = ENTERED.remove(&thread);
    let _ = FAILED.remove(&thread);
}

#[inline(always)]
fn enter(mut call: Call) -> u32 {
    let thread = bpf_get_current_pid_tgid();
    if !is_watched(current_pid(), Task::current()) {
        return 0;
    }
    if let Some(outer) = ENTERED.get_ptr_mut(&thread) {
        // SAFETY: the entry is this thread's own, and only this thread removes it.
        let outer = unsafe { &mut *outer };
        // A call is not made from within itself: its return was not seen, or two paths to one file are both probed.
        if outer.which != call.which {
            outer.within = outer.within.wrapping_add(1);
            return 0;
        }
        if outer.place == call.place && call.which >= FIRST_FREE {
            return 0;
        }
    }
    if call.which >= FIRST_FREE {
        // Before it is free: another thread may get the same address before this call returns.
        let address = Address { process: process(), address: call.place };
        // SAFETY: an entry that is used again meanwhile is of an address that is allocated twice: libcuda does no such thing.
        call.bytes = unsafe { SIZES.get(&address) }.copied().unwrap_or(0);
        let _ = SIZES.remove(&address);
    }
    if ENTERED.insert(&thread, &call, 0).is_err() {
        count(LOST_CALLS);
    }
    0
}

#[inline(always)]
fn returned(thread: u64, call: Call, code: i32) {
    let Some(totals) = totals() else { return count(LOST_CALLS) };
    add(&raw const totals.calls, 1);
    if call.which >= FIRST_FREE {
        freed(totals, call, code);
    } else if code == 0 {
        allocated(totals, thread, call);
    } else if code == CUDA_OUT_OF_MEMORY {
        add(&raw const totals.failed, 1);
        let _ = FAILED.insert(&thread, &call.bytes, 0);
        tell_of(ALLOCATION_FAILED, call, call.bytes);
    }
}

#[inline(always)]
fn allocated(totals: &Totals, thread: u64, call: Call) {
    let bytes = if call.pitch == 0 { call.bytes } else { user(call.pitch).wrapping_mul(call.rows) };
    add(&raw const totals.allocated, bytes);
    let address = Address { process: process(), address: user(call.place) };
    if SIZES.insert(&address, &bytes, 0).is_err() {
        count(LOST_CALLS);
    }
    // SAFETY: the entry is this thread's own.
    if let Some(failed) = unsafe { FAILED.get(&thread) }
        && call.bytes >= *failed
    {
        let _ = FAILED.remove(&thread);
        tell_of(ALLOCATION_RETRIED, call, bytes);
    }
}

#[inline(always)]
fn freed(totals: &Totals, call: Call, code: i32) {
    if code != 0 {
        // It is still there.
        if call.bytes != 0 {
            let _ = SIZES.insert(&Address { process: process(), address: call.place }, &call.bytes, 0);
        }
    } else if call.bytes != 0 {
        add(&raw const totals.freed, call.bytes);
    } else if call.place != 0 {
        add(&raw const totals.unknown, 1);
    }
}

#[inline(always)]
fn tell_of(kind: u32, call: Call, bytes: u64) {
    tell(kind, gpuadmit_abi::WATCHED, Task::current(), |record| {
        record.value = call.which as i32;
        record.memory[0] = bytes;
    });
}

/// The totals of this process.
#[inline(always)]
fn totals() -> Option<&'static Totals> {
    let pid = current_pid();
    // SAFETY: entries are never freed while a program runs.
    let start = unsafe { *WATCHED.get_ptr(&pid)? };
    if let Some(known) = TOTALS.get_ptr(&pid) {
        // SAFETY: the same.
        let known = unsafe { &*known };
        if known.start == start {
            return Some(known);
        }
        let _ = TOTALS.remove(&pid);
    }
    // Another thread may be faster.
    let _ = TOTALS.insert(&pid, &Totals { start, ..Totals::default() }, IF_ABSENT);
    // SAFETY: the same.
    TOTALS.get_ptr(&pid).map(|totals| unsafe { &*totals })
}

/// Adds where other threads of the process add at the same time.
#[inline(always)]
fn add(place: *const u64, amount: u64) {
    // SAFETY: it points into a map's value, which is aligned to eight bytes and is only changed so.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(place.cast_mut(), amount) };
}

/// Process id above, lower half of its start below.
#[inline(always)]
fn process() -> u64 {
    let start = Task::current().leader().start() as u32;
    u64::from(current_pid()) << 32 | u64::from(start)
}

/// A number in the process's memory; 0 where it cannot be read.
#[inline(always)]
fn user(address: u64) -> u64 {
    let mut value = 0_u64;
    // SAFETY: there is room for eight bytes, and the helper checks the address it reads from itself.
    unsafe { generated::bpf_probe_read_user((&raw mut value).cast(), 8, address as *const _) };
    value
}
