//! `gpuadmitd` as a service: what it tells the service manager, how it reloads, and how it ends.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::{
    fs,
    io::Read as _,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram, UnixStream},
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use gpuadmit_tests::running::{Manager, QUIET, Running, SOON, command, configure, within};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A daemon, its service manager, and the folder of both.
fn managed(content: &str) -> (Running, Manager, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), content);
    let mut manager = Manager::listen(folder.path());
    let mut command = command(folder.path());
    command.arg("--socket").arg(folder.path().join("s")).stderr(Stdio::piped());
    command.env("NOTIFY_SOCKET", manager.address()).env("WATCHDOG_USEC", "400000");
    let running = Running(command.spawn().unwrap());
    manager.until("READY=1");
    (running, manager, folder)
}

/// What it wrote to its journal.
fn journal(mut running: Running) -> String {
    running.signal(Signal::SIGTERM);
    let mut journal = running.0.stderr.take().unwrap();
    assert!(running.wait().success());
    let mut text = String::new();
    journal.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_service_manager_is_told_of_start_life_and_end() {
    let (running, mut manager, folder) = managed(QUIET);
    assert!(UnixStream::connect(folder.path().join("s")).is_ok(), "ready means that it answers");
    manager.until("STATUS=0 of 0 engines ready");
    manager.told.clear();
    manager.until("WATCHDOG=1");
    running.signal(Signal::SIGTERM);
    manager.until("STOPPING=1");
    assert!(running.wait().success());
}

#[test]
fn an_abstract_socket_is_told_as_well() {
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), QUIET);
    let name = format!("gpuadmit-test-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut command = command(folder.path());
    command.arg("--socket").arg(folder.path().join("s")).env("NOTIFY_SOCKET", format!("@{name}"));
    let running = Running(command.spawn().unwrap());
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1\n");
    running.signal(Signal::SIGTERM);
    assert!(running.wait().success());
}

#[test]
fn a_service_manager_that_is_away_costs_one_line_and_is_told_when_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), QUIET);
    let mut command = command(folder.path());
    command.arg("--socket").arg(folder.path().join("s")).stderr(Stdio::piped());
    command.env("NOTIFY_SOCKET", folder.path().join("notify"));
    let running = Running(command.spawn().unwrap());
    within(SOON, || UnixStream::connect(folder.path().join("s")).is_ok());
    // Snapshots are published ten times a second.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let mut manager = Manager::listen(folder.path());
    manager.until("READY=1");
    manager.until("STATUS=0 of 0 engines ready");
    let journal = journal(running);
    assert_eq!(journal.matches("cannot tell the service manager").count(), 1, "{journal}");
}

#[test]
fn a_good_file_is_taken_over_and_what_waits_for_a_restart_is_named() {
    let (running, mut manager, folder) = managed(QUIET);
    let new = format!("mode = \"observe\"\n{QUIET}[limits]\nconnections = 7\n");
    configure(folder.path(), &new);
    manager.told.clear();
    running.signal(Signal::SIGHUP);
    manager.until("RELOADING=1");
    assert!(manager.told.contains("MONOTONIC_USEC="), "{}", manager.told);
    manager.until("READY=1");
    manager.until("restart to change limits.connections");
    let journal = journal(running);
    assert!(journal.contains("the configuration is reloaded") && journal.contains("mode"), "{journal}");
}

#[test]
fn a_bad_file_changes_nothing_and_why_is_in_the_status_until_a_good_one() {
    let (running, mut manager, folder) = managed(QUIET);
    configure(folder.path(), "[admission]\nceiling = 7.0\n[limits]\nworkers = 0\n");
    manager.told.clear();
    running.signal(Signal::SIGHUP);
    manager.until("RELOADING=1");
    manager.until("READY=1");
    manager.until("reload refused: limits.workers: 0 is not allowed; ");
    manager.until(". admission.ceiling: 7.0 is not allowed; more than 0, at most 1");
    configure(folder.path(), QUIET);
    manager.told.clear();
    running.signal(Signal::SIGHUP);
    manager.until("0 reservations\n");
    let journal = journal(running);
    let refused: Vec<_> = journal.lines().filter(|line| line.contains("is not allowed")).collect();
    assert!(
        matches!(&refused[..], [line] if line.contains("workers") && line.contains("ceiling")),
        "{journal}"
    );
    assert!(journal.contains(r#"the configuration is reloaded changed="nothing""#), "{journal}");
    assert!(journal.lines().any(|line| line.ends_with(" stops")), "{journal}");
}

#[test]
fn a_file_that_is_gone_changes_nothing() {
    let (running, mut manager, folder) = managed(QUIET);
    fs::remove_file(folder.path().join("gpuadmit.toml")).unwrap();
    running.signal(Signal::SIGHUP);
    manager.until("reload refused: cannot read");
    assert!(UnixStream::connect(folder.path().join("s")).is_ok(), "it goes on");
}

/// The fake NVML as built beside the tests.
fn fake_nvml(folder: &Path) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().unwrap().join("libgpuadmit_fake_nvml.so");
    let library = folder.join("libnvidia-ml.so.1");
    std::os::unix::fs::symlink(built, &library).unwrap();
    library
}

#[test]
fn a_hung_driver_does_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let library = fake_nvml(folder.path());
    let world = folder.path().join("world.json");
    let device = r#"{"uuid":"GPU-41","pci":"00000000:41:00.0","name":"NVIDIA H200",
        "memory":{"total":100,"reserved":1,"used":39,"free":60},"hang":["nvmlDeviceGetMemoryInfo_v2"]}"#;
    fs::write(&world, format!(r#"{{"driver":"580.82.07","devices":[{device}]}}"#)).unwrap();
    let quiet = "[vllm]\ndiscover = false\n[state]\nenabled = false\n[prometheus]\nenabled = false\n";
    configure(folder.path(), &format!("{quiet}[nvml]\nlibrary = {library:?}\ncall_deadline_ms = 100\n"));
    let mut command = command(folder.path());
    command.arg("--socket").arg(folder.path().join("s")).env("GPUADMIT_FAKE_NVML", &world);
    let running = Running(command.spawn().unwrap());
    // A child belongs to the thread that started it.
    let threads = format!("/proc/{}/task", running.0.id());
    let children = || -> String {
        let threads = fs::read_dir(&threads).into_iter().flatten().flatten();
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok()).collect()
    };
    within(SOON, || UnixStream::connect(folder.path().join("s")).is_ok());
    within(SOON, || !children().trim().is_empty());
    let child = children().trim().to_owned();
    std::thread::sleep(std::time::Duration::from_millis(500));
    running.signal(Signal::SIGTERM);
    let start = Instant::now();
    assert!(running.wait().success());
    eprintln!("ended {:?} after SIGTERM", start.elapsed());
    // The child is not left behind either.
    within(SOON, || !Path::new(&format!("/proc/{child}")).exists());
}
