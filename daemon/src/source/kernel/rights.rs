//! What this process may do (capabilities(7)).

use std::{fs, path::Path};

/// Rights by which sources of facts stand or fall, with their numbers in linux/capability.h.
const NAMES: [(Right, u32); 5] = [
    (Right::SysPtrace, 19),
    (Right::SysAdmin, 21),
    (Right::Syslog, 34),
    (Right::Perfmon, 38),
    (Right::Bpf, 39),
];

/// A right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To look into other users' processes.
    SysPtrace,
    /// Everything else.
    SysAdmin,
    /// To read the kernel's log.
    Syslog,
    /// To trace the kernel.
    Perfmon,
    /// To load programs into the kernel.
    Bpf,
}

impl Right {
    /// As in capabilities(7).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Syslog => "CAP_SYSLOG",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// The rights of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rights(u64);

impl Rights {
    /// Of this process; none where they cannot be read.
    #[must_use]
    pub fn own() -> Self {
        Self::read(Path::new("/proc/self/status"))
    }

    fn read(status: &Path) -> Self {
        let text = fs::read_to_string(status).unwrap_or_default();
        let mask = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Self(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0))
    }

    /// Whether it is among them.
    #[must_use]
    pub fn has(self, right: Right) -> bool {
        let number = NAMES.iter().find(|(named, _)| *named == right).map_or(0, |(_, number)| *number);
        self.0.checked_shr(number).is_some_and(|mask| mask & 1 == 1)
    }

    /// Those of `wanted` that it lacks. CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON.
    #[must_use]
    pub fn lacking(self, wanted: &[Right]) -> Vec<&'static str> {
        let by_admin = |right| matches!(right, Right::Bpf | Right::Perfmon) && self.has(Right::SysAdmin);
        wanted
            .iter()
            .filter(|right| !self.has(**right) && !by_admin(**right))
            .map(|right| right.as_str())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named() {
        let wanted = [Right::Bpf, Right::Perfmon, Right::Syslog];
        assert_eq!(Rights(1 << 39).lacking(&wanted), ["CAP_PERFMON", "CAP_SYSLOG"]);
        assert_eq!(Rights(1 << 21).lacking(&wanted), ["CAP_SYSLOG"]);
        assert!(Rights(u64::MAX).lacking(&wanted).is_empty());
    }
}
