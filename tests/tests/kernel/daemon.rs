//! The whole daemon beside an engine that comes to its end: under the real service manager where there is one.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use gpuadmit_core::{event::Event, observation::ProcessRole, snapshot::EngineState, verdict::Cause};
use gpuadmit_tests::{
    node_kit::request,
    served::{Served, quiet},
};
use tempfile::TempDir;

use crate::{
    cgroup::{self, Group},
    rig::{PATIENCE, is_root, object, skipped},
};

/// The fake engine's program, where it is not where cargo puts it.
const ENGINE: &str = "GPUADMIT_FAKE_VLLM";

/// A fake engine; ended when dropped.
struct Engine {
    port: u16,
    /// Its unit, or its process where there is no service manager.
    run: Run,
    group: String,
    _folder: TempDir,
}

enum Run {
    Unit(String),
    Process {
        child: Child,
        /// Outlives it.
        _group: Group,
    },
}

impl Engine {
    /// In a memory cgroup with a limit. `None`, loudly: not here.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("vllm");
        let built = env::var_os(ENGINE).map_or_else(|| env!("CARGO_BIN_EXE_fake-vllm").into(), PathBuf::from);
        fs::copy(built, &program).unwrap();
        // Free now, and most probably a moment later.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let arguments = ["serve", "tiny", "--port", &port.to_string()].map(str::to_owned);
        let (run, group) = if Path::new("/run/systemd/system").exists() {
            let unit = format!("gpuadmit-engine-{port}.service");
            let limits = [
                format!("MemoryMax={}", cgroup::LIMIT_BYTES),
                "MemorySwapMax=0".into(),
                "OOMPolicy=continue".into(),
            ];
            let mut command = Command::new("systemd-run");
            command.args(["--quiet", "--collect", "--unit", &unit]);
            command.args(limits.iter().flat_map(|limit| ["-p", limit])).arg(&program).args(&arguments);
            assert!(command.status().unwrap().success(), "{command:?}");
            let group = format!("/system.slice/{unit}");
            (Run::Unit(unit), group)
        } else {
            let group = cgroup::limited()?;
            let child = Command::new("sh")
                .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
                .arg(group.members())
                .arg(&program)
                .args(&arguments)
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            let name = group.name().to_owned();
            (Run::Process { child, _group: group }, name)
        };
        let engine = Self { port, run, group, _folder: folder };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < PATIENCE, "the engine does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(engine)
    }

    /// Tells it something; returns its answer.
    fn tell(&self, word: &str) -> String {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(connection, "GET /tell/{word} HTTP/1.1\r\n\r\n").unwrap();
        connection.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// Asks it to stop, as an operator would.
    fn stop(&self) {
        let status = match &self.run {
            Run::Unit(unit) => Command::new("systemctl").args(["stop", "--no-block", unit]).status(),
            Run::Process { child, .. } => {
                Command::new("kill").args(["-TERM", &child.id().to_string()]).status()
            }
        };
        assert!(status.unwrap().success());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        match &mut self.run {
            Run::Unit(unit) => {
                let _ = Command::new("systemctl")
                    .args(["kill", "--signal=KILL", unit])
                    .stderr(Stdio::null())
                    .status();
            }
            Run::Process { child, .. } => {
                // Its EngineCore ends when nobody can tell it anything any more.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// What the daemon tells of an engine's end.
fn verdict(end: impl FnOnce(&Engine)) -> Option<(Engine, Event)> {
    if !is_root() || !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return skipped("the whole daemon with programs takes root and a kernel that describes its types");
    }
    let engine = Engine::start()?;
    let name = format!("vllm-{}", engine.port);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let event = runtime.block_on(async {
        let mut config = quiet();
        config.vllm.discover = true;
        (config.kernel.enabled, config.kernel.object, config.host.enabled) = (true, Some(object()), true);
        let served = Served::start(config);
        until("the engine is ready", || {
            let snapshot = served.handle.snapshot();
            let known = snapshot.engines.iter().find(|known| *known.engine == *name)?;
            let core = known.processes.iter().any(|process| process.role == ProcessRole::EngineCore);
            (core && known.state == EngineState::Ready).then_some(())
        })
        .await;
        end(&engine);
        let event = until("the verdict", || {
            let events = served.handle.events_after(0, usize::MAX).0;
            events.into_iter().find(|event| event.cause.is_some() && event.engine.as_deref() == Some(&*name))
        })
        .await;
        println!("{}: {}", event.cause.unwrap().as_str(), event.message);
        let denied =
            served.handle.admit(&gpuadmit_core::request::Request { model: "tiny", ..request(16, Some(16)) });
        assert!(
            matches!(denied.unwrap().verdict, gpuadmit_core::request::Verdict::Deny(_)),
            "nothing goes to a dead engine"
        );
        served.stop().await;
        event
    });
    Some((engine, event))
}

async fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = there() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not so: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn the_daemon_tells_of_a_memory_limit_that_ended_an_engine() {
    let Some((engine, event)) = verdict(|engine| drop(engine.tell("eat"))) else { return };
    assert_eq!(event.cause, Some(Cause::KernelOom), "{}", event.message);
    assert!(event.message.contains("killed its EngineCore (pid "), "{}", event.message);
    if fs::File::open("/dev/kmsg").is_ok() {
        let group = &engine.group;
        assert!(
            event.message.ends_with(&format!("memory cgroup {group} reached its limit")),
            "{}",
            event.message
        );
    }
}

#[test]
fn the_daemon_tells_a_kill_for_want_of_memory_by_its_sender() {
    let folder = tempfile::tempdir().unwrap();
    let killer = folder.path().join("systemd-oomd");
    fs::copy("/bin/kill", &killer).unwrap();
    let kill = |engine: &Engine| {
        let core = engine.tell("pid");
        assert!(Command::new(&killer).args(["-KILL", &core]).status().unwrap().success());
    };
    let Some((_engine, event)) = verdict(kill) else { return };
    assert_eq!(event.cause, Some(Cause::OomDaemon), "{}", event.message);
    assert!(
        event.message.contains("systemd-oomd (pid ") && event.message.contains("its EngineCore"),
        "{}",
        event.message
    );
}

#[test]
fn the_daemon_tells_an_exit_with_its_code() {
    let Some((_engine, event)) = verdict(|engine| drop(engine.tell("exit"))) else { return };
    assert_eq!(event.cause, Some(Cause::Exit), "{}", event.message);
    assert!(event.message.ends_with("exited with code 3"), "{}", event.message);
}

#[test]
fn the_daemon_tells_a_planned_stop_from_a_loss() {
    let Some((engine, event)) = verdict(Engine::stop) else { return };
    assert_eq!(event.cause, Some(Cause::Stopped), "{}", event.message);
    let by = if matches!(engine.run, Run::Unit(_)) { "systemd (pid 1) sent SIGTERM" } else { "sent SIGTERM" };
    assert!(
        event.message.contains("stopped as planned: ") && event.message.contains(by),
        "{}",
        event.message
    );
}
