//! What the kernel can tell: BPF, its types, tracepoints, cgroups and pressure.

use super::{Case, Finding, rights::Rights};

/// Linux versions on which the programs are tested.
const OLDEST: (u32, u32) = (5, 10);
const NEWEST: (u32, u32) = (7, 3);
/// What it costs when no BPF program runs.
const WITHOUT_BPF: &str = "deaths of engines are told by pidfd, without who caused them";

pub(super) fn examine(case: &Case) -> Vec<Finding> {
    let mut findings = vec![version(case), types(case), rights(case)];
    findings.extend(lockdown(case));
    findings.extend(programs(case));
    findings.push(tracefs(case));
    findings.push(cgroups(case));
    findings.push(pressure(case));
    findings
}

fn version(case: &Case) -> Finding {
    const CHECK: &str = "kernel.version";
    let Some(release) = case.machine.line("/proc/sys/kernel/osrelease") else {
        return Finding::warning(CHECK, "the kernel's version cannot be read", "mount -t proc proc /proc");
    };
    let text = format!("Linux {release}");
    match parse(&release) {
        Some(version) if version < OLDEST => {
            let text = format!(
                "{text} is older than 5.10, from which on the BPF programs are tested: {WITHOUT_BPF}"
            );
            Finding::warning(CHECK, text, "install a newer kernel, then reboot")
        }
        Some(version) if version > NEWEST => {
            Finding::note(CHECK, format!("{text} is newer than 7.3, up to which the BPF programs are tested"))
        }
        _ => Finding::ok(CHECK, text),
    }
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn types(case: &Case) -> Finding {
    const CHECK: &str = "kernel.btf";
    if case.machine.has("/sys/kernel/btf/vmlinux") {
        return Finding::ok(CHECK, "the kernel describes its types");
    }
    let text =
        format!("no /sys/kernel/btf/vmlinux, without which no BPF program can be loaded: {WITHOUT_BPF}");
    Finding::warning(CHECK, text, "boot a kernel with CONFIG_DEBUG_INFO_BTF=y, as the distributions' are")
}

fn rights(case: &Case) -> Finding {
    const CHECK: &str = "kernel.rights";
    let Some((rights, whose)) = case.service.rights() else {
        let text = "unknown: the daemon neither runs nor has a unit";
        return Finding::note(CHECK, text);
    };
    let lacking: Vec<_> = rights.lacking().collect();
    if lacking.is_empty() {
        return Finding::ok(CHECK, format!("the daemon's {whose} has all rights that it can use"));
    }
    let names: Vec<_> = lacking.iter().map(|one| one.name).collect();
    let mut lost: Vec<_> = lacking.iter().map(|one| one.lost).collect();
    lost.dedup();
    let text = format!("the daemon's {whose} lacks {}: {}", names.join(" and "), lost.join("; "));
    let unit = case.service.unit().map(super::service::Unit::rights);
    let remedy = if unit.is_some_and(|unit: Rights| unit.lacking().next().is_none()) {
        "systemctl restart gpuadmit (its unit grants them)".to_owned()
    } else {
        let all: Vec<_> = super::rights::USES.iter().map(|one| one.name).collect();
        format!(
            "systemctl edit gpuadmit, with AmbientCapabilities= and CapabilityBoundingSet= of {}; then restart it",
            all.join(" ")
        )
    };
    Finding::warning(CHECK, text, remedy)
}

/// In confidentiality mode the kernel refuses programs that read its memory (kernel_lockdown(7)).
fn lockdown(case: &Case) -> Option<Finding> {
    let mode = case.machine.line("/sys/kernel/security/lockdown")?;
    mode.contains("[confidentiality]").then(|| {
        let text =
            format!("the kernel is locked down for confidentiality, and refuses BPF programs: {WITHOUT_BPF}");
        Finding::warning("kernel.lockdown", text, "boot with lockdown=integrity")
    })
}

/// The object file, where it is installed: `lib/gpuadmit` beside the folder of the daemon's program.
fn programs(case: &Case) -> Option<Finding> {
    const CHECK: &str = "kernel.programs";
    let program = case.service.program()?;
    let prefix = program.parent()?.parent()?;
    let object = prefix.join("lib/gpuadmit/gpuadmit.bpf.o");
    let configured = case.service.config.kernel.object.as_ref();
    let object = configured.unwrap_or(&object);
    Some(if case.machine.has(object) {
        Finding::ok(CHECK, object.display().to_string())
    } else {
        let text = format!("no {}, the BPF programs: {WITHOUT_BPF}", object.display());
        Finding::warning(CHECK, text, "install gpuadmit again (make install, or its package)")
    })
}

fn tracefs(case: &Case) -> Finding {
    const CHECK: &str = "kernel.tracefs";
    let mounts = case.machine.read("/proc/mounts").unwrap_or_default();
    if mounts.lines().any(|line| line.split(' ').nth(2) == Some("tracefs")) {
        return Finding::ok(CHECK, "mounted");
    }
    let text =
        "not mounted: Xid errors come from the kernel's log and NVML instead of the driver's tracepoint";
    Finding::note(CHECK, text).with("mount -t tracefs nodev /sys/kernel/tracing")
}

fn cgroups(case: &Case) -> Finding {
    const CHECK: &str = "kernel.cgroups";
    if let Some(controllers) = case.machine.read("/sys/fs/cgroup/cgroup.controllers") {
        if controllers.split_whitespace().any(|name| name == "memory") {
            return Finding::ok(CHECK, "version 2");
        }
        let text = "version 2 without the memory controller: an engine near its memory limit is not noticed";
        return Finding::warning(CHECK, text, "boot without cgroup_disable=memory (cat /proc/cmdline)");
    }
    if case.machine.has("/sys/fs/cgroup/memory") {
        let text = "version 1: memory limits are seen, pressure by group is not";
        return Finding::note(CHECK, text).with("boot with systemd.unified_cgroup_hierarchy=1");
    }
    let text = "none are mounted: an engine near its memory limit is not noticed";
    Finding::warning(CHECK, text, "mount -t cgroup2 none /sys/fs/cgroup")
}

fn pressure(case: &Case) -> Finding {
    const CHECK: &str = "kernel.pressure";
    if case.machine.has("/proc/pressure/memory") {
        return Finding::ok(CHECK, "the kernel tells of memory pressure");
    }
    let text = "no /proc/pressure/memory: pressure on the host's memory is not noticed before an OOM kill";
    Finding::note(CHECK, text).with("boot with psi=1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_understood() {
        assert_eq!(parse("6.12.43+deb13-amd64"), Some((6, 12)));
        assert_eq!(parse("5.10.0-28-cloud-amd64"), Some((5, 10)));
        assert_eq!(parse("7.0-rc1"), Some((7, 0)));
        assert_eq!(parse(""), None);
    }
}
