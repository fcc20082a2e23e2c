//! Faults of a daemon, and of the engines that it sees.

use gpuadmit_client::{
    CallError,
    v1::{EngineState, Mode, Obstacle, SourceHealth},
};

use super::{
    Checked,
    Level::{Error, Note, Warning},
    planted::{CONFIG, PID, Planted, SOCKET},
    tests::Fault,
};

pub(super) const SERVICE: &[Fault] = &[
    (
        "no daemon",
        |m| m.unreachable("Connection refused"),
        "daemon.answers",
        Error,
        "it does not run",
        "enable --now",
    ),
    (
        "a daemon that answers elsewhere",
        |m| {
            m.status =
                Err(CallError::Unreachable { socket: SOCKET.into(), reason: "Connection refused".into() });
        },
        "daemon.answers",
        Error,
        "a gpuadmitd runs (process 4711) but",
        "enable --now",
    ),
    (
        "a daemon that hangs",
        |m| m.status = Err(CallError::TimedOut { socket: SOCKET.into() }),
        "daemon.answers",
        Error,
        "does not answer",
        "journalctl -u gpuadmit",
    ),
    (
        "another version",
        |m| m.status().version = "0.0.9".into(),
        "daemon.version",
        Warning,
        "0.0.9",
        "systemctl restart",
    ),
    ("no user", |m| m.write("/etc/passwd", ""), "daemon.user", Error, "no user gpuadmit", "systemd-sysusers"),
    (
        "the kernel's favourite",
        |m| m.write(&format!("/proc/{PID}/oom_score_adj"), "0\n"),
        "daemon.oom",
        Warning,
        "may kill the daemon",
        "OOMScoreAdjust",
    ),
    ("no socket", |m| m.remove(SOCKET), "socket.file", Error, "callers fail", "gpuadmit.socket"),
    (
        "a file for a socket",
        |m| {
            m.remove(SOCKET);
            m.write(SOCKET, "");
        },
        "socket.file",
        Error,
        "is no socket",
        "rm /run/gpuadmit/gpuadmit.sock",
    ),
    ("a socket for all", |m| m.mode(SOCKET, 0o666), "socket.file", Warning, "every user", "SocketMode=0660"),
    (
        "a socket for the owner",
        |m| m.mode(SOCKET, 0o600),
        "socket.file",
        Warning,
        "may not use it",
        "SocketMode=0660",
    ),
    (
        "a caller who is no member",
        |m| m.write("/proc/self/status", "Uid:\t7 7 7 7\nGid:\t7 7 7 7\nGroups:\t7\n"),
        "socket.member",
        Warning,
        "not in the socket's group gpuadmit",
        "usermod -aG gpuadmit",
    ),
];

pub(super) const CONFIGURATION: &[Fault] = &[
    (
        "an unknown key",
        |m| m.checked = Checked::Refused("socket.pth: unknown key".into()),
        "config.valid",
        Error,
        "socket.pth: unknown key",
        "--check-config",
    ),
    (
        "a file that only root reads",
        |m| m.checked = Checked::Refused("cannot read: Permission denied".into()),
        "config.valid",
        Note,
        "was not checked",
        "as root",
    ),
    (
        "no file",
        |m| {
            m.remove(CONFIG);
            m.checked = Checked::Absent;
        },
        "config.valid",
        Error,
        "does not start",
        "install -D",
    ),
    (
        "a file for all",
        |m| m.mode(CONFIG, 0o666),
        "config.permissions",
        Error,
        "every user may change",
        "chmod o-w",
    ),
    (
        "a file for nobody",
        |m| m.mode(CONFIG, 0o000),
        "config.permissions",
        Error,
        "may not read",
        "chgrp gpuadmit",
    ),
    (
        "a key for all",
        |m| {
            m.write(
                CONFIG,
                "[[engine]]\nid = \"a\"\naddress = \"http://x\"\napi_key_file = \"/etc/gpuadmit/key\"\n",
            );
            m.write("/etc/gpuadmit/key", "secret");
            m.mode("/etc/gpuadmit/key", 0o644);
        },
        "config.keys",
        Warning,
        "every user can read the API key",
        "chmod 0640",
    ),
    (
        "no key",
        |m| m.write(CONFIG, "[[engine]]\nid = \"a\"\napi_key_file = \"/etc/gpuadmit/key\"\n"),
        "config.keys",
        Error,
        "no /etc/gpuadmit/key",
        "write the engine's key",
    ),
    (
        "no state",
        |m| m.remove("/var/lib/gpuadmit"),
        "state.folder",
        Warning,
        "lost with each restart",
        "install -d",
    ),
    (
        "a state that cannot be written",
        |m| m.mode("/var/lib/gpuadmit", 0o555),
        "state.folder",
        Error,
        "may not write",
        "install -d",
    ),
    (
        "no records",
        |m| m.write(CONFIG, "[records]\nenabled = true\n"),
        "records.folder",
        Warning,
        "no decision is recorded",
        "install -d",
    ),
];

