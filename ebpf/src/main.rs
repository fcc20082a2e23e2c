//! The kernel's word of what happens to watched processes: their forks, execs, fatal signals and ends, and who was
//! chosen by the OOM killer. A process that is not watched costs one look into a hash map.
//!
//! Raw tracepoints, for these need no more than CAP_BPF and CAP_PERFMON. What is no watched process's is decided here,
//! so that nothing of it reaches the daemon.

#![no_std]
#![no_main]
// To add in place: core's atomic types lack that for BPF.
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "the only way to it")]

mod cuda;
mod kernel;

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, generated},
    macros::{map, raw_tracepoint, tracepoint},
    maps::{HashMap, PerCpuArray, RingBuf},
    programs::{RawTracePointContext, TracePointContext},
};
use gpuadmit_abi::{
    COMM_BYTES, EXEC, EXIT, FORK, HAS_MEMORY, LOST_CHILDREN, LOST_COUNTERS, LOST_RECORDS, MAX_WATCHED, OOM_SCORE_ADJ,
    OOM_VICTIM, RECORDS_BYTES, Record, SIGNAL, XID,
};
use kernel::{Task, offset, read, read_into};

const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGTERM: i32 = 15;
/// `TRACE_SIGNAL_DELIVERED` of trace/events/signal.h: neither ignored nor already pending.
const DELIVERED: i32 = 0;
/// `SEND_SIG_NOINFO` and `SEND_SIG_PRIV` of linux/sched/signal.h: no pointers, but "by a user" and "by the kernel".
const BY_USER: usize = 0;
const BY_KERNEL: usize = 1;
const SI_KERNEL: i32 = 0x80;

#[map]
static WATCHED: HashMap<u32, u64> = HashMap::with_max_entries(MAX_WATCHED, 0);
#[map]
static RECORDS: RingBuf = RingBuf::with_byte_size(RECORDS_BYTES, 0);
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOST_COUNTERS, 0);
/// Whom the kernel has just sent SIGKILL on this CPU: the OOM killer does so right before it names its victim.
#[map]
static KILLED: PerCpuArray<Record> = PerCpuArray::with_max_entries(1, 0);

#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn process_exit(ctx: RawTracePointContext) -> i32 {
    let (task, pid) = (Task(ctx.arg(0)), current_pid());
    if !is_watched(pid, task) {
        return 0;
    }
    cuda::thread_ends();
    // Every thread of the process comes by; the last one, or whoever removes it from the watch set, tells.
    if task.live() <= 0 && WATCHED.remove(&pid).is_ok() {
        tell(EXIT, gpuadmit_abi::WATCHED, task, |record| record.value = task.status());
    }
    0
}

#[raw_tracepoint(tracepoint = "signal_generate")]
pub fn signal_generate(ctx: RawTracePointContext) -> i32 {
    let (number, info, task): (i32, usize, _) = (ctx.arg(0), ctx.arg(1), Task(ctx.arg(2)));
    if ctx.arg::<i32>(4) != DELIVERED || !matches!(number, SIGABRT | SIGBUS | SIGKILL | SIGSEGV | SIGTERM) {
        return 0;
    }
    let watched = is_watched(task.pid(), task);
    if number == SIGKILL && info == BY_KERNEL && offset!(victim_is_task) == 0 {
        note_killed(task, watched);
    }
    if watched {
        let code = match info {
            BY_USER => 0,
            BY_KERNEL => SI_KERNEL,
            info => read(info as *const u8, offset!(siginfo_code)),
        };
        tell(SIGNAL, gpuadmit_abi::WATCHED, task, |record| {
            (record.value, record.detail, record.other) = (number, code, current_pid());
            // SAFETY: the place has room for that many bytes.
            unsafe { generated::bpf_get_current_comm((&raw mut record.other_comm).cast(), COMM_BYTES as u32) };
        });
    }
    0
}

#[inline(always)]
fn note_killed(task: Task, watched: bool) {
    if let Some(slot) = KILLED.get_ptr_mut(0) {
        // SAFETY: it points to this CPU's own slot, which nothing else writes: signals are sent with interrupts off.
        let record = unsafe { &mut *slot };
        fill(record, OOM_VICTIM, if watched { gpuadmit_abi::WATCHED } else { 0 }, task);
        remember_memory(record, task);
    }
}

#[raw_tracepoint(tracepoint = "mark_victim")]
pub fn mark_victim(ctx: RawTracePointContext) -> i32 {
    if offset!(victim_is_task) != 0 {
        chosen(Task(ctx.arg(0)));
        return 0;
    }
    // Older kernels tell only the thread: it is the current one, or the one that was just sent SIGKILL on this CPU.
    let (tid, current): (u32, _) = (ctx.arg(0), Task::current());
    if current.tid() == tid {
        chosen(current);
    } else {
        chosen_by_id(tid);
    }
    0
}

