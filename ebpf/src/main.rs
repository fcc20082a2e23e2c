//! The kernel's word of what happens to watched processes: their forks, execs, fatal signals and ends, and who was
//! chosen by the OOM killer. A process that is not watched costs one look into a hash map.
//!
//! Raw tracepoints, for these need no more than CAP_BPF and CAP_PERFMON. What is no watched process's is decided here,
//! so that nothing of it reaches the daemon.

#![no_std]
#![no_main]

mod kernel;

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_kernel_str_bytes},
    macros::{map, raw_tracepoint, tracepoint},
    maps::{HashMap, PerCpuArray, RingBuf},
    programs::{RawTracePointContext, TracePointContext},
};
use gpuadmit_abi::{
    EXEC, EXIT, FORK, HAS_MEMORY, LOST_CHILDREN, LOST_COUNTERS, LOST_RECORDS, MAX_WATCHED, OOM_SCORE_ADJ, OOM_VICTIM,
    RECORDS_BYTES, Record, SIGNAL, XID,
};
use kernel::{Task, offset, read};

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
    ended(Task(ctx.arg(0)));
    0
}

/// Every thread of the process comes by; the last one, or whoever removes it from the watch set, tells.
#[inline(always)]
fn ended(task: Task) -> Option<()> {
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    if !is_watched(pid, task) || task.live()? > 0 {
        return None;
    }
    WATCHED.remove(&pid).ok()?;
    let value = task.status();
    tell(&Record { kind: EXIT, value, flags: gpuadmit_abi::WATCHED, ..about(task) });
    Some(())
}

#[raw_tracepoint(tracepoint = "signal_generate")]
pub fn signal_generate(ctx: RawTracePointContext) -> i32 {
    let (number, result): (i32, i32) = (ctx.arg(0), ctx.arg(4));
    if result == DELIVERED && matches!(number, SIGABRT | SIGBUS | SIGKILL | SIGSEGV | SIGTERM) {
        sent(number, ctx.arg::<usize>(1), Task(ctx.arg(2)));
    }
    0
}

#[inline(always)]
fn sent(number: i32, info: usize, task: Task) -> Option<()> {
    let watched = is_watched(task.pid(), task);
    let may_be_oom = number == SIGKILL && info == BY_KERNEL && offset!(victim_is_task) == 0;
    if !watched && !may_be_oom {
        return None;
    }
    let detail = match info {
        BY_USER => 0,
        BY_KERNEL => SI_KERNEL,
        info => read(info as *const u8, offset!(siginfo_code)).unwrap_or(0),
    };
    let other = (bpf_get_current_pid_tgid() >> 32) as u32;
    let other_comm = bpf_get_current_comm().unwrap_or_default();
    let flags = if watched { gpuadmit_abi::WATCHED } else { 0 };
    let record = Record { kind: SIGNAL, value: number, detail, other, other_comm, flags, ..about(task) };
    if may_be_oom {
        let _ = KILLED.set(0, with_memory(record, task), 0);
    }
    if watched {
        tell(&record);
    }
    Some(())
}

#[raw_tracepoint(tracepoint = "mark_victim")]
pub fn mark_victim(ctx: RawTracePointContext) -> i32 {
    if offset!(victim_is_task) != 0 {
        chosen(Task(ctx.arg(0)));
    } else {
        chosen_by_id(ctx.arg(0));
    }
    0
}

#[inline(always)]
fn chosen(task: Task) {
    let flags = if is_watched(task.pid(), task) { gpuadmit_abi::WATCHED } else { 0 };
    let record = Record { kind: OOM_VICTIM, flags, ..about(task) };
    tell(&with_memory(record, task));
}

