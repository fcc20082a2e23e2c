//! What becomes of a healthy machine when one thing at a time is broken.

use std::path::Path;

use super::{
    Checked, Finding, Level,
    faults_daemon::{CONFIGURATION, ENGINES, SERVICE},
    faults_machine::{DRIVER, KERNEL},
    machine::Space,
    planted::{CONFIG, PID, Planted, SOCKET},
};

/// A fault: how it is planted, which check finds it and how grave it is, and parts of its text and of its remedy.
pub(super) type Fault = (&'static str, fn(&mut Planted), &'static str, Level, &'static str, &'static str);

/// Whether any finding is as `fault` wants it.
fn assert_found(fault: &str, findings: &[Finding], check: &str, level: Level, text: &str, remedy: &str) {
    let found = findings.iter().any(|finding| {
        finding.check == check
            && finding.level == level
            && finding.text.contains(text)
            && finding.remedy.as_deref().unwrap_or_default().contains(remedy)
    });
    let bad: Vec<_> = findings.iter().filter(|finding| finding.level != Level::Ok).collect();
    assert!(found, "{fault}: {bad:#?}");
}

fn assert_each_is_found(faults: &[Fault]) {
    for (fault, plant, check, level, text, remedy) in faults {
        let mut planted = Planted::healthy();
        plant(&mut planted);
        let findings = planted.examine();
        assert_found(fault, &findings, check, *level, text, remedy);
        let others = findings.iter().filter(|finding| finding.level > *level).count();
        assert_eq!(others, 0, "{fault} is the gravest: {findings:#?}");
    }
}

#[test]
fn a_healthy_machine_has_no_fault() {
    let findings = Planted::healthy().examine();
    let bad: Vec<_> = findings.iter().filter(|finding| finding.level != Level::Ok).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    for check in
        ["driver.nvml", "kernel.rights", "socket.member", "config.valid", "state.disk", "engine.state"]
    {
        assert!(findings.iter().any(|finding| finding.check == check), "{check} is looked at");
    }
}

/// Nobody is advised to become root, or another of the system's groups, in order to ask or to read a GPU.
#[test]
fn nobody_is_put_into_a_group_that_grants_more() {
    for group in ["root", "wheel", "sudo", "adm", "docker", "disk", "shadow"] {
        let planted = Planted::healthy();
        let gid = planted.daemon.1;
        planted.write("/etc/group", &format!("{group}:x:{gid}:\ngpuadmit:x:99999:\n"));
        planted.write("/proc/self/status", "Uid:\t7 7 7 7\nGid:\t7 7 7 7\nGroups:\t7\n");
        let findings = planted.examine();
        let member = findings.iter().find(|finding| finding.check == "socket.member").unwrap();
        let remedy = member.remedy.as_deref().unwrap();
        assert!(remedy.starts_with("set [socket] group in /etc/gpuadmit/gpuadmit.toml"), "{group}: {remedy}");
        let remedies = findings.iter().filter_map(|finding| finding.remedy.as_deref());
        assert!(!remedies.clone().any(|remedy| remedy.contains("usermod")), "{group}");
    }
}

#[test]
fn faults_of_the_driver_are_found() {
    assert_each_is_found(DRIVER);
}

#[test]
fn faults_of_the_kernel_and_its_clocks_are_found() {
    assert_each_is_found(KERNEL);
}

#[test]
fn faults_of_the_service_are_found() {
    assert_each_is_found(SERVICE);
}

#[test]
fn faults_of_the_configuration_and_the_disk_are_found() {
    assert_each_is_found(CONFIGURATION);
}

#[test]
fn a_relative_configuration_is_where_the_daemon_runs() {
    let planted = Planted::healthy();
    planted.write(&format!("/proc/{PID}/cmdline"), "gpuadmitd\0--config\0gpuadmit.toml\0");
    assert!(planted.config_path().is_relative(), "its folder is not for us to see");
    std::os::unix::fs::symlink("/etc/gpuadmit", planted.path(&format!("/proc/{PID}/cwd"))).unwrap();
    assert_eq!(planted.config_path(), Path::new(CONFIG));
}

#[test]
fn a_full_disk_is_found() {
    let full: fn(&Path) -> Option<Space> = |_| Some(Space { free: 1 << 20, total: 10 << 30 });
    let findings = Planted::healthy().examine_with(full);
    assert_found(
        "full",
        &findings,
        "state.disk",
        Level::Warning,
        "1 MiB free at /var/lib/gpuadmit, 32",
        "df -h",
    );
    // 16 files of 64 MiB do not fit into 512 MiB; the state does.
    let planted = Planted::healthy();
    planted.write(CONFIG, "[records]\nenabled = true\n");
    planted.write("/var/lib/gpuadmit/records/1", "");
    planted.give("/var/lib/gpuadmit/records");
    let findings = planted.examine_with(|_| Some(Space { free: 512 << 20, total: 1 << 30 }));
    assert_found("records", &findings, "records.disk", Level::Warning, "1024 MiB wanted", "df -h");
    assert_found("state", &findings, "state.disk", Level::Ok, "512 MiB free", "");
}

#[test]
fn faults_of_engines_are_found() {
    assert_each_is_found(ENGINES);
}

#[test]
fn a_machine_without_gpus_has_no_fault_by_that() {
    let mut planted = Planted::healthy();
    planted.remove("/sys/bus/pci");
    planted.remove("/proc/driver");
    planted.status().devices.clear();
    let findings = planted.examine();
    assert_found("none", &findings, "driver.gpu", Level::Note, "no NVIDIA GPU", "");
    assert!(findings.iter().all(|finding| finding.level <= Level::Note), "{findings:#?}");
}

#[test]
fn a_machine_with_everything_broken_tells_of_all_of_it() {
    let mut planted = Planted::healthy();
    planted.unreachable("Connection refused");
    for path in
        ["/proc/driver/nvidia", "/sys/kernel/btf", "/proc/pressure", "/var/lib/gpuadmit", "/usr/lib/gpuadmit"]
    {
        planted.remove(path);
    }
    planted.write("/proc/sys/kernel/osrelease", "4.18.0\n");
    planted.write("/sys/fs/cgroup/cgroup.controllers", "cpu\n");
    planted.write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    planted.write("/etc/passwd", "");
    planted.write(
        "/etc/systemd/system/gpuadmit.service.d/less.conf",
        "[Service]\nAmbientCapabilities=\nCapabilityBoundingSet=\n",
    );
    planted.mode(SOCKET, 0o666);
    planted.mode(CONFIG, 0o666);
    planted.checked = Checked::Refused("mode: \"enforced\" is not allowed; one of enforce, observe".into());
    let findings = planted.examine();
    let mut checks: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.level >= Level::Warning && finding.remedy.is_some())
        .map(|finding| finding.check)
        .collect();
    checks.sort_unstable();
    let expected = [
        "clock.source",
        "config.permissions",
        "config.valid",
        "daemon.answers",
        "daemon.user",
        "driver.module",
        "kernel.btf",
        "kernel.cgroups",
        "kernel.programs",
        "kernel.rights",
        "kernel.version",
        "socket.file",
        "state.folder",
    ];
    assert_eq!(checks, expected, "{findings:#?}");
}
