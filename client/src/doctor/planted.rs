//! A healthy machine of files, for tests to break.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use gpuadmit_client::{
    CallError,
    v1::{
        Device, Engine, EngineSettings, EngineState, Mode, Obstacle, Pool, Source, SourceHealth,
        StatusResponse,
    },
};
use tempfile::TempDir;

use super::{
    Case, Checked, Finding, Service, examine,
    machine::{Machine, Space},
};

pub(super) const SOCKET: &str = "/run/gpuadmit/gpuadmit.sock";
pub(super) const CONFIG: &str = "/etc/gpuadmit/gpuadmit.toml";
pub(super) const PID: u32 = 4711;
/// `CAP_SYS_PTRACE CAP_SYSLOG CAP_PERFMON CAP_BPF`: bits 19, 34, 38 and 39.
const ALL_RIGHTS: &str = "000000c400080000";
/// The daemon's user and group, where this test may give files away.
const DAEMON: u32 = 990;

/// A machine, and what its daemon says.
pub(super) struct Planted {
    folder: TempDir,
    pub(super) status: Result<StatusResponse, CallError>,
    pub(super) checked: Checked,
    /// The daemon's user and group.
    pub(super) daemon: (u32, u32),
}

impl Planted {
    /// Two GPUs, one engine on each, and a daemon as its unit starts it.
    pub(super) fn healthy() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Files belong to whoever runs this test; root, whom no permission stops, gives them to another user.
        let own = fs::metadata(folder.path()).unwrap();
        let daemon = if own.uid() == 0 { (DAEMON, DAEMON) } else { (own.uid(), own.gid()) };
        let planted = Self { folder, status: Ok(status()), checked: Checked::Fine, daemon };
        planted.plant_devices();
        planted.plant_kernel();
        planted.plant_service();
        planted
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path.trim_start_matches('/'))
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    pub(super) fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    /// Gives it to the daemon.
    pub(super) fn give(&self, path: &str) {
        chown(self.path(path), Some(self.daemon.0), Some(self.daemon.1)).unwrap();
    }

    fn plant_devices(&self) {
        for gpu in 0..2 {
            let device = format!("/sys/bus/pci/devices/0000:0{gpu}:00.0");
            self.write(&format!("{device}/vendor"), "0x10de\n");
            self.write(&format!("{device}/class"), "0x030200\n");
            self.write(&format!("/proc/driver/nvidia/gpus/0000:0{gpu}:00.0/information"), "");
            self.write(&format!("/dev/nvidia{gpu}"), "");
            self.mode(&format!("/dev/nvidia{gpu}"), 0o666);
        }
        self.write("/dev/nvidiactl", "");
        self.mode("/dev/nvidiactl", 0o666);
        self.write(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
        );
        self.write("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05", "");
        let link = self.path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1");
        symlink("libnvidia-ml.so.580.95.05", link).unwrap();
    }

    fn plant_kernel(&self) {
        for (path, text) in [
            ("/proc/sys/kernel/osrelease", "6.12.43+deb13-amd64\n"),
            ("/proc/sys/kernel/random/boot_id", "6f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9\n"),
            ("/proc/uptime", "7200.51 14000.00\n"),
            ("/proc/mounts", "tracefs /sys/kernel/tracing tracefs rw,nosuid 0 0\n"),
            ("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
            ("/sys/kernel/btf/vmlinux", ""),
            ("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n"),
            ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ("/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm \n"),
        ] {
            self.write(path, text);
        }
    }

    fn plant_service(&self) {
        let (uid, gid) = self.daemon;
        self.write(
            "/usr/lib/systemd/system/gpuadmit.service",
            "[Service]\nExecStart=/usr/sbin/gpuadmitd --config /etc/gpuadmit/gpuadmit.toml\nUser=gpuadmit\n\
             Group=gpuadmit\nAmbientCapabilities=CAP_SYS_PTRACE CAP_BPF CAP_PERFMON CAP_SYSLOG\n\
             CapabilityBoundingSet=CAP_SYS_PTRACE CAP_BPF CAP_PERFMON CAP_SYSLOG\n",
        );
        self.write("/usr/sbin/gpuadmitd", "");
        self.write("/usr/lib/gpuadmit/gpuadmit.bpf.o", "");
        self.write(
            "/etc/passwd",
            &format!("root:x:0:0::/root:/bin/sh\ngpuadmit:x:{uid}:{gid}::/:/bin/false\n"),
        );
        self.write("/etc/group", &format!("root:x:0:\ngpuadmit:x:{gid}:\n"));
        self.write(CONFIG, "");
        self.mode(CONFIG, 0o644);
        self.process(uid, gid, ALL_RIGHTS);
        self.write(
            &format!("/proc/{PID}/cmdline"),
            "/usr/sbin/gpuadmitd\0--config\0/etc/gpuadmit/gpuadmit.toml\0",
        );
        self.write(&format!("/proc/{PID}/comm"), "gpuadmitd\n");
        self.write(&format!("/proc/{PID}/oom_score_adj"), "-900\n");
        self.write(
            &format!("/proc/{PID}/timens_offsets"),
            "monotonic           0         0\nboottime            0         0\n",
        );
        self.write(
            "/proc/self/status",
            &format!("Uid:\t7 7 7 7\nGid:\t7 7 7 7\nGroups:\t7 {gid}\nCapEff:\t0\n"),
        );
        fs::create_dir_all(self.path("/run/gpuadmit")).unwrap();
        drop(UnixListener::bind(self.path(SOCKET)).unwrap());
        self.mode(SOCKET, 0o660);
        self.give(SOCKET);
        fs::create_dir_all(self.path("/var/lib/gpuadmit")).unwrap();
        self.give("/var/lib/gpuadmit");
    }

    pub(super) fn process(&self, uid: u32, gid: u32, rights: &str) {
        let status = format!(
            "Name:\tgpuadmitd\nUid:\t{uid} {uid} {uid} {uid}\nGid:\t{gid} {gid} {gid} {gid}\nGroups:\t{gid}\n\
             CapEff:\t{rights}\n"
        );
        self.write(&format!("/proc/{PID}/status"), &status);
    }

    pub(super) fn status(&mut self) -> &mut StatusResponse {
        self.status.as_mut().unwrap()
    }

    pub(super) fn engine(&mut self) -> &mut Engine {
        self.status().engines.first_mut().unwrap()
    }

    pub(super) fn settings(&mut self) -> &mut EngineSettings {
        self.engine().settings.as_mut().unwrap()
    }

    pub(super) fn unreachable(&mut self, reason: &str) {
        self.status = Err(CallError::Unreachable { socket: SOCKET.into(), reason: reason.into() });
        self.remove(&format!("/proc/{PID}"));
    }

    /// Where the daemon's configuration is taken to be.
    pub(super) fn config_path(&self) -> PathBuf {
        let machine = Machine::new(self.folder.path().to_owned());
        Service::find(&machine, self.status.as_ref().ok()).config_path
    }

    pub(super) fn examine(self) -> Vec<Finding> {
        self.examine_with(|_| Some(Space { free: 50 << 30, total: 100 << 30 }))
    }

    pub(super) fn examine_with(self, space: fn(&Path) -> Option<Space>) -> Vec<Finding> {
        let machine = Machine::new(self.folder.path().to_owned()).with_space(space);
        let service = Service::find(&machine, self.status.as_ref().ok());
        let (status, checked) = (self.status, self.checked);
        examine(&Case { machine, service, status, socket: SOCKET.into(), checked, version: "0.1.0" })
    }
}

