//! The status screen of nodes that are written down here.

use gpuadmit_client::v1::{
    ClassHeadroom, Demand, Device, DeviceHeadroom, DeviceMemory, Engine, EngineState, Event, Headroom, Mode,
    Pool, PriorityClass, ReasonCount, Rejections, RejectionsReading, Severity,
};

use super::*;
use crate::render::text::WIDTH;

const GIB: u64 = 1 << 30;

fn ready_engine() -> Engine {
    let pool = Pool {
        rank: 0,
        blocks_total: Some(4_095),
        block_size: Some(16),
        blocks_reported: Some(1_240),
        blocks_corrected: Some(1_269),
        blocks_corrected_low: Some(1_250),
        blocks_corrected_high: Some(1_300),
        blocks_committed: Some(1_900),
        running: Some(12),
        waiting: Some(0),
        age_ms: Some(400),
    };
    Engine {
        id: "vllm-8000".into(),
        address: "http://127.0.0.1:8000".into(),
        version: Some("vllm 0.32.0".into()),
        models: vec!["Qwen/Qwen2.5-0.5B-Instruct".into()],
        state: EngineState::Ready.into(),
        state_reason: "answers /metrics".into(),
        state_for_ms: 180_000,
        mode: Mode::Enforce.into(),
        headroom: Some(Headroom {
            blocks: 2_195,
            blocks_lower: 2_164,
            tokens: 35_120,
            tokens_lower: 34_624,
            age_ms: 400,
        }),
        pools: vec![pool],
        max_model_len: Some(32_768),
        reservations: 13,
        orphans: 1,
        ..Default::default()
    }
}

fn device() -> Device {
    Device {
        uuid: "GPU-8f3c1a2e-1111-2222-3333-444455556666".into(),
        name: "NVIDIA H200".into(),
        pci: "00000000:65:00.0".into(),
        memory: Some(DeviceMemory {
            total_bytes: 144 * GIB,
            reserved_bytes: Some(6 * GIB),
            free_bytes: 18 * GIB,
            engine_bytes: Some(108 * GIB),
            co_tenant_bytes: Some(12 * GIB),
            unattributed_bytes: Some(0),
        }),
        headroom: Some(DeviceHeadroom { bytes: 18 * GIB, age_ms: 100 }),
        utilisation_percent: Some(0),
        ..Default::default()
    }
}