fn fail(m: &mut Planted, name: &str, health: SourceHealth, detail: &str) {
    let source = m.status().sources.iter_mut().find(|source| source.name == name).unwrap();
    (source.health, source.detail) = (health.into(), detail.into());
}
pub(super) const ENGINES: &[Fault] = &[
    (
        "greed",
        |m| m.settings().gpu_memory_utilization = Some(0.97),
        "engine.utilization",
        Warning,
        "vllm-8000 takes 0.97",
        "0.92",
    ),
    (
        // 320,000 tokens of KV cache are 156 for each of 2,048 sequences, and 256 for each of 1,250.
        "more sequences than room",
        |m| m.settings().max_num_seqs = Some(2_048),
        "engine.sequences",
        Warning,
        "320000 tokens, 156 for each",
        "--max-num-seqs 1250",
    ),
    (
        "no statistics",
        |m| m.settings().statistics_off = true,
        "engine.statistics",
        Error,
        "--disable-log-stats",
        "start vLLM without",
    ),
    (
        "TLS",
        |m| m.settings().obstacle = Obstacle::Tls.into(),
        "engine.obstacle",
        Warning,
        "vllm-8000 serves TLS (--ssl-certfile",
        "TLS proxy",
    ),
    (
        "a follower",
        |m| m.settings().obstacle = Obstacle::Headless.into(),
        "engine.obstacle",
        Warning,
        "no API server (--headless)",
        "the node that serves the API",
    ),
    (
        "a relative socket",
        |m| m.settings().obstacle = Obstacle::RelativeSocket.into(),
        "engine.obstacle",
        Warning,
        "relative --uds",
        "an absolute path",
    ),
    (
        "gRPC",
        |m| m.settings().obstacle = Obstacle::Grpc.into(),
        "engine.obstacle",
        Warning,
        "no /metrics",
        "without --grpc",
    ),
    (
        "all of /metrics",
        |m| m.settings().metrics_filtered = Some(false),
        "engine.metrics",
        Note,
        "five times",
        "--api-server-count",
    ),
    (
        "an unknown version",
        |m| m.settings().version_known = false,
        "engine.version",
        Warning,
        "only observed",
        "upgrade gpuadmit",
    ),
    (
        "two engines on one device",
        |m| m.engine().devices = vec!["GPU-1".into()],
        "engines.shared",
        Error,
        "vllm-8000 and vllm-8001 are both on GPU-1: they may take 1.80",
        "CUDA_VISIBLE_DEVICES",
    ),
    (
        "two engines that know of one another",
        |m| {
            for engine in &mut m.status().engines {
                engine.devices = vec!["GPU-1".into()];
                engine.settings.as_mut().unwrap().gpu_memory_utilization = Some(0.45);
            }
        },
        "engines.shared",
        Warning,
        "0.90 of it together",
        "CUDA_VISIBLE_DEVICES",
    ),
    (
        "a key wanted",
        |m| fail(m, "metrics/vllm-8000", SourceHealth::Failed, "HTTP 401: set this engine's api_key"),
        "source.failed",
        Error,
        "HTTP 401",
        "api_key_file in an [[engine]] entry with id \"vllm-8000\"",
    ),
    (
        "a driver that hangs",
        |m| fail(m, "nvml", SourceHealth::Failed, "a call has hung for 30 s"),
        "source.failed",
        Error,
        "nvml: a call has hung",
        "nvidia-smi",
    ),
    (
        "engines that are not to be found",
        |m| {
            fail(m, "discovery", SourceHealth::Degraded, "vllm (pid 9) listens in another network namespace");
        },
        "source.degraded",
        Warning,
        "another network namespace",
        "[[engine]]",
    ),
    (
        "what the configuration switches off",
        |m| fail(m, "kernel", SourceHealth::Degraded, "no BPF because switched off"),
        "source.off",
        Note,
        "kernel: no BPF because switched off",
        "",
    ),
    (
        "a frozen engine",
        |m| m.engine().state = EngineState::Stalled.into(),
        "engine.state",
        Error,
        "stalled",
        "events",
    ),
    (
        "a suspect engine",
        |m| m.engine().state = EngineState::Suspect.into(),
        "engine.state",
        Warning,
        "suspect",
        "events",
    ),
    ("no pool", |m| m.engine().pools.clear(), "engine.pool", Warning, "unknown", "cache_config_info"),
    (
        "observe mode",
        |m| m.engine().mode = Mode::Observe.into(),
        "engine.mode",
        Note,
        "only observed",
        "enforce",
    ),
    ("bypass", |m| m.engine().bypass_requests = Some(3), "engine.bypass", Note, "3 requests", "gateway"),
    ("no engine", |m| m.status().engines.clear(), "engines.found", Note, "none", "start vLLM"),
    (
        "a device that is lost",
        |m| m.status().devices.last_mut().unwrap().problem = "GPU is lost".into(),
        "device.problem",
        Warning,
        "device 1: GPU is lost",
        "Xid",
    ),
];