fn status() -> StatusResponse {
    let engine = |number: u32| Engine {
        id: format!("vllm-800{number}"),
        version: Some("vllm 0.32.0".into()),
        state: EngineState::Ready.into(),
        state_reason: "answers and makes progress".into(),
        mode: Mode::Enforce.into(),
        pools: vec![Pool { blocks_total: Some(20_000), block_size: Some(16), ..Pool::default() }],
        devices: vec![format!("GPU-{number}")],
        bypass_requests: Some(0),
        settings: Some(EngineSettings {
            version_known: true,
            gpu_memory_utilization: Some(0.9),
            max_num_seqs: Some(256),
            metrics_filtered: Some(true),
            obstacle: Obstacle::Unspecified.into(),
            ..EngineSettings::default()
        }),
        ..Engine::default()
    };
    let source =
        |name: &str| Source { name: name.into(), health: SourceHealth::Ok.into(), ..Source::default() };
    StatusResponse {
        version: "0.1.0".into(),
        uptime_ms: 3_600_000,
        pid: Some(PID),
        engines: vec![engine(0), engine(1)],
        devices: vec![Device::default(), Device { index: 1, ..Device::default() }],
        sources: ["nvml", "discovery", "kernel", "metrics/vllm-8000", "metrics/vllm-8001"]
            .map(source)
            .to_vec(),
        ..StatusResponse::default()
    }
}
