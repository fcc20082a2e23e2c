//! Records of what went in and what was decided, and their replay.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use gpuadmit_core::{
    book::Learned,
    host::{HostFact, ProcessState, Scheduled},
    observation::{DeviceEvent, EngineReading, Observation, ProcessChange, ProcessEvent, RankReading},
    request::{Class, Completion, Outcome, Prompt, Reference, Request, ReservationId, Verdict},
    units::{Bytes, Span, Tokens},
};
use gpuadmit_tests::{
    binary::binary,
    node_kit::request,
    served::{Served, quiet, ready_engine},
    talk::admitted_one,
};
use gpuadmitd::{
    clock,
    config::Config,
    handle::{Asked, Handle},
    records::{
        self, Bounds, Recorder,
        replay::{Policy, ReplayError, Report, replay},
    },
};
use tempfile::{TempDir, tempdir};

const EPOCH: u32 = 7;

/// A node that is recorded.
struct Recorded {
    handle: Handle,
    recorder: Recorder,
    folder: TempDir,
}

impl Recorded {
    fn start(config: &Config) -> Self {
        Self::bounded(config, 64 << 20, 16)
    }

    fn bounded(config: &Config, file_bytes: u64, files: usize) -> Self {
        let folder = tempdir().unwrap();
        let handle = Handle::new(config.settings(), EPOCH);
        let bounds = Bounds { directory: folder.path().join("records"), file_bytes, files };
        let (journal, recorder) = records::begin(bounds, config, EPOCH, None, false).unwrap();
        handle.record_in(Some(journal));
        Self { handle, recorder, folder }
    }

