//! The screen in several sizes, from a node that is written down here.

use std::time::{Duration, Instant};

use gpuadmit_client::v1::{
    DecisionCounts, Device, DeviceMemory, Engine, EngineState, Event, Headroom, Pool, Rejections, Severity,
    StatusResponse,
};
use ratatui::{Terminal, backend::TestBackend, style::Color};

use super::{Sort, Top, Wish};

const GIB: u64 = 1 << 30;

fn engine(id: &str, state: EngineState, used: u64, running: u64, waiting: u64) -> Engine {
    let pool = Pool {
        blocks_total: Some(4_000),
        blocks_corrected: Some(used),
        running: Some(running),
        waiting: Some(waiting),
        ..Pool::default()
    };
    Engine {
        id: id.into(),
        state: state.into(),
        pools: vec![pool],
        headroom: Some(Headroom { tokens: (4_000 - used) * 16, ..Headroom::default() }),
        reservations: running + waiting,
        rejections: Some(Rejections { decided: 1_000, denied: 30, ..Rejections::default() }),
        tokens_per_second_per_request: Some(39.44),
        ..Engine::default()
    }
}

fn device(index: u32, busy: Option<u32>, engines: &[&str]) -> Device {
    let memory = DeviceMemory { total_bytes: 80 * GIB, free_bytes: 8 * GIB, ..DeviceMemory::default() };
    Device {
        index,
        uuid: format!("GPU-{index}"),
        name: "NVIDIA H100 80GB HBM3".into(),
        memory: busy.map(|_| memory),
        utilisation_percent: busy,
        engines: engines.iter().map(|&engine| engine.into()).collect(),
        ..Device::default()
    }
}

fn event(cursor: u64, severity: Severity, kind: &str, engine: &str, message: &str) -> Event {
    Event {
        cursor,
        // 02:31:00Z and as many seconds.
        unix_ms: 1_796_005_860_000 + cursor * 1_000,
        severity: severity.into(),
        kind: kind.into(),
        engine: Some(engine.into()),
        message: message.into(),
        ..Event::default()
    }
}

/// The node after `seconds`: each second 10 more are admitted and, from the fifth on, 2 denied.
fn status(seconds: u64) -> StatusResponse {
    let counts = DecisionCounts {
        admitted: 1_000 + 10 * seconds,
        denied: 2 * seconds.saturating_sub(4),
        ..DecisionCounts::default()
    };
    let unknown = Engine { id: "vllm-8002".into(), state: EngineState::Unknown.into(), ..Engine::default() };
    StatusResponse {
        version: "0.1.0".into(),
        epoch: 7,
        uptime_ms: 60_000 + seconds * 1_000,
        engines: vec![
            engine("vllm-8001", EngineState::Ready, 400 * seconds, 12, 0),
            engine("vllm-8000", EngineState::Stalled, 1_000, 3, 40),
            unknown,
        ],
        devices: vec![
            device(0, Some(100), &["vllm-8000"]),
            device(1, Some(u32::try_from(seconds * 10).unwrap()), &["vllm-8001", "vllm-8002"]),
            device(2, None, &[]),
        ],
        events: vec![
            event(1, Severity::Info, "ENGINE_READY", "vllm-8000", "answers and makes progress"),
            event(2, Severity::Info, "ENGINE_READY", "vllm-8001", "answers and makes progress"),
            event(5, Severity::Warning, "ENGINE_SUSPECT", "vllm-8000", "3 running, no step for 2.6 s"),
            event(
                8,
                Severity::Critical,
                "ENGINE_STALLED",
                "vllm-8000",
                "3 running, no step for 5.2 s, and \x1b[2J",
            ),
        ],
        decisions: Some(counts),
        reservations: 55,
        reservations_limit: 4_096,
        ..StatusResponse::default()
    }
}

/// Looked at each second for ten.
fn top(colour: bool) -> (Top, Instant) {
    let start = Instant::now();
    let mut top = Top::new(colour);
    for seconds in 0..10 {
        top.take(start + Duration::from_secs(seconds), Ok(status(seconds)));
    }
    (top, start + Duration::from_secs(9))
}

fn drawn(top: &Top, now: Instant, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| top.draw(frame, now)).unwrap();
    terminal
}

fn text(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let lines = buffer.content.chunks(usize::from(buffer.area.width));
    let lines = lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>());
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[track_caller]
fn assert_drawn((top, now): &(Top, Instant), name: &str, (width, height): (u16, u16)) {
    let text = text(&drawn(top, *now, width, height));
    let path = format!("{}/src/top/snapshots/{name}{width}x{height}.txt", env!("CARGO_MANIFEST_DIR"));
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text == expected, "{name}{width}x{height} is\n{text}\nand not\n{expected}");
}

