//! What `gpuadmitd --simulate` writes where standard error goes to the journal, and where it does not.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::{linux::fs::MetadataExt as _, unix::net::UnixDatagram},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::{sleep, spawn},
    time::{Duration, Instant},
};

use gpuadmit_tests::binary::binary;
use tempfile::TempDir;

/// Everything has happened long before; the machine may be busy.
const DEADLINE: Duration = Duration::from_mins(2);
/// What is told twice is told by then.
const MORE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(50);

/// An engine is killed, the driver hangs.
const SCENARIO: &str = "
[[gpu]]
[[engine]]
name = 'e0'
model = 'm0'
gpus = [0]
[traffic]
requests_per_second = 5
[[incident]]
kind = 'kill'
at_s = 3
engine = 'e0'
restart_after_s = 60
by = 'oom_killer'
[[incident]]
kind = 'nvml_hang'
at_s = 1
gpu = 0
for_s = 60
";

/// One entry of the journal: fields in their order.
#[derive(Debug, PartialEq)]
struct Entry(Vec<(String, String)>);

impl Entry {
    /// Reads the native protocol: `NAME=value`, or the name, eight bytes of length, and the value, each ended by a newline.
    fn parse(mut bytes: &[u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
            let line = std::str::from_utf8(bytes.get(..end).unwrap()).unwrap();
            bytes = bytes.get(end + 1..).unwrap();
            if let Some((name, value)) = line.split_once('=') {
                fields.push((name.to_owned(), value.to_owned()));
                continue;
            }
            let (length, rest) = bytes.split_at(8);
            let length = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
            let value = std::str::from_utf8(rest.get(..length).unwrap()).unwrap();
            assert_eq!(rest.get(length), Some(&b'\n'));
            fields.push((line.to_owned(), value.to_owned()));
            bytes = rest.get(length + 1..).unwrap();
        }
        Self(fields)
    }

    fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let value = values.next();
        assert_eq!(values.next(), None, "{name} once: {self:?}");
        value
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the daemon in `folder`, which has the journal's socket; its standard error is the file `stderr`, which it takes
/// for the journal's stream when `under_the_journal`.
fn start(folder: &Path, under_the_journal: bool, level: &str) -> Running {
    let path = |name: &str| folder.join(name).display().to_string();
    fs::write(path("scenario.toml"), SCENARIO).unwrap();
    let log = format!("[log]\nlevel = {level:?}\njournal_socket = {:?}\n", path("journal"));
    let config = log + "[state]\nenabled = false\n[kernel]\nenabled = false\n[host]\nenabled = false\n";
    fs::write(path("gpuadmit.toml"), config).unwrap();
    let stderr = File::create(path("stderr")).unwrap();
    let about = stderr.metadata().unwrap();
    let mut command = Command::new(binary("gpuadmitd"));
    command.args(["--config", &path("gpuadmit.toml"), "--socket", &path("s")]);
    command.arg(format!("--simulate={}", path("scenario.toml")));
    command.env_remove("JOURNAL_STREAM").stdin(Stdio::null()).stderr(stderr);
    if under_the_journal {
        command.env("JOURNAL_STREAM", format!("{}:{}", about.st_dev(), about.st_ino()));
    }
    Running(command.spawn().unwrap())
}

/// The journal's socket in a folder, and what came there.
struct Journal {
    folder: TempDir,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Journal {
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("journal")).unwrap();
        let entries = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&entries);
        // It ends with the test's process.
        spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(length) = socket.recv(&mut buffer) {
                // An empty one only looks whether somebody listens.
                if length > 0 {
                    let entry = Entry::parse(buffer.get(..length).unwrap());
                    into.lock().unwrap().push(entry);
                }
            }
        });
        Self { folder, entries }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// All entries, once they are `enough` and some time for more has passed.
    fn once(&self, enough: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
        let start = Instant::now();
        while !enough(&self.entries.lock().unwrap()) {
            assert!(start.elapsed() < DEADLINE, "not enough: {:#?}", self.entries.lock().unwrap());
            sleep(PAUSE);
        }
        sleep(MORE);
        std::mem::take(&mut self.entries.lock().unwrap())
    }
}

fn of<'a>(entries: &'a [Entry], event: &str) -> Option<&'a Entry> {
    entries.iter().find(|entry| entry.get("EVENT") == Some(event))
}

