//! Restarts under load, with the socket held by another as systemd does: no call fails, and nothing is promised twice.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::{
    fs,
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt as _, net::UnixListener},
    },
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use gpuadmit_tests::{
    binary::binary,
    load::Load,
    running::{Running, configure},
    truth::Truth,
};
use nix::sys::signal::Signal;
use tokio::{task::spawn_blocking, time::sleep};

/// Blocks of the engine: for some eight requests of the load at once.
const BLOCKS: u64 = 300;
/// Time between two restarts.
const WHILE: Duration = Duration::from_millis(1500);

/// Starts the daemon with the listener as file descriptor 3; the shell knows its own process id.
fn activated(folder: &Path, listener: &UnixListener) -> Running {
    let script = r#"exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" --config "$1""#;
    let listener = OwnedFd::from(listener.try_clone().unwrap());
    let journal = fs::File::options().append(true).create(true).open(folder.join("journal")).unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).arg(binary("gpuadmitd")).arg(folder.join("gpuadmit.toml"));
    Running(command.stdin(Stdio::from(listener)).stderr(journal).spawn().unwrap())
}

async fn end(running: Running, signal: Signal) {
    running.signal(signal);
    let status = spawn_blocking(move || running.wait()).await.unwrap();
    assert_eq!(status.success(), signal == Signal::SIGTERM, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_restart_nor_a_kill_loses_a_call_or_promises_too_much() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (engine, address) = Truth::start(BLOCKS).await.unwrap();
    configure(
        path,
        &format!(
            "[socket]\npath = \"{0}/s\"\n[state]\npath = \"{0}\"\n[nvml]\nenabled = false\n[kernel]\nenabled = false\n\
             [host]\nenabled = false\n[prometheus]\nenabled = false\n[vllm]\ndiscover = false\n\
             [admission]\nrisk_interactive = 0.0\nrisk_standard = 0.0\nrisk_batch = 0.0\n\
             [[engine]]\nid = \"e\"\naddress = \"http://{address}\"\n",
            path.display()
        ),
    );
    let listener = UnixListener::bind(path.join("s")).unwrap();
    fs::set_permissions(path.join("s"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut running = activated(path, &listener);
    let load = Load::start(&path.join("s"), engine.clone(), 24);
    let mut admitted = Vec::new();
    for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGTERM, Signal::SIGKILL] {
        sleep(WHILE).await;
        admitted.push(load.outcome().admitted);
        end(running, signal).await;
        running = activated(path, &listener);
    }
    sleep(WHILE).await;
    let outcome = load.stop().await;
    end(running, Signal::SIGTERM).await;
    let journal = fs::read_to_string(path.join("journal")).unwrap();
    let (most_used, _) = engine.most_used();
    eprintln!("{outcome:?}, most used {most_used} of {BLOCKS}");
    assert!(admitted.is_sorted_by(|before, after| before < after), "each run admitted some: {admitted:?}");
    assert_eq!(outcome.failed, Vec::<String>::new(), "{journal}");
    assert!(outcome.most_promised <= BLOCKS, "{} of {BLOCKS} blocks were promised", outcome.most_promised);
    assert!(most_used <= BLOCKS);
    assert_eq!(journal.matches("promises of the run before are taken over").count(), 4, "{journal}");
    let left = gpuadmitd::promises::read(&path.join("s.promises")).unwrap();
    assert_eq!(left.promises, [], "all requests have ended: nothing is left to hand over");
}
