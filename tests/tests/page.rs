//! The shared page: what the daemon writes, a reader of another program reads, in Rust and in C.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use gpuadmit_client::{
    page::{Class, PageError, Reader, path},
    v1::EngineState,
};
use gpuadmit_core::{
    observation::Observation,
    request::{Completion, Outcome, Reference, Request, Verdict},
    settings::Settings,
    units::Span,
};
use gpuadmit_proto::page::{ENGINE_WORDS, Page, Slot};
use gpuadmit_tests::{
    node_kit::request,
    served::{Served, quiet, ready_engine},
    skip::skip,
};
use gpuadmitd::{
    clock,
    handle::Handle,
    page::{Readers, Writer},
};
use tempfile::TempDir;

const BEAT: Duration = Duration::from_millis(100);
const GROUP: Readers = Readers { gid: None, others: false };

/// A node with engine `e` that shows itself on a page.
struct Shown {
    handle: Handle,
    folder: TempDir,
}

impl Shown {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let handle =
            Handle::new(Settings { risk: gpuadmit_core::settings::Risk::NONE, ..Settings::default() }, 7);
        let shown = Self { handle, folder };
        shown.show();
        ready_engine(&shown.handle);
        shown
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("gpuadmit.page")
    }

    fn show(&self) {
        let writer = Writer::create(self.path(), GROUP, 7, BEAT).unwrap();
        self.handle.show_on(Some(writer));
    }

    fn reader(&self) -> Reader {
        Reader::open(&self.path()).unwrap()
    }
}

#[test]
fn each_decision_shows_at_once() {
    let shown = Shown::new();
    let reader = shown.reader();
    let blocks = || reader.engine("e").unwrap().headroom(Class::Standard).unwrap().blocks;
    assert_eq!(reader.engine("e").unwrap().state(), EngineState::Ready);
    assert_eq!(blocks(), 100);
    let ask = request(100, Some(60)); // 10 blocks of 16 tokens
    let Verdict::Admit(admit) = shown.handle.admit(&ask).unwrap().verdict else { panic!("denied") };
    assert_eq!(blocks(), 90);
    assert!(matches!(shown.handle.admit(&request(2000, Some(60))).unwrap().verdict, Verdict::Deny(_)));
    let engine = reader.engine("e").unwrap();
    // The second asks for more than the whole pool: the caller's mistake.
    assert_eq!((engine.reservations(), engine.decisions()), (1, (1, 0)));
    let completion = Completion { outcome: Outcome::NotSent, output_tokens: None, prompt_tokens: None };
    let _ = shown.handle.complete(Reference::Id(admit.reservation), completion);
    assert_eq!(blocks(), 100);
}

#[test]
fn a_page_says_what_the_snapshot_says_for_every_class() {
    let shown = Shown::new();
    shown.handle.admit(&Request { request_id: Some("r"), ..request(500, None) }).unwrap();
    let reader = shown.reader();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let publishing = shown.handle.clone().publish(BEAT, |_| {});
    let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_millis(10), publishing).await });
    let snapshot = shown.handle.snapshot();
    let page = reader.engine("e").unwrap();
    for (class, expected) in [Class::Interactive, Class::Standard, Class::Batch]
        .into_iter()
        .zip(snapshot.engines[0].headrooms.by_class().map(|(_, headroom)| headroom.unwrap()))
    {
        let shown = page.headroom(class).unwrap();
        assert_eq!((shown.blocks, shown.tokens), (expected.blocks.0, expected.tokens.0));
        assert_eq!(
            (shown.blocks_lower, shown.tokens_lower),
            (expected.blocks_lower.0, expected.tokens_lower.0)
        );
    }
    assert_eq!(reader.engines().unwrap().len(), 1);
    assert_eq!(reader.devices().unwrap(), []);
}

#[test]
fn an_engine_that_dies_shows_at_once_that_it_takes_nothing() {
    let shown = Shown::new();
    let reader = shown.reader();
    let evidence = "killed".into();
    shown.handle.observe(Observation::EngineGone {
        engine: "e".into(),
        span: Span::at(clock::now()),
        evidence,
    });
    let engine = reader.engine("e").unwrap();
    assert_eq!(engine.state(), EngineState::Down);
    assert_eq!(engine.headroom(Class::Interactive).map(|room| room.blocks), Some(0));
}

#[test]
fn an_engine_that_is_not_there_is_an_error() {
    let shown = Shown::new();
    assert!(matches!(shown.reader().engine("other"), Err(PageError::UnknownEngine(_))));
    assert!(matches!(shown.reader().engine(""), Err(PageError::UnknownEngine(_))));
}