fn shown(message: &StatusResponse) -> String {
    let text = status(message, Canvas::PLAIN);
    let wide = text.lines().find(|line| line.chars().count() > WIDTH);
    assert_eq!(wide, None, "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    text
}

fn node(engines: Vec<Engine>, devices: Vec<Device>) -> StatusResponse {
    StatusResponse { version: "0.1.0".into(), engines, devices, ..Default::default() }
}

#[track_caller]
fn assert_shows(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn a_ready_engine_shows_its_pool_requests_and_headroom() {
    let text = shown(&node(vec![ready_engine()], vec![device()]));
    assert_shows(
        &text,
        &[
            "vllm-8000  ready for 3 min 0 s  enforce",
            "Qwen/Qwen2.5-0.5B-Instruct, window 32,768 tokens",
            // 1269 / 4095 = 30.99 %
            "[#####...........] 31 % 1,269 (1,250 to 1,300) of 4,095 blocks",
            "raw 1,240 (400 ms old), committed 1,900, 16 tokens per block",
            "12 running, 0 waiting, unknown bypassing, 13 reserved (1 orphaned)",
            "2,195 blocks = 35,120 tokens, at least 2,164 = 34,624, 400 ms old",
        ],
    );
}

#[test]
fn demand_and_what_is_denied_of_it_have_a_line() {
    let headroom = Headroom { blocks: 2_000, ..Default::default() };
    let batch = ClassHeadroom { priority_class: PriorityClass::Batch.into(), headroom: Some(headroom) };
    let demand =
        Demand { ratio: Some(1.25), occupancy: Some(1.25), prefill: None, age_ms: None, scale_up: true };
    let rejections = Rejections {
        window_ms: 300_000,
        decided: 1_000,
        denied: 30,
        reading: RejectionsReading::Edge.into(),
    };
    let engine = Engine {
        headroom_by_class: vec![batch],
        demand: Some(demand),
        rejections: Some(rejections),
        ..ready_engine()
    };
    assert_shows(
        &shown(&node(vec![engine], vec![])),
        &[
            "batch 2,000 blocks",
            "demand    125.0 % of what it can do, KV cache 125.0 %, prefill unknown,",
            "another engine would help,",
            "3 % of 1,000 denied in the last 5 min 0 s: at the edge",
        ],
    );
}

#[test]
fn device_memory_is_split_with_a_bar() {
    let text = shown(&node(vec![], vec![device()]));
    assert_shows(
        &text,
        &[
            // 24 columns for 144 GiB are 6 GiB each.
            "[EEEEEEEEEEEEEEEEEECCR...] 18.0 GiB free of 144.0 GiB, 100 ms old",
            "E engines 108.0 GiB, C co-tenants 12.0 GiB, U unattributed 0 B,",
            "R reserved 6.0 GiB",
            "0 % busy",
        ],
    );
}

#[test]
fn what_is_missing_is_unknown_and_never_zero() {
    let engine = Engine { id: "e".into(), pools: vec![Pool::default()], ..Default::default() };
    let memory = DeviceMemory { total_bytes: 8 * GIB, free_bytes: 4 * GIB, ..Default::default() };
    let bare = Device { memory: Some(memory), ..Default::default() };
    let text = shown(&node(vec![engine], vec![bare, Device::default()]));
    assert_shows(
        &text,
        &[
            "e  unknown for 0 ms  mode unknown",
            "model     unknown",
            "KV cache  unknown of unknown",
            "raw unknown (age unknown), committed unknown,",
            "unknown tokens per block",
            "unknown running, unknown waiting, unknown bypassing",
            "headroom  unknown",
            "unknown tokens/s per request",
            "unknown busy",
            "E engines unknown, C co-tenants unknown, U unattributed unknown,",
            "[????????????............] 4.0 GiB free of 8.0 GiB, age unknown",
            "memory    unknown",
            "decisions unknown",
        ],
    );
}

#[test]
fn a_node_without_engines_and_devices_says_so() {
    assert_shows(&shown(&node(vec![], vec![])), &["no engine was found", "devices unknown: none was found"]);
}

#[test]
fn a_dead_engine_tells_why() {
    let engine = Engine {
        state: EngineState::Down.into(),
        state_reason: "process 4711 (EngineCore) was killed by SIGKILL".into(),
        ..ready_engine()
    };
    let message = node(vec![engine], vec![]);
    assert_shows(&shown(&message), &["vllm-8000  down for", "killed by SIGKILL"]);
    assert!(
        status(&message, Canvas::new(crate::render::Paint::Colour, 80)).contains("\x1b[1;31mdown\x1b[0m")
    );
}

/// Words of the screen, without the order of its lines.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn every_width_shows_all_of_an_event_and_breaks_no_word() {
    let uuid = "GPU-51300000-1111-2222-3333-444455556666";
    let source = |name: &str| Source {
        name: name.into(),
        health: SourceHealth::Ok.into(),
        age_ms: Some(90),
        detail: "reads every 250 ms, the longest call took 3 ms".into(),
        ..Source::default()
    };
    let event = Event {
        severity: Severity::Critical.into(),
        kind: "XID".into(),
        device: Some(uuid.into()),
        message: format!("device {uuid}: Xid 79: the GPU has fallen off the bus and needs a reset"),
        ..Event::default()
    };
    let mig = Device { uuid: "MIG-1".into(), parent: Some(uuid.into()), index: 2, ..device() };
    let message = StatusResponse {
        sources: vec![source("metrics/vllm-8000-llama-3.3-70b-instruct-fp8"), source("nvml")],
        events: vec![event],
        ..node(vec![ready_engine()], vec![Device { uuid: uuid.into(), index: 1, ..device() }, mig])
    };
    for columns in [60, 80, 100, 132, 200] {
        let text = status(&message, Canvas::new(crate::render::Paint::Plain, columns));
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= columns, "{widest} of {columns}:\n{text}");
        assert!(
            text.contains("\nGPU 1  NVIDIA H200") && text.contains("\nGPU 1 MIG 2  NVIDIA H200"),
            "{text}"
        );
        let said = words("GPU 1: Xid 79: the GPU has fallen off the bus and needs a reset");
        assert!(words(&text).ends_with(&said), "{columns}:\n{text}");
        assert_eq!(text.matches(uuid).count(), 2, "the device and its part: {text}");
        // The name of a source never runs into its health.
        let of_engine = text.lines().find(|line| line.contains("metrics/vllm")).unwrap();
        assert!(words(of_engine).get(1).is_some_and(|word| word == "ok"), "{of_engine}");
        assert!(words(&text).contains(&"longest".to_owned()), "{columns}:\n{text}");
    }
    let widest = |columns| {
        let text = status(&message, Canvas::new(crate::render::Paint::Plain, columns));
        text.lines().map(|line| line.chars().count()).max().unwrap()
    };
    assert!(widest(132) > 100 && widest(100) > 80, "the real width is used");
}

