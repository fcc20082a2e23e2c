//! Groups that grant more than the use of one file: nobody is put into them for it.

/// Distributions give numbers below this one to groups of the system (Debian Policy 9.2.2; `SYS_GID_MIN` of login.defs(5)).
const FIRST_DYNAMIC: u32 = 100;

/// Groups with numbers of their own on each machine whose members get at devices, disks, logs, passwords, or root.
const POWERFUL: [&str; 26] = [
    "adm",
    "admin",
    "bin",
    "daemon",
    "disk",
    "docker",
    "incus",
    "incus-admin",
    "input",
    "kmem",
    "kvm",
    "libvirt",
    "libvirtd",
    "lxd",
    "mem",
    "podman",
    "render",
    "root",
    "shadow",
    "ssl-cert",
    "sudo",
    "sys",
    "systemd-journal",
    "tty",
    "video",
    "wheel",
];

/// Whether members of the group get more than what it was named for here.
pub(super) fn grants_more(name: &str, gid: u32) -> bool {
    gid < FIRST_DYNAMIC || POWERFUL.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_the_system_grant_more_and_a_daemons_own_does_not() {
        for (name, gid) in [
            ("root", 0),
            ("wheel", 10),
            ("sudo", 27),
            ("docker", 998),
            ("shadow", 42),
            ("disk", 6),
            ("lxd", 101),
        ] {
            assert!(grants_more(name, gid), "{name}");
        }
        for (name, gid) in [("gpuadmit", 990), ("inference", 1_001), ("users", 100)] {
            assert!(!grants_more(name, gid), "{name}");
        }
    }
}
