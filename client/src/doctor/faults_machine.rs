//! Faults of a machine.

use std::os::unix::fs::symlink;

use super::{
    Level::{Error, Note, Warning},
    planted::PID,
    tests::Fault,
};

const NVML: &str = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1";
pub(super) const DRIVER: &[Fault] = &[
    (
        "no module",
        |m| m.remove("/proc/driver/nvidia"),
        "driver.module",
        Error,
        "not loaded",
        "modprobe nvidia",
    ),
    (
        "nouveau",
        |m| {
            m.remove("/proc/driver/nvidia");
            m.write("/sys/module/nouveau/refcnt", "1");
        },
        "driver.module",
        Error,
        "nouveau drives the GPUs",
        "blacklist nouveau",
    ),
    (
        "a lost GPU",
        |m| m.remove("/proc/driver/nvidia/gpus/0000:01:00.0"),
        "driver.module",
        Error,
        "1 of 2 GPUs are driven",
        "Xid",
    ),
    ("no node", |m| m.remove("/dev/nvidia1"), "driver.nodes", Error, "1 of 2 GPUs", "nvidia-modprobe"),
    (
        "a closed node",
        |m| m.mode("/dev/nvidia0", 0o000),
        "driver.nodes",
        Error,
        "/dev/nvidia0",
        "NVreg_DeviceFileMode=0666",
    ),
    (
        "no library",
        |m| {
            m.remove(NVML);
            m.status().sources.retain(|source| source.name != "nvml");
        },
        "driver.nvml",
        Error,
        "not watched",
        "libnvidia-ml1",
    ),
    (
        "another library",
        |m| {
            m.remove(NVML);
            m.write("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.590.10", "");
            symlink("libnvidia-ml.so.590.10", m.path(NVML)).unwrap();
        },
        "driver.nvml",
        Error,
        "the library is 590.10 and the loaded module 580.95.05",
        "reboot",
    ),
];

const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
pub(super) const KERNEL: &[Fault] = &[
    (
        "an old kernel",
        |m| m.write("/proc/sys/kernel/osrelease", "4.18.0-553.el8.x86_64\n"),
        "kernel.version",
        Warning,
        "older than 5.10",
        "newer kernel",
    ),
    (
        "no BTF",
        |m| m.remove("/sys/kernel/btf"),
        "kernel.btf",
        Warning,
        "no BPF program",
        "CONFIG_DEBUG_INFO_BTF=y",
    ),
    (
        "lockdown",
        |m| m.write("/sys/kernel/security/lockdown", "none integrity [confidentiality]\n"),
        "kernel.lockdown",
        Warning,
        "refuses BPF",
        "lockdown=integrity",
    ),
    (
        "a process without rights that its unit grants",
        |m| m.process(m.daemon.0, m.daemon.1, "0000000000080000"),
        "kernel.rights",
        Warning,
        "process lacks CAP_BPF and CAP_PERFMON and CAP_SYSLOG: deaths of engines",
        "systemctl restart gpuadmit",
    ),
    (
        "a drop-in that takes rights away",
        |m| {
            m.process(m.daemon.0, m.daemon.1, "0000008400080000");
            m.write(
                "/etc/systemd/system/gpuadmit.service.d/less.conf",
                "[Service]\nAmbientCapabilities=\nAmbientCapabilities=CAP_SYS_PTRACE CAP_BPF CAP_SYSLOG\n",
            );
        },
        "kernel.rights",
        Warning,
        "lacks CAP_PERFMON: ",
        "systemctl edit gpuadmit",
    ),
    (
        "no programs",
        |m| m.remove("/usr/lib/gpuadmit"),
        "kernel.programs",
        Warning,
        "gpuadmit.bpf.o",
        "install gpuadmit again",
    ),
    (
        "no tracefs",
        |m| m.write("/proc/mounts", ""),
        "kernel.tracefs",
        Note,
        "not mounted",
        "mount -t tracefs",
    ),
    (
        "no memory controller",
        |m| m.write("/sys/fs/cgroup/cgroup.controllers", "cpu io\n"),
        "kernel.cgroups",
        Warning,
        "without the memory controller",
        "cgroup_disable",
    ),
    (
        "cgroups of version 1",
        |m| {
            m.remove("/sys/fs/cgroup/cgroup.controllers");
            m.write("/sys/fs/cgroup/memory/tasks", "");
        },
        "kernel.cgroups",
        Note,
        "version 1",
        "unified_cgroup_hierarchy",
    ),
    ("no pressure", |m| m.remove("/proc/pressure"), "kernel.pressure", Note, "not noticed", "psi=1"),
    ("a slow clock", |m| m.write(CLOCK, "hpet\n"), "clock.source", Warning, "hpet is slow", "echo tsc"),
    (
        "another time namespace",
        |m| m.write(&format!("/proc/{PID}/timens_offsets"), "monotonic 0 0\nboottime 86400 0\n"),
        "clock.namespace",
        Warning,
        "boottime 86400",
        "own time namespace",
    ),
    (
        "an uptime that cannot be",
        |m| m.write("/proc/uptime", "12.5 20.0\n"),
        "clock.uptime",
        Error,
        "longer than this machine",
        "--socket",
    ),
];