/// Engines with long names, MIG instances, and an Xid error.
fn crowded() -> (Top, Instant) {
    const GPU: &str = "GPU-51300000-1111-2222-3333-444455556666";
    let names = ["vllm-8000-llama-3.3-70b-instruct-fp8-production", "vllm-8001-qwen", "e"];
    let engines = names.map(|name| engine(name, EngineState::Ready, 2_000, 7, 1)).into();
    let mig = |index| Device {
        uuid: format!("MIG-{index}"),
        parent: Some(GPU.into()),
        ..device(index, Some(40), &[names[1], names[2]])
    };
    let gpu = Device { uuid: GPU.into(), ..device(0, Some(90), &[names[0]]) };
    let xid = "Xid 79: the GPU has fallen off the bus; its processes are lost and it needs a reset";
    let on = |uuid: &str| Event {
        engine: None,
        device: Some(uuid.into()),
        ..event(3, Severity::Critical, "XID", "", &format!("device {uuid}: {xid}"))
    };
    let stalled = event(4, Severity::Warning, "ENGINE_SUSPECT", names[0], "3 running, no step for 2.6 s");
    let status = StatusResponse {
        engines,
        devices: vec![gpu, mig(0), mig(1)],
        events: vec![on(GPU), on("MIG-1"), stalled],
        ..status(9)
    };
    let (mut top, now) = top(false);
    top.take(now, Ok(status));
    (top, now)
}

#[test]
fn every_size_shows_what_matters_most() {
    for size in [(40, 10), (60, 24), (80, 24), (120, 40)] {
        assert_drawn(&top(false), "", size);
    }
}

#[test]
fn names_and_news_get_the_room_there_is() {
    for size in [(60, 24), (80, 24), (100, 24), (132, 24), (200, 24)] {
        assert_drawn(&crowded(), "crowded-", size);
    }
}

#[test]
fn no_size_is_too_small_or_too_large() {
    let (top, now) = top(true);
    for (width, height) in [(1, 1), (3, 2), (10, 5), (80, 7), (500, 3), (300, 100)] {
        drawn(&top, now, width, height);
    }
}

#[test]
fn without_colour_there_is_none() {
    let coloured = |colour| {
        let (top, now) = top(colour);
        let terminal = drawn(&top, now, 80, 24);
        let cells = terminal.backend().buffer().content.iter();
        cells.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert_eq!(coloured(false), 0);
    assert!(coloured(true) > 0);
}

#[test]
fn a_daemon_that_is_away_leaves_the_last_figures_and_says_so() {
    let mut fresh = Top::new(false);
    let now = Instant::now();
    assert!(text(&drawn(&fresh, now, 80, 24)).starts_with("asking the daemon …\n"));
    fresh.take(now, Err("cannot reach the daemon at /run/s: Connection refused".into()));
    let expected = "not connected, trying: cannot reach the daemon at /run/s: Connection refused\n";
    assert!(text(&drawn(&fresh, now, 80, 24)).starts_with(expected));

    let (mut top, now) = top(false);
    top.take(now + Duration::from_secs(1), Err("no daemon".into()));
    let away = text(&drawn(&top, now + Duration::from_secs(3), 80, 24));
    assert!(away.starts_with("not connected, trying (below: 3.0 s ago): no daemon\n"), "{away}");
    assert!(away.contains("decisions/s: unknown admitted"), "{away}");
    assert!(away.contains("vllm-8001"), "{away}");
    // The daemon is back, with another epoch.
    top.take(now + Duration::from_secs(4), Ok(StatusResponse { epoch: 8, ..status(9) }));
    assert!(text(&drawn(&top, now, 80, 24)).starts_with("gpuadmitd 0.1.0"));
}

#[test]
fn keys_order_engines_scroll_events_and_end_it() {
    let (mut top, now) = top(false);
    let first = |top: &Top| {
        let text = text(&drawn(top, now, 80, 24));
        text.lines().find(|line| line.starts_with("vllm")).unwrap().split(' ').next().unwrap().to_owned()
    };
    assert_eq!((top.sort, first(&top)), (Sort::Name, "vllm-8000".into()));
    assert!(top.wish(Wish::Sort));
    assert_eq!((top.sort, first(&top)), (Sort::Use, "vllm-8001".into()));
    assert!(top.wish(Wish::Sort));
    assert_eq!((top.sort, first(&top)), (Sort::Waiting, "vllm-8000".into()));
    for _ in 0..9 {
        assert!(top.wish(Wish::Older));
    }
    let scrolled = text(&drawn(&top, now, 80, 24));
    assert!(scrolled.contains("EVENTS (3 newer below)\n  02:31:01Z   ENGINE_READY"), "{scrolled}");
    assert!(!scrolled.contains("ENGINE_STALLED"), "{scrolled}");
    assert!(top.wish(Wish::Newer));
    assert!(text(&drawn(&top, now, 80, 24)).contains("EVENTS (2 newer below)"));
    assert!(!top.wish(Wish::Quit));
}