#[test]
fn events_are_entries_with_fields_each_once() {
    let journal = Journal::open();
    let _running = start(journal.path(), true, "info");
    let both = |entries: &[Entry]| of(entries, "ENGINE_DOWN").is_some() && of(entries, "NVML_HUNG").is_some();
    let entries = journal.once(both);

    let down = of(&entries, "ENGINE_DOWN").unwrap();
    assert_eq!(down.get("MESSAGE_ID"), Some("f55ec50096c448bc855268b17ad13ff0"));
    assert_eq!(down.get("PRIORITY"), Some("2"), "critical");
    assert_eq!(down.get("SYSLOG_IDENTIFIER"), Some("gpuadmitd"));
    assert_eq!(down.get("ENGINE"), Some("e0"));
    assert_eq!(down.get("MODEL"), Some("m0"));
    assert_eq!(down.get("CAUSE"), Some("KERNEL_OOM"));
    assert_eq!(down.get("DEVICE_UUID"), None);
    assert!(down.get("MESSAGE").unwrap().starts_with("ENGINE_DOWN: engine e0: "), "{down:?}");

    let hung = of(&entries, "NVML_HUNG").unwrap();
    assert_eq!(hung.get("MESSAGE_ID"), Some("3d320889683d4eaca3ad3594423fb9e7"));
    assert_eq!(hung.get("PRIORITY"), Some("4"), "a warning");
    assert_eq!(hung.get("DEVICE_UUID"), Some("GPU-51300000-0000-4000-8000-000000000000"));

    let cursors: Vec<&str> = entries.iter().filter_map(|entry| entry.get("EVENT_CURSOR")).collect();
    let once: BTreeSet<&str> = cursors.iter().copied().collect();
    assert_eq!(once.len(), cursors.len(), "each event once: {cursors:?}");
    assert!(
        (1..=cursors.len()).all(|cursor| once.contains(&*cursor.to_string())),
        "none left out: {cursors:?}"
    );

    let serving = entries.iter().find(|entry| entry.get("VERSION").is_some()).unwrap();
    assert_eq!(serving.get("PRIORITY"), Some("6"));
    assert!(
        serving.get("MESSAGE").unwrap().starts_with("serving version="),
        "fields are to be seen: {serving:?}"
    );
    assert_eq!(fs::read_to_string(journal.path().join("stderr")).unwrap(), "", "nothing twice");
}

#[test]
fn elsewhere_events_are_lines_on_standard_error() {
    let journal = Journal::open();
    let _running = start(journal.path(), false, "info");
    let start = Instant::now();
    let told = || fs::read_to_string(journal.path().join("stderr")).unwrap();
    while !told().contains("ERROR gpuadmitd::event: ENGINE_DOWN: engine e0: ") {
        assert!(start.elapsed() < DEADLINE, "not told: {}", told());
        sleep(PAUSE);
    }
    assert_eq!(journal.once(|_| true), []);
}

#[test]
fn who_asks_for_decisions_gets_them_and_never_a_prompt() {
    let journal = Journal::open();
    let _running = start(journal.path(), true, "trace");
    let start = Instant::now();
    let mut all = journal.once(|entries| of(entries, "ENGINE_READY").is_some());
    let gpuadmit = |arguments: &[&str]| {
        let mut command = Command::new(binary("gpuadmit"));
        let output = command.arg("--socket").arg(journal.path().join("s")).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // So much is logged that the socket does not take all of it.
    let mut answers = String::new();
    loop {
        answers += &gpuadmit(&["admit", "m0", "--text", "open sesame", "--tenant", "ali", "--json"]);
        gpuadmit(&["admit", "another", "--text", "open sesame"]);
        all.extend(journal.once(|_| true));
        let has = |name| all.iter().any(|entry| entry.get(name).is_some());
        if has("RESERVATION") && has("REASON") {
            break;
        }
        assert!(start.elapsed() < DEADLINE, "no decisions: {all:#?}");
    }

    let admitted = all.iter().find(|entry| entry.get("RESERVATION").is_some()).unwrap();
    assert!(answers.contains(admitted.get("RESERVATION").unwrap()), "{answers} {admitted:?}");
    assert_eq!(admitted.get("ENGINE"), Some("e0"));
    assert_eq!(admitted.get("MODEL"), Some("m0"));
    assert_eq!(admitted.get("TENANT"), Some("ali"));
    assert_eq!(admitted.get("PRIORITY"), Some("7"), "for debugging");
    let denied = all.iter().find(|entry| entry.get("REASON").is_some()).unwrap();
    assert_eq!(denied.get("REASON"), Some("UNKNOWN_MODEL"));
    assert_eq!(denied.get("MODEL"), Some("another"));
    assert!(!format!("{all:?}").contains("sesame"), "prompt text is in a log");
}
