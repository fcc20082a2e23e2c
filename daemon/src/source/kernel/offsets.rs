//! Finds out where the running kernel keeps what the programs read.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use gpuadmit_abi::Offsets;

use super::{
    btf::{self, Btf, BtfError},
    format,
};

/// Files that describe the running kernel.
#[derive(Clone, Debug)]
pub struct Description {
    /// Its types.
    pub btf: PathBuf,
    /// Its tracepoints: a mount of tracefs.
    pub tracefs: PathBuf,
    /// Its release: `6.12.57-amd64`.
    pub release: PathBuf,
}

impl Default for Description {
    fn default() -> Self {
        Self {
            btf: "/sys/kernel/btf/vmlinux".into(),
            tracefs: "/sys/kernel/tracing".into(),
            release: "/proc/sys/kernel/osrelease".into(),
        }
    }
}

/// Why the programs cannot be told where to read.
#[derive(Debug, thiserror::Error)]
pub enum OffsetsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no description of types.
    #[error("{path}: {source}")]
    Btf {
        /// Which.
        path: PathBuf,
        /// Why.
        source: BtfError,
    },
    /// The kernel has no such member.
    #[error("this kernel has no {structure}.{member}")]
    Member {
        /// Structure.
        structure: &'static str,
        /// Member.
        member: &'static str,
    },
}

/// What was found out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// For the programs.
    pub offsets: Offsets,
    /// Whether tracepoint nvidia:nvidia_dev_xid is there and readable.
    pub has_xid: bool,
}

/// Reads the description of the running kernel: some 10 ms and, for that time, some MiB.
///
/// # Errors
/// [`OffsetsError`].
pub fn find(description: &Description) -> Result<Layout, OffsetsError> {
    let path = &description.btf;
    let bytes =
        read(path, btf::MAX_BYTES).map_err(|source| OffsetsError::Read { path: path.clone(), source })?;
    let types = Btf::parse(&bytes).map_err(|source| OffsetsError::Btf { path: path.clone(), source })?;
    let mut offsets = of_types(&types)?;
    let xid = xid(&description.tracefs);
    if let Some((device, code)) = xid {
        (offsets.xid_device, offsets.xid_code) = (device, code);
    }
    Ok(Layout { offsets, has_xid: xid.is_some() })
}

fn of_types(types: &Btf<'_>) -> Result<Offsets, OffsetsError> {
    let must =
        |structure, member| types.offset(structure, member).ok_or(OffsetsError::Member { structure, member });
    let (mm_rss, mm_rss_stride) = resident(types).unwrap_or((gpuadmit_abi::ABSENT, gpuadmit_abi::ABSENT));
    let (arguments, result) = registers(types).unwrap_or(([gpuadmit_abi::ABSENT; 4], gpuadmit_abi::ABSENT));
    Ok(Offsets {
        task_pid: must("task_struct", "pid")?,
        task_tgid: must("task_struct", "tgid")?,
        task_comm: must("task_struct", "comm")?,
        task_exit_code: must("task_struct", "exit_code")?,
        task_group_leader: must("task_struct", "group_leader")?,
        task_start: must("task_struct", "start_boottime")?,
        task_signal: must("task_struct", "signal")?,
        task_mm: must("task_struct", "mm")?,
        signal_live: must("signal_struct", "live")?,
        signal_group_exit_code: must("signal_struct", "group_exit_code")?,
        signal_oom_score_adj: must("signal_struct", "oom_score_adj")?,
        siginfo_code: must("kernel_siginfo", "si_code")?,
        mm_rss,
        mm_rss_stride,
        victim_is_task: u32::from(
            types.tracepoint("mark_victim").is_some_and(|args| args.first() == Some(&true)),
        ),
        tick: tick(),
        arguments,
        result,
        ..Offsets::UNKNOWN
    })
}

/// Registers of a C function's first four arguments and of its result, in `pt_regs`: by the names of x86-64's, else the
/// first of an array, as AArch64 has it.
fn registers(types: &Btf<'_>) -> Option<([u32; 4], u32)> {
    let register = |name| types.offset("pt_regs", name);
    if let (Some(first), Some(second), Some(third), Some(fourth), Some(result)) =
        (register("di"), register("si"), register("dx"), register("cx"), register("ax"))
    {
        return Some(([first, second, third, fourth], result));
    }
    let first = register("regs")?;
    let numbered = |number: u32| first.checked_add(number.checked_mul(8)?);
    Some(([first, numbered(1)?, numbered(2)?, numbered(3)?], first))
}

/// Where the first counter of resident pages is, and how far it is to the next. Since Linux 6.2 they are an array of
/// `percpu_counter` in `mm_struct`; before, an array of numbers in a structure in it.
fn resident(types: &Btf<'_>) -> Option<(u32, u32)> {
    let counters = types.member("mm_struct", "rss_stat")?;
    let structure = types.structure_name(counters.kind)?;
    let count = types.member(structure, "count")?;
    let stride = types.element_bytes(counters.kind).or_else(|| types.element_bytes(count.kind))?;
    Some((counters.offset.checked_add(count.offset)?, stride))
}

/// Nanoseconds in a clock tick of `/proc/PID/stat`.
fn tick() -> u32 {
    let hertz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    let hertz = hertz.and_then(|hertz| u32::try_from(hertz).ok()).unwrap_or(100);
    1_000_000_000_u32.checked_div(hertz).unwrap_or(10_000_000)
}

fn xid(tracefs: &Path) -> Option<(u32, u32)> {
    let format = read(&tracefs.join("events/nvidia/nvidia_dev_xid/format"), format::MAX_BYTES).ok()?;
    Some((format::offset(&format, "dev")?, format::offset(&format, "error_code")?))
}

/// A file of at most `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= most) {
        return Ok(bytes);
    }
    Err(io::Error::other(format!("it is larger than {most} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_tells_where_its_own_id_is() {
        let description = Description::default();
        if !description.btf.exists() {
            eprintln!("SKIPPED: this kernel has no {}", description.btf.display());
            return;
        }
        let offsets = find(&description).unwrap().offsets;
        // In struct task_struct `tgid` follows `pid`, both of type pid_t (linux/sched.h).
        assert_eq!(offsets.task_tgid, offsets.task_pid + 4);
        assert!(offsets.mm_rss_stride >= 8);
        // Registers have eight bytes and are all different.
        let mut registers = offsets.arguments.to_vec();
        registers.dedup();
        assert!(registers.len() == 4 && registers.iter().all(|offset| offset % 8 == 0), "{registers:?}");
    }

    #[test]
    fn an_unreadable_description_is_named() {
        let description = Description { btf: "/nonexistent".into(), ..Description::default() };
        assert!(find(&description).unwrap_err().to_string().starts_with("cannot read /nonexistent"));
    }
}