    /// Ends the records; their files in order.
    fn end(self) -> (TempDir, Vec<PathBuf>) {
        self.handle.record_in(None);
        self.recorder.end();
        let files = files(&self.folder.path().join("records"));
        (self.folder, files)
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// A reading of engine `e` with 100 blocks.
fn reading(used: f64, running: u64, finished: u64) -> Observation {
    let rank = RankReading {
        kv_usage: Some(used),
        running: Some(running),
        waiting: Some(0),
        num_gpu_blocks: Some(101),
        block_size: Some(16),
        finished: Some(finished),
        steps: Some(finished + 1),
        generation_tokens: Some(finished * 40),
        prompt_tokens: Some(finished * 100),
        generation_lengths: vec![(50.0, finished), (f64::INFINITY, finished)],
        ..RankReading::default()
    };
    let span = Span::at(clock::now());
    let interval = Duration::from_secs(1);
    let reading = EngineReading { span, ranks: vec![rank], interval, ..EngineReading::default() };
    Observation::Reading { engine: "e".into(), reading: Box::new(reading) }
}

/// Traffic of every kind that is recorded, chosen by a small generator of its own.
fn traffic(handle: &Handle, rounds: u64) {
    ready_engine(handle);
    let mut random: u64 = 42;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut live: Vec<ReservationId> = Vec::new();
    let mut finished = 0;
    let session = handle.new_session();
    for round in 0..rounds {
        let id = format!("r{}", draw(500));
        let classes = [Class::Interactive, Class::Standard, Class::Batch];
        let ask = Request {
            prompt: if draw(2) == 0 { Prompt::Tokens(Tokens(draw(400))) } else { Prompt::Bytes(draw(900)) },
            class: classes[usize::try_from(draw(3)).unwrap()],
            tenant: ["", "a", "b"][usize::try_from(draw(3)).unwrap()],
            session_key: (draw(3) == 0).then_some("chat"),
            request_id: (draw(2) == 0).then_some(id.as_str()),
            session: (draw(4) == 0).then_some(session),
            ..request(0, (draw(3) > 0).then_some(1 + round % 200))
        };
        if let Ok(decision) = handle.admit(&ask)
            && let Verdict::Admit(admit) = decision.verdict
        {
            live.push(admit.reservation);
        }
        if draw(3) == 0 && !live.is_empty() {
            let id = live.swap_remove(usize::try_from(draw(live.len() as u64)).unwrap());
            let _ = handle.progress(Reference::Id(id), Tokens(3));
            let output_tokens = Some(Tokens(draw(100)));
            let completion =
                Completion { outcome: Outcome::Ok, output_tokens, prompt_tokens: Some(Tokens(5)) };
            let _ = handle.complete(Reference::Id(id), completion);
            finished += 1;
        }
        match draw(40) {
            0 => handle.observe(reading(live.len() as f64 / 100.0, live.len() as u64, finished)),
            1 => handle.session_broken(session),
            2 => {
                let _ = handle.adopt(session, &live);
            }
            _ => {}
        }
    }
}

fn replayed(files: &[PathBuf], policy: &Policy) -> Report {
    replay(files, policy, 5).unwrap()
}

#[test]
fn the_same_policy_decides_the_same_by_the_same_sums() {
    let recorded = Recorded::start(&Config::default());
    traffic(&recorded.handle, 3000);
    let counts = recorded.handle.explain_newest(1024).len();
    assert_eq!(counts, 1024);
    let (_folder, files) = recorded.end();
    let report = replayed(&files, &Policy::Recorded);
    assert!(report.decisions > 2900, "{report}");
    assert_eq!((report.same, report.other_terms), (report.decisions, 0), "{report}");
    assert_eq!((report.lost_lines, report.begins_later), (0, 0));
}

#[test]
fn another_policy_shows_what_it_would_have_decided() {
    let recorded = Recorded::start(&Config::default());
    traffic(&recorded.handle, 3000);
    let (_folder, files) = recorded.end();
    let report = replayed(&files, &Policy::WorstCase);
    // Counted whole, requests take more room: some that were admitted do not fit.
    assert!(report.now_denied.get("KV_FULL").is_some_and(|count| *count > 0), "{report}");
    assert!(report.same < report.decisions && report.same > report.decisions / 4, "{report}");
    assert_eq!(report.examples.len(), 5);
    let text = report.to_string();
    assert!(text.contains("admitted, now denied: KV_FULL"), "{text}");
}

/// Hand-made: 100 blocks; two requests of 60 blocks each, counted whole. Recorded with half the pool, both were denied.
#[test]
fn a_smaller_ceiling_that_was_recorded_is_found_to_have_denied_what_would_fit() {
    let mut config = Config::default();
    (config.admission.ceiling, config.admission.risk_standard) = (0.5, 0.0);
    let recorded = Recorded::start(&config);
    ready_engine(&recorded.handle);
    // One that the engine is not idle with: an idle engine takes what fits the whole pool.
    recorded.handle.admit(&request(16, Some(16))).unwrap();
    for _ in 0..2 {
        let decision = recorded.handle.admit(&request(480, Some(480))).unwrap();
        assert!(matches!(decision.verdict, Verdict::Deny(_)));
    }
    let (folder, files) = recorded.end();
    let policy = folder.path().join("policy.toml");
    fs::write(&policy, "[admission]\nceiling = 1.0\nrisk_standard = 0.0\n").unwrap();
    let report = replayed(&files, &Policy::parse(policy.to_str().unwrap()).unwrap());
    // Each is asked of what really happened: the first was not admitted then, so the second would fit as well.
    assert_eq!(report.now_admitted.get("KV_FULL"), Some(&2), "{report}");
    assert_eq!((report.decisions, report.same), (3, 1));
}

#[test]
fn files_are_bounded_in_size_and_number_and_each_can_be_replayed_alone() {
    let recorded = Recorded::bounded(&Config::default(), 1 << 16, 3);
    traffic(&recorded.handle, 4000);
    let (_folder, files) = recorded.end();
    assert_eq!(files.len(), 3);
    for file in &files {
        // A file ends with the line that makes it too large.
        assert!(fs::metadata(file).unwrap().len() < (1 << 16) + (1 << 14));
    }
    // The newest file may have been begun only just; the one before it is full.
    let alone = replayed(&files[1..2], &Policy::Recorded);
    assert_eq!(alone.begins_later, 1);
    assert!(alone.decisions > 0);
    let all = replayed(&files, &Policy::Recorded);
    assert_eq!(all.begins_later, 1, "one run, without its beginning");
}

#[test]
fn a_run_in_several_files_is_one_run() {
    let recorded = Recorded::bounded(&Config::default(), 1 << 16, 1000);
    traffic(&recorded.handle, 2000);
    let (_folder, files) = recorded.end();
    assert!(files.len() > 2);
    let report = replayed(&files, &Policy::Recorded);
    assert_eq!((report.same, report.other_terms, report.begins_later), (report.decisions, 0, 0), "{report}");
}

#[test]
fn a_configuration_that_was_reloaded_holds_from_there_on_also_for_a_file_that_begins_later() {
    let recorded = Recorded::bounded(&Config::default(), 1 << 16, 1000);
    traffic(&recorded.handle, 100);
    let before = files(&recorded.folder.path().join("records")).len();
    let mut strict = Config::default();
    (strict.admission.ceiling, strict.admission.risk_standard) = (0.3, 0.0);
    recorded.handle.reconfigure(&strict);
    traffic(&recorded.handle, 2000);
    let (_folder, files) = recorded.end();
    let report = replayed(&files, &Policy::Recorded);
    assert_eq!((report.same, report.other_terms), (report.decisions, 0), "{report}");
    // Each later file alone carries the configuration that held when it was begun.
    assert!(files.len() > before + 1);
    let head = fs::read_to_string(&files[before + 1]).unwrap();
    let head: serde_json::Value = serde_json::from_str(head.lines().next().unwrap()).unwrap();
    assert_eq!(head["config"]["admission"]["ceiling"], 0.3);
}

/// A process of engine `e` and what happened to it.
fn process(what: ProcessChange) -> Observation {
    let span = Span::at(clock::now());
    let event = ProcessEvent { span, pid: 1, start_ticks: Some(1), comm: "vllm".into(), watched: true, what };
    Observation::Process(Box::new(event))
}

#[test]
fn facts_of_the_kernel_and_the_devices_are_replayed() {
    let killed = || process(ProcessChange::Exit { code: None, signal: Some(9) });
    let stopped = || {
        let states = vec![ProcessState { pid: 1, start_ticks: 1, state: Scheduled::Stopped }];
        Observation::Host(HostFact::Processes { span: Span::at(clock::now()), states })
    };
    let failed = || {
        process(ProcessChange::AllocationFailed { requested: Some(Bytes(1 << 30)), call: "cuMemAlloc_v2" })
    };
    let xid = || {
        let (uuid, span) = ("GPU-1".into(), Span::at(clock::now()));
        Observation::DeviceEvent { uuid, span, event: DeviceEvent::Xid { code: 79 } }
    };
    let facts: [&dyn Fn() -> Observation; 4] = [&stopped, &failed, &xid, &killed];
    let recorded = Recorded::start(&Config::default());
    ready_engine(&recorded.handle);
    for fact in facts {
        recorded.handle.observe(fact());
        recorded.handle.admit(&request(16, Some(16))).unwrap();
    }
    let last = recorded.handle.admit(&request(16, Some(16))).unwrap();
    assert!(matches!(last.verdict, Verdict::Deny(_)), "{last:?}");
    let (_folder, files) = recorded.end();
    let report = replayed(&files, &Policy::Recorded);
    assert_eq!((report.decisions, report.same, report.other_terms), (5, 5, 0), "{report}");
    let text = fs::read_to_string(&files[0]).unwrap();
    for kind in ["states", "allocation_failed", "xid", "exit"] {
        assert!(text.contains(&format!("\"{kind}\"")), "{kind} is missing");
    }
}

#[test]
fn a_file_says_what_it_is_and_a_line_that_was_cut_off_is_left_out() {
    let recorded = Recorded::start(&Config::default());
    traffic(&recorded.handle, 50);
    let (_folder, files) = recorded.end();
    let text = fs::read_to_string(&files[0]).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&first["format"], &first["version"]), (&"gpuadmit-records".into(), &1.into()));
    let before = replayed(&files, &Policy::Recorded).decisions;
    fs::write(&files[0], &text[..text.len() - 10]).unwrap();
    let after = replayed(&files, &Policy::Recorded).decisions;
    assert!(after == before || after + 1 == before);
}

