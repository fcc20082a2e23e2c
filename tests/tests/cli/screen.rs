//! `gpuadmit top` in a terminal of its own, over a daemon that comes and goes.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use gpuadmit_tests::binary::binary;
use nix::{
    pty::{Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, tcgetattr},
    },
    unistd::Pid,
};
use tempfile::TempDir;

use crate::DEADLINE;

nix::ioctl_write_ptr_bad!(set_size, nix::libc::TIOCSWINSZ, Winsize);

/// The program, and the terminal that it is in.
struct Screen {
    top: Child,
    person: File,
    program: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
    columns: u16,
}

const fn size(columns: u16) -> Winsize {
    Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// What is shown, without escape sequences and blanks: the program skips over blank cells.
fn plain(shown: &[u8]) -> String {
    let text = String::from_utf8_lossy(shown);
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\x1b' {
            characters.by_ref().skip(1).find(char::is_ascii_alphabetic);
        } else if !character.is_whitespace() {
            plain.push(character);
        }
    }
    plain
}

impl Screen {
    fn open(folder: &TempDir) -> Self {
        let ends = openpty(&size(80), None).unwrap();
        let stdio = || Stdio::from(ends.slave.try_clone().unwrap());
        let mut command = Command::new(binary("gpuadmit"));
        command.arg("--socket").arg(folder.path().join("s")).arg("top");
        let top = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let person = File::from(ends.master);
        let shown = Arc::new(Mutex::new(vec![]));
        let (mut reader, sink) = (person.try_clone().unwrap(), Arc::clone(&shown));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self { top, person, program: ends.slave, shown, columns: 80 }
    }

    /// Waits until `text` is shown. Each time the terminal gets another width, so that all is drawn anew.
    fn wait_for(&mut self, text: &str) {
        let started = Instant::now();
        loop {
            self.shown.lock().unwrap().clear();
            self.columns = if self.columns == 80 { 90 } else { 80 };
            let size = size(self.columns);
            // SAFETY: the descriptor is open, and the argument is what the request takes.
            unsafe { set_size(self.program.as_raw_fd(), &raw const size) }.unwrap();
            thread::sleep(Duration::from_millis(1_300));
            let plain = plain(&self.shown.lock().unwrap());
            if plain.contains(text) {
                return;
            }
            assert!(started.elapsed() < DEADLINE, "{text} is not in {plain}");
        }
    }

    /// Asserts that it ended well and that the terminal is as it was.
    fn assert_ended(mut self) {
        let started = Instant::now();
        let status = loop {
            match self.top.try_wait().unwrap() {
                Some(status) => break status,
                None => thread::sleep(Duration::from_millis(20)),
            }
            assert!(started.elapsed() < DEADLINE, "it ends");
        };
        assert_eq!(status.code(), Some(0));
        let modes = tcgetattr(&self.program).unwrap().local_flags;
        assert!(modes.contains(LocalFlags::ECHO | LocalFlags::ICANON), "{modes:?}");
        thread::sleep(Duration::from_millis(100));
        let shown = String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned();
        assert!(shown.contains("\x1b[?1049l") && shown.contains("\x1b[?25h"), "{shown:?}");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

struct Daemon(Child);

impl Daemon {
    fn start(folder: &TempDir) -> Self {
        let mut command = Command::new(binary("gpuadmitd"));
        // A node to which nothing happens.
        let scenario = folder.path().join("scenario.toml");
        std::fs::write(&scenario, "seed = 1\n").unwrap();
        command
            .arg(format!("--simulate={}", scenario.display()))
            .arg("--socket")
            .arg(folder.path().join("s"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn top_outlives_the_daemon_and_leaves_the_terminal_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut screen = Screen::open(&folder);
    screen.wait_for("notconnected,trying");
    let daemon = Daemon::start(&folder);
    screen.wait_for("SIMULATEDgpuadmitd");
    screen.wait_for("sim-0ready");
    drop(daemon);
    screen.wait_for("notconnected,trying(below:");
    let _daemon = Daemon::start(&folder);
    screen.wait_for("SIMULATEDgpuadmitd");
    screen.person.write_all(b"q").unwrap();
    screen.assert_ended();
}

#[test]
fn top_ends_by_a_signal_as_by_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let mut screen = Screen::open(&folder);
    screen.wait_for("notconnected,trying");
    kill(Pid::from_raw(i32::try_from(screen.top.id()).unwrap()), Signal::SIGTERM).unwrap();
    screen.assert_ended();
}

/// What a command that ends by itself writes to a terminal of so many columns.
fn written(folder: &TempDir, columns: u16, arguments: &[&str], no_color: &str) -> String {
    let ends = openpty(&size(columns), None).unwrap();
    let mut command = Command::new(binary("gpuadmit"));
    command.arg("--socket").arg(folder.path().join("s")).args(arguments).env("NO_COLOR", no_color);
    let stdout = Stdio::from(ends.slave.try_clone().unwrap());
    let mut child = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).spawn().unwrap();
    drop((command, ends.slave));
    let (mut reader, mut written) = (File::from(ends.master), vec![]);
    // The last writer's end is an error to the reader of a terminal.
    let _ = reader.read_to_end(&mut written);
    child.wait().unwrap();
    String::from_utf8(written).unwrap()
}

#[test]
fn a_terminal_gets_colour_unless_it_is_unwanted_and_lines_of_its_width() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = Daemon::start(&folder);
    let started = Instant::now();
    while !written(&folder, 80, &["status"], "").contains("ENGINE_READY") {
        assert!(started.elapsed() < DEADLINE, "it is ready");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(written(&folder, 80, &["status"], "").contains("\x1b["));
    for arguments in [
        &["status"][..],
        &["events"],
        &["headroom"],
        &["report"],
        &["explain"],
        &["doctor"],
        &["status", "--help"],
    ] {
        let plain = [arguments, &["--no-color"]].concat();
        for text in [written(&folder, 80, &plain, ""), written(&folder, 80, arguments, "1")] {
            assert!(!text.is_empty() && !text.contains("\x1b["), "{arguments:?}: {text:?}");
        }
    }
    let widest = |columns| {
        let text = written(&folder, columns, &["status", "--no-color"], "");
        text.lines().map(|line| line.trim_end().chars().count()).max().unwrap()
    };
    let widths = [60, 80, 100, 132, 200].map(|columns| (widest(columns), usize::from(columns)));
    assert!(widths.iter().all(|(widest, columns)| widest <= columns), "{widths:?}");
    assert!(widths.is_sorted() && widths[3].0 > 80, "{widths:?}");
}