#[test]
fn a_page_of_a_daemon_that_stopped_or_hangs_is_stale_and_a_new_one_is_found_in_its_place() {
    let shown = Shown::new();
    let old = shown.reader();
    assert!(old.engine("e").is_ok());
    shown.handle.show_on(None);
    assert!(matches!(old.engine("e"), Err(PageError::Stale)));
    assert!(matches!(Reader::open(&shown.path()), Err(PageError::Open { .. })));
    shown.show();
    let new = shown.reader();
    assert!(new.engine("e").is_ok());
    // No beat comes: nothing publishes here. It may be believed for a second.
    let start = Instant::now();
    while new.engine("e").is_ok() {
        assert!(start.elapsed() < Duration::from_secs(30), "it never becomes stale");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(matches!(new.engine("e"), Err(PageError::Stale)));
}

#[test]
fn a_writer_that_was_killed_leaves_a_page_that_the_next_one_replaces() {
    let shown = Shown::new();
    let old = shown.reader();
    // A writer that is never dropped is one that was killed; so is the file it was about to rename.
    std::mem::forget(Writer::create(shown.path(), GROUP, 8, BEAT).unwrap());
    fs::write(shown.folder.path().join("gpuadmit.page.new"), "half").unwrap();
    shown.show();
    assert_eq!(shown.reader().epoch(), 7);
    assert_eq!(shown.reader().engines().unwrap().len(), 1);
    assert!(matches!(old.engine("e"), Err(PageError::Stale)), "its own writer is gone");
}

#[test]
fn clients_may_read_the_page_and_nobody_may_write_it() {
    let folder = tempfile::tempdir().unwrap();
    for (others, mode) in [(false, 0o440), (true, 0o444)] {
        let path = folder.path().join(format!("{others}.page"));
        let writer = Writer::create(path.clone(), Readers { gid: None, others }, 1, BEAT).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        drop(writer);
    }
    assert_eq!(Readers::of(Some(5), Some(0o140_660)), Readers { gid: Some(5), others: false });
    assert!(Readers::of(None, Some(0o140_666)).others);
}

#[test]
fn what_is_no_page_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p");
    for content in [vec![], vec![0; 100], vec![0; size_of::<Page>()], vec![255; size_of::<Page>()]] {
        fs::write(&path, content).unwrap();
        assert!(matches!(Reader::open(&path), Err(PageError::Foreign { .. })));
    }
}

/// Two writes per microsecond or so against a reader: whatever is read was written as a whole.
#[test]
fn no_read_is_torn() {
    let slot = Slot::<ENGINE_WORDS>::default();
    let done = AtomicBool::new(false);
    let reads = thread::scope(|threads| {
        threads.spawn(|| {
            for round in 1..=300_000_u64 {
                slot.write(&[round; ENGINE_WORDS]);
                if round % 64 == 0 {
                    std::hint::spin_loop();
                }
            }
            done.store(true, Relaxed);
        });
        let (mut reads, mut newest) = (0_u64, 0);
        while !done.load(Relaxed) {
            let Some(words) = slot.read::<ENGINE_WORDS>() else { continue };
            assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
            assert!(words[0] >= newest, "{} after {newest}", words[0]);
            newest = words[0];
            reads += 1;
        }
        reads
    });
    assert!(reads > 0);
    assert_eq!(slot.read(), Some([300_000; ENGINE_WORDS]));
}

#[tokio::test]
async fn a_served_daemon_keeps_its_page_beside_its_socket_until_it_stops() {
    let served = Served::start(quiet());
    ready_engine(&served.handle);
    let file = path(served.socket());
    let reader = Reader::open(&file).unwrap();
    assert_eq!(reader.engine("e").unwrap().headroom(Class::Standard).unwrap().blocks, 100);
    let _folder = served.stop().await;
    assert!(matches!(reader.engine("e"), Err(PageError::Stale)));
    assert!(!file.exists());
}

#[tokio::test]
async fn a_page_that_cannot_be_made_keeps_nothing_from_being_served() {
    let mut config = quiet();
    config.page.enabled = false;
    let served = Served::start(config);
    ready_engine(&served.handle);
    assert!(!path(served.socket()).exists());
}

/// The example in C, compiled by the system's compiler, reads what the daemon writes.
#[test]
fn a_reader_in_c_reads_the_same() {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("headroom_page");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O2", "-I"]).arg(client.join("include"));
    compiler.arg("-o").arg(&program).arg(client.join("examples/headroom_page.c"));
    match compiler.status() {
        Err(error) => return skip(format!("no C compiler (cc): {error}")),
        Ok(status) => assert!(status.success(), "the example does not compile"),
    }
    let shown = Shown::new();
    shown.handle.admit(&request(100, Some(60))).unwrap();
    shown.show();
    let read = |engine: &str| Command::new(&program).arg(shown.path()).arg(engine).output().unwrap();
    let output = read("e");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.starts_with("state 2\ninteractive 90 blocks 1440 tokens at least "), "{text}");
    // Batch may have 65 of the 100 blocks.
    assert!(text.contains("\nbatch 55 blocks 880 tokens"), "{text}");
    let output = read("other");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "other: no engine has this id\n");
}