#[test]
fn what_is_no_record_is_refused_with_its_line() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("f");
    for content in ["", "\n", "{}\n", "{\"format\":\"gpuadmit-records\",\"version\":2}\n", "\u{7f}ELF\n"] {
        fs::write(&file, content).unwrap();
        let error = replay(std::slice::from_ref(&file), &Policy::Recorded, 0).unwrap_err();
        assert!(matches!(error, ReplayError::Foreign { .. }), "{error}");
    }
    let recorded = Recorded::start(&Config::default());
    let (_folder, files) = recorded.end();
    let mut text = fs::read_to_string(&files[0]).unwrap();
    text += "{\"t\":1,\"unheard_of\":{}}\n";
    fs::write(&files[0], text).unwrap();
    let error = replay(&files, &Policy::Recorded, 0).unwrap_err().to_string();
    assert!(error.contains(", line 2: "), "{error}");
}

#[test]
fn learned_lengths_are_part_of_a_run() {
    let teacher = Handle::new(Config::default().settings(), 1);
    traffic(&teacher, 500);
    let learned = teacher.learned();
    assert_ne!(learned, Learned::default());
    let folder = tempdir().unwrap();
    let handle = Handle::new(Config::default().settings(), EPOCH);
    handle.take_up(learned.clone());
    let bounds = Bounds { directory: folder.path().into(), file_bytes: 1 << 24, files: 2 };
    let (journal, recorder) =
        records::begin(bounds, &Config::default(), EPOCH, Some(learned), false).unwrap();
    handle.record_in(Some(journal));
    traffic(&handle, 500);
    handle.record_in(None);
    recorder.end();
    let report = replayed(&files(folder.path()), &Policy::Recorded);
    assert_eq!((report.same, report.other_terms), (report.decisions, 0), "{report}");
}