#[test]
fn long_and_hostile_names_neither_break_the_screen_nor_command_it() {
    let long = "x".repeat(256) + "\x1b[2J";
    let engine = Engine {
        id: long.clone(),
        models: vec![long.clone(); 3],
        address: long.clone(),
        version: Some(long.clone()),
        state_reason: long.clone(),
        ..ready_engine()
    };
    let device = Device {
        name: long.clone(),
        uuid: long.clone(),
        problem: long.clone(),
        engines: vec![long.clone()],
        ..device()
    };
    let source = Source { name: long.clone(), detail: long.clone(), ..Default::default() };
    let event = Event { kind: long.clone(), engine: Some(long.clone()), message: long, ..Default::default() };
    let message =
        StatusResponse { sources: vec![source], events: vec![event], ..node(vec![engine], vec![device]) };
    shown(&message);
}

#[test]
fn values_from_a_newer_daemon_are_shown_as_numbers() {
    let engine = Engine { state: 77, mode: 78, ..ready_engine() };
    let counts =
        DecisionCounts { by_reason: vec![ReasonCount { reason: 79, count: 1 }], ..Default::default() };
    let source = Source { name: "s".into(), health: 80, ..Default::default() };
    let event = Event { severity: 81, ..Default::default() };
    let message = StatusResponse {
        decisions: Some(counts),
        sources: vec![source],
        events: vec![event],
        ..node(vec![engine], vec![])
    };
    assert_shows(&shown(&message), &["state 77", "mode 78", "reason 79 1", "health 80"]);
    let wide = status(&message, Canvas::new(crate::render::Paint::Plain, 100));
    assert_shows(&wide, &["severity 81"]);
}

#[test]
fn a_simulated_node_says_so_first_and_decisions_sources_and_events_follow() {
    let counts = DecisionCounts {
        admitted: 1_234,
        denied: 56,
        would_have_denied: 0,
        by_reason: vec![ReasonCount { reason: Reason::KvFull.into(), count: 56 }],
    };
    let source = Source {
        name: "nvml".into(),
        health: SourceHealth::Ok.into(),
        detail: "580.95".into(),
        age_ms: Some(90),
        busy_us: Some(12_345),
    };
    let event = Event {
        cursor: 7,
        unix_ms: 1_796_005_879_000,
        severity: Severity::Warning.into(),
        kind: "ENGINE_SUSPECT".into(),
        engine: Some("vllm-8000".into()),
        device: None,
        message: "12 running, no step for 2 s".into(),
        ..Event::default()
    };
    let message = StatusResponse {
        simulated: true,
        decisions: Some(counts),
        sources: vec![source],
        events: vec![event],
        ..node(vec![], vec![])
    };
    let text = shown(&message);
    assert!(text.starts_with(SIMULATED), "{text}");
    assert_shows(
        &text,
        &[
            "decisions: 1,234 admitted, 56 denied, KV_FULL 56",
            "nvml  ok  90 ms old  12 ms inside its calls  580.95",
            "02:31:19Z * ENGINE_SUSPECT vllm-8000: 12 running, no step for 2 s",
        ],
    );
}
