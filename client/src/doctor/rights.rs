//! Capabilities of the daemon: of its process where it runs, else of its unit (capabilities(7), systemd.exec(5)).

/// What the daemon may do, a mask as in `/proc/PID/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights(pub(crate) u64);

/// A right that the daemon has a use for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// Name.
    pub(crate) name: &'static str,
    /// Number in linux/capability.h.
    number: u32,
    /// What is lost without it.
    pub(crate) lost: &'static str,
}

/// CAP_SYS_ADMIN, which stands for CAP_BPF and CAP_PERFMON.
const SYS_ADMIN: u32 = 21;

/// All of them.
pub(crate) const USES: [Use; 4] = [
    Use { name: "CAP_BPF", number: 39, lost: "deaths of engines are told late and without who caused them" },
    Use {
        name: "CAP_PERFMON",
        number: 38,
        lost: "deaths of engines are told late and without who caused them",
    },
    Use { name: "CAP_SYS_PTRACE", number: 19, lost: "other users' engines are not found" },
    Use {
        name: "CAP_SYSLOG",
        number: 34,
        lost: "Xid errors and OOM kills are not read from the kernel's log",
    },
];

impl Rights {
    /// Every right there is.
    pub(crate) const ALL: Self = Self(u64::MAX);

    fn has(self, number: u32) -> bool {
        self.0.checked_shr(number).is_some_and(|mask| mask & 1 == 1)
    }

    /// Rights that it has a use for and lacks.
    pub(crate) fn lacking(self) -> impl Iterator<Item = Use> {
        let by_admin = move |one: &Use| matches!(one.name, "CAP_BPF" | "CAP_PERFMON") && self.has(SYS_ADMIN);
        USES.into_iter().filter(move |one| !self.has(one.number) && !by_admin(one))
    }

    /// Of a unit whose settings of one name are `lines`, in their order: an empty one forgets those before. Rights that
    /// the daemon has no use for are left out.
    pub(crate) fn of_lines<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let mut rights = Self(0);
        for line in lines {
            if line.trim().is_empty() {
                rights = Self(0);
            }
            let (line, inverted) = line.strip_prefix('~').map_or((line, false), |rest| (rest, true));
            let named = line.split_whitespace().filter_map(number).fold(0, |mask, number| mask | 1 << number);
            rights.0 = if inverted { !named } else { rights.0 | named };
        }
        rights
    }
}

fn number(name: &str) -> Option<u32> {
    if name == "CAP_SYS_ADMIN" {
        return Some(SYS_ADMIN);
    }
    USES.iter().find(|one| one.name == name).map(|one| one.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacking(rights: Rights) -> Vec<&'static str> {
        rights.lacking().map(|one| one.name).collect()
    }

    #[test]
    fn the_mask_of_a_process_tells_what_is_lacking() {
        // Bits 38 and 39.
        assert_eq!(lacking(Rights(0x0000_00c0_0000_0000)), ["CAP_SYS_PTRACE", "CAP_SYSLOG"]);
        assert_eq!(lacking(Rights(1 << 21)), ["CAP_SYS_PTRACE", "CAP_SYSLOG"]);
        assert_eq!(lacking(Rights::ALL), [""; 0]);
    }

    #[test]
    fn settings_of_a_unit_add_up_until_an_empty_one() {
        let of = |lines: &[&str]| lacking(Rights::of_lines(lines.iter().copied()));
        assert_eq!(of(&["CAP_BPF CAP_PERFMON", "CAP_SYSLOG CAP_SYS_PTRACE"]), [""; 0]);
        assert_eq!(
            of(&["CAP_BPF CAP_PERFMON", "", "CAP_SYSLOG"]),
            ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"]
        );
        assert_eq!(of(&["~CAP_SYSLOG"]), ["CAP_SYSLOG"]);
    }
}