#[tokio::test]
async fn requests_that_waited_are_replayed_with_their_answers() {
    let mut config = Config::default();
    (config.admission.risk_standard, config.queue.time_ms) = (0.0, 10_000);
    let recorded = Recorded::start(&config);
    let handle = &recorded.handle;
    ready_engine(handle);
    let first = handle.admit(&request(800, Some(640))).unwrap(); // 90 of 100 blocks
    let Verdict::Admit(first) = first.verdict else { panic!("denied") };
    let patient = Request { wait: Duration::from_secs(5), ..request(400, Some(400)) };
    let Asked::Later(granted) = handle.ask(&patient).unwrap() else { panic!("decided") };
    let Asked::Later(left) = handle.ask(&patient).unwrap() else { panic!("decided") };
    drop(left);
    let completion = Completion { outcome: Outcome::NotSent, output_tokens: None, prompt_tokens: None };
    let _ = handle.complete(Reference::Id(first.reservation), completion);
    let granted = granted.await.unwrap();
    assert!(matches!(granted.verdict, Verdict::Admit(_)), "{granted:?}");
    let (_folder, files) = recorded.end();
    let report = replayed(&files, &Policy::Recorded);
    assert_eq!((report.decisions, report.same, report.other_terms), (2, 2, 0), "{report}");
    let other = replayed(&files, &Policy::Forecast);
    assert_eq!((other.decisions, other.not_followed), (2, 0), "{other}");
}

#[tokio::test]
async fn a_served_daemon_records_where_it_is_told_to() {
    let folder = tempdir().unwrap();
    let mut config = quiet();
    (config.records.enabled, config.records.path) = (true, folder.path().join("records"));
    let served = Served::start(config);
    ready_engine(&served.handle);
    for _ in 0..3 {
        admitted_one(&served).await;
        // Long enough for what falls due in the node every quarter of a second.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    served.stop().await;
    let files = files(&folder.path().join("records"));
    let text = fs::read_to_string(&files[0]).unwrap();
    assert!(text.contains("\"timeout\":{}"), "{text}");
    let report = replayed(&files, &Policy::Recorded);
    assert_eq!((report.decisions, report.same, report.other_terms), (3, 3, 0), "{report}");
}

#[test]
fn the_program_replays_and_prints_a_table_or_json() {
    let recorded = Recorded::start(&Config::default());
    traffic(&recorded.handle, 300);
    let (_folder, files) = recorded.end();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(binary("gpuadmitd"));
        command.arg("replay").args(&files).args(arguments).output().unwrap()
    };
    let start = Instant::now();
    let table = String::from_utf8(run(&[]).stdout).unwrap();
    assert!(table.contains("decisions\n") && table.contains("the same\n"), "{table}");
    let json = run(&["--policy", "worst-case", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert!(json["decisions"].as_u64().unwrap() > 250, "{json}");
    assert_eq!(run(&["--policy", "/no/such/file"]).status.code(), Some(2));
    assert!(start.elapsed() < Duration::from_mins(5));
}