#[inline(always)]
fn chosen(task: Task) {
    let flags = if is_watched(task.pid(), task) { gpuadmit_abi::WATCHED } else { 0 };
    tell(OOM_VICTIM, flags, task, |record| remember_memory(record, task));
}

#[inline(always)]
fn chosen_by_id(tid: u32) {
    record(|record| {
        match KILLED.get(0) {
            Some(killed) if killed.tid == tid => *record = *killed,
            _ => *record = Record { kind: OOM_VICTIM, tid, ..Record::default() },
        }
        record.time = now();
    });
}

#[raw_tracepoint(tracepoint = "oom_score_adj_update")]
pub fn oom_score_adj_update(ctx: RawTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    if is_watched(task.pid(), task) {
        tell(OOM_SCORE_ADJ, gpuadmit_abi::WATCHED, task, |record| record.value = task.oom_score_adj().into());
    }
    0
}

#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn process_fork(ctx: RawTracePointContext) -> i32 {
    let (parent, child) = (Task(ctx.arg(0)), Task(ctx.arg(1)));
    let pid = child.pid();
    // Else it is a new thread.
    if pid == child.tid() && is_watched(parent.pid(), parent) {
        let start = child.start();
        if WATCHED.insert(&pid, &start, 0).is_err() {
            count(LOST_CHILDREN);
        }
        tell(FORK, gpuadmit_abi::WATCHED, parent, |record| (record.other, record.other_start) = (pid, start));
    }
    0
}

#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(ctx: RawTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    if is_watched(task.pid(), task) {
        tell(EXEC, gpuadmit_abi::WATCHED, task, |_| ());
    }
    0
}

#[tracepoint(category = "nvidia", name = "nvidia_dev_xid")]
pub fn nvidia_dev_xid(ctx: TracePointContext) -> i32 {
    let event: *const u8 = ctx.as_ptr().cast();
    // A `__data_loc`: offset of the text from the start of the event in the lower half, its length in the upper.
    let place: u32 = read(event, offset!(xid_device));
    record(|record| {
        *record = Record { kind: XID, time: now(), value: read(event, offset!(xid_code)), ..Record::default() };
        let text = event.wrapping_add((place & 0xffff) as usize);
        // SAFETY: the place has room for that many bytes, and the helper checks the address it reads from itself.
        unsafe {
            generated::bpf_probe_read_kernel_str((&raw mut record.comm).cast(), COMM_BYTES as u32, text.cast())
        };
    });
    0
}

/// Whether `task` is a thread of a watched process, and not of a later one with its id.
#[inline(always)]
fn is_watched(pid: u32, task: Task) -> bool {
    match WATCHED.get_ptr(&pid) {
        // SAFETY: entries are never freed while a program runs; one that changes meanwhile is of another process.
        Some(start) => unsafe { *start == task.leader().start() },
        None => false,
    }
}

#[inline(always)]
fn tell(kind: u32, flags: u32, task: Task, complete: impl FnOnce(&mut Record)) {
    record(|record| {
        fill(record, kind, flags, task);
        complete(record);
    });
}

/// Makes a record in the ring buffer itself: the stack has 512 bytes.
#[inline(always)]
fn record(make: impl FnOnce(&mut Record)) {
    let Some(mut entry) = RECORDS.reserve::<Record>(0) else { return count(LOST_RECORDS) };
    // SAFETY: any bytes are a record; all of them are written by `make`, which begins with a whole one.
    make(unsafe { entry.assume_init_mut() });
    entry.submit(0);
}

#[inline(always)]
fn fill(record: &mut Record, kind: u32, flags: u32, task: Task) {
    let leader = task.leader();
    *record = Record { kind, flags, time: now(), pid: task.pid(), tid: task.tid(), start: leader.start(), ..Record::default() };
    read_into(&raw mut record.comm, leader.0, offset!(task_comm));
}

#[inline(always)]
fn remember_memory(record: &mut Record, task: Task) {
    if let Some(memory) = task.resident() {
        record.memory = memory;
        record.flags |= HAS_MEMORY;
    }
}

#[inline(always)]
fn current_pid() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

#[inline(always)]
fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

#[inline(always)]
fn count(counter: u32) {
    if let Some(count) = LOST.get_ptr_mut(counter) {
        // SAFETY: it points into this CPU's own slot. A program that interrupts this one may make it lose a count: it grows
        // all the same.
        unsafe { *count = (*count).wrapping_add(1) };
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Helpers that are only for programs under the GPL are used (`bpf_probe_read_kernel`); the license applies to the
/// object alone.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
