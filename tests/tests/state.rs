//! What was learned survives a restart; what is no state of ours is put aside and told.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use gpuadmit_core::{
    guard::{Held, Kept, SizeClass},
    observation::SourceHealth,
    request::{Completion, Outcome, Reference},
    snapshot::SourceSnapshot,
    units::Tokens,
};
use gpuadmit_tests::{
    node_kit::{admitted, request},
    served::{Served, quiet, ready_engine},
};
use gpuadmitd::{
    config::Config,
    handle::Handle,
    state::{Found, MAX_STATE_BYTES, State, Store},
};
use tempfile::{TempDir, tempdir};

fn kept_in(directory: &Path) -> Config {
    let mut config = quiet();
    config.state.enabled = true;
    config.state.path = directory.to_owned();
    config
}

/// Has `count` requests with outputs of `length` tokens.
fn teach(handle: &Handle, count: u64, length: u64) {
    for _ in 0..count {
        let decision = handle.admit(&request(16, Some(512))).unwrap();
        let id = Reference::Id(admitted(&decision).reservation);
        let output_tokens = Some(Tokens(length));
        let _ = handle.complete(id, Completion { outcome: Outcome::Ok, output_tokens, prompt_tokens: None });
    }
}

/// How the state fares, once that was reported.
async fn fares(served: &Served) -> SourceSnapshot {
    let mut snapshots = served.handle.watch();
    loop {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        if let Some(source) = snapshot.sources.iter().find(|source| &*source.source == "state") {
            return source.clone();
        }
        tokio::time::timeout(Duration::from_secs(20), snapshots.changed()).await.unwrap().unwrap();
    }
}

fn folder_with(content: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let file = folder.path().join("state.json");
    fs::write(&file, content).unwrap();
    (folder, file)
}

#[tokio::test]
async fn what_was_learned_survives_a_restart() {
    let folder = tempdir().unwrap();
    let first = Served::start(kept_in(folder.path()));
    ready_engine(&first.handle);
    teach(&first.handle, 300, 200);
    let learned = first.handle.learned();
    assert_eq!((learned.models.len(), learned.classes.len()), (1, 1));
    first.stop().await;
    let second = Served::start(kept_in(folder.path()));
    assert_eq!(second.handle.learned(), learned);
    assert!(fares(&second).await.detail.starts_with("taken up from "));
}

#[tokio::test]
async fn a_learned_guard_survives_a_restart() {
    let folder = tempdir().unwrap();
    let held = Held {
        engine: "e".into(),
        size: SizeClass::of(Tokens(30_000)),
        deaths: 2,
        configuration: "c".into(),
        left: Duration::from_hours(20),
        probe_in: Duration::from_hours(1),
        pause: Duration::from_hours(1),
    };
    let first = Served::start(kept_in(folder.path()));
    first.handle.take_up_guards(Kept { held: vec![held.clone()], suspected: Vec::new() });
    first.stop().await;
    let second = Served::start(kept_in(folder.path()));
    let kept = second.handle.keep_guards().held;
    assert_eq!(kept.len(), 1);
    assert_eq!((&kept[0].engine, kept[0].size, kept[0].deaths), (&held.engine, held.size, 2));
    // Time runs on while nobody is there; not an hour passes in this test.
    assert!((Duration::from_hours(19)..Duration::from_hours(20)).contains(&kept[0].left), "{kept:?}");
}

#[tokio::test]
async fn without_its_directory_nothing_is_kept_and_status_says_so() {
    let folder = tempdir().unwrap();
    let missing = folder.path().join("missing");
    let served = Served::start(kept_in(&missing));
    let fares = fares(&served).await;
    assert_eq!(fares.health, SourceHealth::Absent);
    assert_eq!(
        fares.detail,
        format!("nothing is kept: there is no directory {} (state.path)", missing.display())
    );
    served.stop().await;
    assert!(!missing.exists());
}

#[tokio::test]
async fn a_foreign_file_is_put_aside_and_the_daemon_serves() {
    let (folder, file) = folder_with(b"precious");
    let served = Served::start(kept_in(folder.path()));
    let fares = fares(&served).await;
    assert_eq!(fares.health, SourceHealth::Degraded);
    assert!(fares.detail.contains("is not used: it is damaged: "), "{}", fares.detail);
    served.stop().await;
    assert_eq!(fs::read(folder.path().join("state.json.refused")).unwrap(), b"precious");
    assert!(matches!(Store::open(folder.path()).unwrap().load(), Found::State(..)), "{}", file.display());
}

#[test]
fn a_refusal_says_what_is_wrong() {
    let large = vec![b' '; usize::try_from(MAX_STATE_BYTES).unwrap() + 1];
    let cases: [(&[u8], &str); 5] = [
        (b"", "it is damaged: EOF"),
        (b"\xff", "it cannot be read: it is not UTF-8 text"),
        (&large, "it is larger than 8388608 bytes"),
        (br#"{"format":"other","version":1}"#, r#"it is "other" version 1, not "gpuadmit-state" version 1"#),
        (br#"{"format":"gpuadmit-state","version":1,"lengths":7}"#, "it is damaged: "),
    ];
    for (content, expected) in cases {
        let (folder, file) = folder_with(content);
        let Found::Refused(refusal, aside) = Store::open(folder.path()).unwrap().load() else {
            panic!("used: {expected}")
        };
        assert!(refusal.to_string().starts_with(expected), "{refusal}");
        assert!(aside.is_some_and(|aside| aside.exists()) && !file.exists());
    }
}

#[test]
fn sections_of_a_newer_daemon_are_ignored() {
    let written = r#"{"boot_id":"b","mono_ns":1,"unix_ms":2}"#;
    let text = format!(r#"{{"format":"gpuadmit-state","version":1,"written":{written},"later":[1]}}"#);
    let (folder, _) = folder_with(text.as_bytes());
    let Found::State(state, written) = Store::open(folder.path()).unwrap().load() else { panic!("refused") };
    assert_eq!((*state, written.unix_ms), (State::default(), 2));
}

#[test]
fn figures_that_no_counting_gives_are_left_out() {
    let reached: Vec<String> = (0..28).map(|_| "1e300".into()).collect();
    let buckets = format!(r#""reached":[{}],"ended":[1.0]"#, reached.join(","));
    let written = r#"{"boot_id":"","mono_ns":0,"unix_ms":0}"#;
    let lengths = format!(r#"{{"models":[{{"model":"m",{buckets}}}],"classes":[]}}"#);
    let text =
        format!(r#"{{"format":"gpuadmit-state","version":1,"written":{written},"lengths":{lengths}}}"#);
    let (folder, _) = folder_with(text.as_bytes());
    let Found::State(state, _) = Store::open(folder.path()).unwrap().load() else { panic!("refused") };
    let handle = Handle::new(gpuadmit_core::settings::Settings::default(), 1);
    handle.take_up(state.lengths.unwrap().into());
    assert_eq!(handle.learned().models.len(), 0);
}

#[test]
fn a_file_half_written_before_a_crash_is_never_read() {
    let folder = tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.save(State::default()).unwrap();
    fs::write(folder.path().join("state.json.new"), "{\"format\":\"gpua").unwrap();
    assert!(matches!(store.load(), Found::State(..)));
    store.save(State::default()).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
