//! `gpuadmitd` as a program: its command line, its socket, what it tells the service manager, its end.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::Path,
    process::{Command, Output, Stdio},
};

use gpuadmit_tests::{
    binary::binary,
    running::{QUIET, Running, SOON, command, configure, within},
    skip::skip,
};
use nix::sys::signal::Signal;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn check(content: &str) -> Output {
    let folder = folder();
    let file = folder.path().join("c.toml");
    fs::write(&file, content).unwrap();
    Command::new(binary("gpuadmitd")).arg("--check-config").arg("--config").arg(&file).output().unwrap()
}

#[test]
fn sigterm_and_sigint_end_it_well_and_leave_no_socket() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let folder = folder();
        let running = Running::start(folder.path());
        let mode = fs::metadata(folder.path().join("s")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        running.signal(signal);
        assert!(running.wait().success());
        assert!(!folder.path().join("s").exists());
    }
}

#[test]
fn a_second_daemon_on_its_socket_is_refused_with_the_reason() {
    let folder = folder();
    let running = Running::start(folder.path());
    let second = command(folder.path()).arg("--socket").arg(folder.path().join("s")).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("another gpuadmitd serves"), "{}", text(&second.stderr));
    assert!(UnixStream::connect(folder.path().join("s")).is_ok(), "the first still serves");
    drop(running);
}

#[test]
fn the_socket_of_a_killed_daemon_is_taken_over() {
    let folder = folder();
    let killed = Running::start(folder.path());
    killed.signal(Signal::SIGKILL);
    assert!(!killed.wait().success());
    assert!(folder.path().join("s").exists());
    drop(Running::start(folder.path()));
}

#[test]
fn of_two_daemons_started_at_once_one_serves() {
    let folder = folder();
    configure(folder.path(), QUIET);
    let start = || command(folder.path()).arg("--socket").arg(folder.path().join("s")).spawn().unwrap();
    let mut both = [Running(start()), Running(start())];
    let mut ended = || both.iter_mut().filter_map(|one| one.0.try_wait().unwrap()).count();
    within(SOON, || ended() > 0);
    within(SOON, || UnixStream::connect(folder.path().join("s")).is_ok());
    assert_eq!(ended(), 1);
}

#[test]
fn a_good_configuration_is_ok() {
    let output = check("mode = \"observe\"\n");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "ok\n"));
}

#[test]
fn a_bad_configuration_is_told_in_full_and_exits_with_2() {
    let output = check("[limits]\nconnections = 0\n[admission]\nlease_ms = 5\n");
    assert_eq!(output.status.code(), Some(2));
    let expected = "limits.connections: 0 is not allowed; 1 to 4096\n\
                    admission.lease_ms: 5 is not allowed; 1000 to 86400000\n";
    assert_eq!((text(&output.stderr), text(&output.stdout)), (expected, ""));
}

#[test]
fn a_daemon_with_a_bad_configuration_does_not_start_with_another() {
    let folder = folder();
    let file = folder.path().join("c.toml");
    fs::write(&file, "[limits]\nconnections = 0\n").unwrap();
    let output = Command::new(binary("gpuadmitd")).arg("--config").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn it_serves_the_socket_that_systemd_passes() {
    let activate = Path::new("/usr/bin/systemd-socket-activate");
    if !activate.exists() {
        return skip(format!("{} is not installed", activate.display()));
    }
    let folder = folder();
    let socket = folder.path().join("passed");
    let mut command = Command::new(activate);
    command
        .arg("--listen")
        .arg(&socket)
        .arg(binary("gpuadmitd"))
        .arg("--config")
        .arg(configure(folder.path(), QUIET));
    let mut running = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    within(SOON, || UnixStream::connect(&socket).is_ok());
    // The daemon greets each connection with its HTTP/2 settings once the client has sent its preface.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    std::io::Write::write_all(&mut stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut header = [0; 9];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[3], 4, "a SETTINGS frame");
    running.signal(Signal::SIGTERM);
    let journal = BufReader::new(running.0.stderr.take().unwrap());
    assert!(running.wait().success());
    assert!(socket.exists(), "the socket is systemd's to remove");
    assert!(journal.lines().all(|line| !line.unwrap().contains("ERROR")));
}
