//! What the daemon itself takes.

use std::{
    fmt, fs,
    time::{SystemTime, UNIX_EPOCH},
};

use nix::{
    sys::{
        resource::{UsageWho, getrusage},
        time::TimeValLike as _,
    },
    unistd::{SysconfVar, sysconf},
};

use super::sheet::{ALONE, Sheet};

/// The daemon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    /// When it started, seconds of Unix time.
    started: f64,
}

impl Process {
    /// This process, which starts now.
    pub(super) fn starts_now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: now.as_secs_f64() }
    }

    pub(super) fn write(self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let help = "User and system CPU time of the daemon, without its NVML child.";
        sheet.counter("process_cpu_seconds", help, [(ALONE, cpu_seconds())])?;
        let help = "Resident memory of the daemon, without its NVML child.";
        sheet.gauge("process_resident_memory_bytes", help, [(ALONE, resident_bytes())])?;
        let help = "When the daemon started, Unix time.";
        sheet.gauge("process_start_time_seconds", help, [(ALONE, Some(self.started))])?;
        let open = fs::read_dir("/proc/self/fd").ok().and_then(|files| u64::try_from(files.count()).ok());
        sheet.gauge("process_open_fds", "Open file descriptors.", [(ALONE, open)])
    }
}

fn cpu_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let micros = (usage.user_time() + usage.system_time()).num_microseconds();
    Some(std::time::Duration::from_micros(u64::try_from(micros).ok()?).as_secs_f64())
}

/// The second field of proc_pid_statm(5), in pages.
fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let page = u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
    pages.checked_mul(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_takes_something() {
        assert!(cpu_seconds().unwrap() > 0.0);
        let resident = resident_bytes().unwrap();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap();
        assert!(resident.abs_diff(kib * 1024) < 16 << 20, "{resident} against {kib} KiB");
    }
}