/// Kernels before 6.9 tell only the thread: it is the current one, or the one that was just sent SIGKILL on this CPU.
#[inline(always)]
fn chosen_by_id(tid: u32) {
    let current = Task::current();
    if current.tid() == tid {
        return chosen(current);
    }
    let mut record = Record { kind: OOM_VICTIM, tid, time: now(), ..Record::default() };
    if let Some(killed) = KILLED.get(0)
        && killed.tid == tid
    {
        record = Record { kind: OOM_VICTIM, time: record.time, value: 0, detail: 0, other: 0, ..*killed };
        record.other_comm = [0; 16];
    }
    tell(&record);
}

#[raw_tracepoint(tracepoint = "oom_score_adj_update")]
pub fn oom_score_adj_update(ctx: RawTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    if is_watched(task.pid(), task)
        && let Some(value) = task.oom_score_adj()
    {
        let flags = gpuadmit_abi::WATCHED;
        tell(&Record { kind: OOM_SCORE_ADJ, value: value.into(), flags, ..about(task) });
    }
    0
}

#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn process_fork(ctx: RawTracePointContext) -> i32 {
    let (parent, child) = (Task(ctx.arg(0)), Task(ctx.arg(1)));
    if is_watched(parent.pid(), parent) {
        forked(parent, child);
    }
    0
}

#[inline(always)]
fn forked(parent: Task, child: Task) {
    let (other, other_start) = (child.pid(), child.start());
    // A new thread.
    if other == 0 || other != child.tid() {
        return;
    }
    if WATCHED.insert(&other, &other_start, 0).is_err() {
        count(LOST_CHILDREN);
    }
    let flags = gpuadmit_abi::WATCHED;
    tell(&Record { kind: FORK, other, other_start, flags, ..about(parent) });
}

#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(ctx: RawTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    if is_watched(task.pid(), task) {
        let flags = gpuadmit_abi::WATCHED;
        tell(&Record { kind: EXEC, flags, ..about(task) });
    }
    0
}

#[tracepoint(category = "nvidia", name = "nvidia_dev_xid")]
pub fn nvidia_dev_xid(ctx: TracePointContext) -> i32 {
    reported(ctx.as_ptr().cast());
    0
}

#[inline(always)]
fn reported(event: *const u8) -> Option<()> {
    let value: i32 = read(event, offset!(xid_code))?;
    // A `__data_loc`: offset of the text from the start of the event in the lower half, its length in the upper.
    let place: u32 = read(event, offset!(xid_device))?;
    let mut record = Record { kind: XID, value, time: now(), ..Record::default() };
    // SAFETY: the helper checks the address itself, and fails on a bad one.
    let _ = unsafe {
        bpf_probe_read_kernel_str_bytes(event.wrapping_add((place & 0xffff) as usize), &mut record.comm)
    };
    tell(&record);
    Some(())
}

/// Whether `task` is a thread of a watched process, and not of a later one with its id.
#[inline(always)]
fn is_watched(pid: u32, task: Task) -> bool {
    // SAFETY: the value is copied at once; one that changes while it is read is another process's and not ours.
    match unsafe { WATCHED.get(&pid) } {
        Some(start) => *start == task.leader().start(),
        None => false,
    }
}

#[inline(always)]
fn about(task: Task) -> Record {
    let leader = task.leader();
    let (pid, tid, start, comm) = (task.pid(), task.tid(), leader.start(), leader.comm());
    Record { time: now(), pid, tid, start, comm, ..Record::default() }
}

#[inline(always)]
fn with_memory(record: Record, task: Task) -> Record {
    match task.resident() {
        Some(memory) => Record { memory, flags: record.flags | HAS_MEMORY, ..record },
        None => record,
    }
}

#[inline(always)]
fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

#[inline(always)]
fn tell(record: &Record) {
    if RECORDS.output::<Record>(record, 0).is_err() {
        count(LOST_RECORDS);
    }
}

#[inline(always)]
fn count(counter: u32) {
    if let Some(count) = LOST.get_ptr_mut(counter) {
        // SAFETY: it points into this CPU's own slot; a program is not preempted by another on the same slot's update
        // but by an interrupt, whose count might be lost: the counter still grows.
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
