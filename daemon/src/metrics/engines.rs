//! Engines: their state, room, use, and how well they were judged.

use std::{fmt, time::Duration};

use gpuadmit_core::{
    request::Headroom,
    settings::Mode,
    snapshot::{EngineSnapshot, EngineState, PoolSnapshot},
    units::Blocks,
};
use prometheus_client::encoding::EncodeGaugeValue;

use super::{node::class, sheet::Sheet};

const STATES: [(EngineState, &str); 8] = [
    (EngineState::Starting, "starting"),
    (EngineState::Ready, "ready"),
    (EngineState::Draining, "draining"),
    (EngineState::Suspect, "suspect"),
    (EngineState::Stalled, "stalled"),
    (EngineState::Asleep, "asleep"),
    (EngineState::Unknown, "unknown"),
    (EngineState::Down, "down"),
];

pub(super) fn write(sheet: &mut Sheet<'_>, engines: &[EngineSnapshot]) -> fmt::Result {
    identity(sheet, engines)?;
    headroom(sheet, engines)?;
    pools(sheet, engines)?;
    requests(sheet, engines)?;
    scrapes(sheet, engines)?;
    judged(sheet, engines)
}

type Engines<'a> = &'a [EngineSnapshot];

/// One gauge with a value for each engine.
fn each<Value: EncodeGaugeValue>(
    sheet: &mut Sheet<'_>,
    engines: Engines<'_>,
    name: &str,
    help: &str,
    value: impl Fn(&EngineSnapshot) -> Option<Value>,
) -> fmt::Result {
    sheet.gauge(name, help, engines.iter().map(|engine| ([("engine", &*engine.engine)], value(engine))))
}

fn identity(sheet: &mut Sheet<'_>, engines: Engines<'_>) -> fmt::Result {
    let info = engines.iter().map(|engine| {
        let mode = match engine.mode {
            Mode::Enforce => "enforce",
            Mode::Observe => "observe",
        };
        let labels = [
            ("engine", &*engine.engine),
            ("address", &*engine.address),
            ("version", engine.version.as_deref().unwrap_or_default()),
            ("mode", mode),
        ];
        (labels, Some(1_u64))
    });
    sheet.gauge("gpuadmit_engine_info", "Always 1; the labels tell which engine.", info)?;
    let models = engines.iter().flat_map(|engine| {
        engine.models.iter().map(|model| ([("engine", &*engine.engine), ("model", &**model)], Some(1_u64)))
    });
    sheet.gauge("gpuadmit_engine_model_info", "Always 1; a model that the engine serves.", models)?;
    let devices = engines.iter().flat_map(|engine| {
        let held = engine.devices.iter();
        held.map(|device| ([("engine", &*engine.engine), ("device", &**device)], Some(1_u64)))
    });
    sheet.gauge("gpuadmit_engine_device_info", "Always 1; a device that the engine holds.", devices)?;
    let states = engines.iter().flat_map(|engine| {
        STATES.map(|(state, name)| {
            ([("engine", &*engine.engine), ("state", name)], Some(u64::from(engine.state == state)))
        })
    });
    sheet.gauge("gpuadmit_engine_state", "1 for the state that the engine is in.", states)
}

fn headroom(sheet: &mut Sheet<'_>, engines: Engines<'_>) -> fmt::Result {
    let mut family = |name: &str, help: &str, value: fn(Headroom) -> u64| {
        let samples = engines.iter().flat_map(|engine| {
            let by_class = engine.headrooms.by_class().into_iter();
            by_class.map(|(of, room)| ([("engine", &*engine.engine), ("class", class(of))], room.map(value)))
        });
        sheet.gauge(name, help, samples)
    };
    let help = "Blocks that can still be promised to requests of the class.";
    family("gpuadmit_headroom_blocks", help, |room| room.blocks.0)?;
    let help = "The same with the error band subtracted.";
    family("gpuadmit_headroom_lower_blocks", help, |room| room.blocks_lower.0)?;
    let help = "Tokens that can still be promised to requests of the class.";
    family("gpuadmit_headroom_tokens", help, |room| room.tokens.0)?;
    let help = "The same with the error band subtracted.";
    family("gpuadmit_headroom_lower_tokens", help, |room| room.tokens_lower.0)?;
    let help = "Age of the reading that the headroom rests on.";
    each(sheet, engines, "gpuadmit_headroom_age_seconds", help, |engine| seconds(engine.headroom?.age))
}

fn pools(sheet: &mut Sheet<'_>, engines: Engines<'_>) -> fmt::Result {
    let mut blocks = |name: &str, help: &str, value: fn(&PoolSnapshot) -> Option<Blocks>| {
        sheet.gauge(name, help, ranks(engines, |pool| value(pool).map(|blocks| blocks.0)))
    };
    let help = "Blocks of the KV cache that can hold tokens.";
    blocks("gpuadmit_kv_cache_capacity_blocks", help, |pool| pool.total)?;
    let help = "Blocks in use as the engine last reported.";
    blocks("gpuadmit_kv_cache_reported_blocks", help, |pool| pool.reported)?;
    let help = "Blocks in use now by the daemon's reckoning.";
    blocks("gpuadmit_kv_cache_corrected_blocks", help, |pool| Some(pool.corrected?.1))?;
    let help = "Lower end of the band around the corrected use.";
    blocks("gpuadmit_kv_cache_corrected_low_blocks", help, |pool| Some(pool.corrected?.0))?;
    let help = "Upper end of the band around the corrected use.";
    blocks("gpuadmit_kv_cache_corrected_high_blocks", help, |pool| Some(pool.corrected?.2))?;
    let help = "Blocks in use if every live reservation grows to all it may.";
    blocks("gpuadmit_kv_cache_committed_blocks", help, |pool| pool.committed)?;
    let help = "Tokens per block.";
    sheet.gauge("gpuadmit_kv_cache_block_size_tokens", help, ranks(engines, |pool| pool.block_size))?;
    let age = ranks(engines, |pool| seconds(pool.age?));
    sheet.gauge("gpuadmit_kv_cache_reading_age_seconds", "Age of the engine's last reading.", age)?;
    let help = "Requests in the engine's batch as it last reported.";
    sheet.gauge("gpuadmit_engine_running_requests", help, ranks(engines, |pool| pool.running))?;
    let help = "Requests that wait in the engine as it last reported.";
    sheet.gauge("gpuadmit_engine_waiting_requests", help, ranks(engines, |pool| pool.waiting))
}

/// The labels of an engine and its rank.
type OfRank<'a> = ([(&'static str, &'a str); 1], [(&'static str, u32); 1]);

/// A value for each rank of each engine.
fn ranks<'a, Value>(
    engines: Engines<'a>,
    value: impl Fn(&PoolSnapshot) -> Option<Value> + Copy + 'a,
) -> impl Iterator<Item = (OfRank<'a>, Option<Value>)> {
    engines.iter().flat_map(move |engine| {
        let pools = engine.pools.iter();
        pools.map(move |pool| (([("engine", &*engine.engine)], [("rank", pool.rank)]), value(pool)))
    })
}

fn requests(sheet: &mut Sheet<'_>, engines: Engines<'_>) -> fmt::Result {
    let help = "Reservations held, orphans included.";
    each(sheet, engines, "gpuadmit_engine_reservations", help, |engine| Some(engine.reservations))?;
    let help = "Reservations whose gateway is gone, held until the engine shows that they ended.";
    each(sheet, engines, "gpuadmit_engine_orphans", help, |engine| Some(engine.orphans))?;
    let help = "Requests that wait in the daemon for room in the engine.";
    each(sheet, engines, "gpuadmit_engine_queued_requests", help, |engine| Some(engine.queued))?;
    let help = "Requests at the engine that did not come through admission.";
    each(sheet, engines, "gpuadmit_engine_bypass_requests", help, |engine| engine.bypass_requests)?;
    let help = "What is asked of the engine against what it can do; 1 is as much as it can.";
    each(sheet, engines, "gpuadmit_engine_demand_ratio", help, |engine| engine.demand.ratio)?;
    let help = "1 while more has been asked of the engine than it can do, for long.";
    let scale_up = |engine: &EngineSnapshot| Some(u64::from(engine.demand.scale_up));
    each(sheet, engines, "gpuadmit_engine_scale_up", help, scale_up)?;
    let help = "Prompt sizes that are held back from the engine because they ended it before.";
    let guards = |engine: &EngineSnapshot| u64::try_from(engine.guards.len()).ok();
    each(sheet, engines, "gpuadmit_engine_guards", help, guards)?;
    let help = "Measured output tokens per second and running request.";
    let rate = |engine: &EngineSnapshot| engine.token_rate;
    each(sheet, engines, "gpuadmit_engine_request_tokens_per_second", help, rate)?;
    let answered = engines.iter().flat_map(|engine| {
        let split = [("admitted", engine.answered.admitted), ("denied", engine.answered.denied)];
        split.map(|(verdict, count)| ([("engine", &*engine.engine), ("verdict", verdict)], Some(count)))
    });
    let help = "Decisions for the engine, but for the callers' mistakes.";
    sheet.counter("gpuadmit_engine_decisions", help, answered)
}

fn scrapes(sheet: &mut Sheet<'_>, engines: Engines<'_>) -> fmt::Result {
    let help = "Time between two readings of the engine.";
    let interval = |engine: &EngineSnapshot| seconds(engine.scrape_interval?);
    each(sheet, engines, "gpuadmit_engine_scrape_interval_seconds", help, interval)?;
    let help = "CPU that being read costs the engine, share of a core.";
    each(sheet, engines, "gpuadmit_engine_scrape_cpu_ratio", help, |engine| engine.scrape_cpu_share)
}

/// Prediction and truth.
fn judged(sheet: &mut Sheet<'_>, engines: Engines<'_>) -> fmt::Result {
    let mut family = |name: &str, help: &str, value: fn(&EngineSnapshot) -> Option<f64>| {
        sheet.counter(name, help, engines.iter().map(|one| ([("engine", &*one.engine)], value(one))))
    };
    let help = "Sum of the times to the first token predicted for admitted requests.";
    family("gpuadmit_engine_predicted_ttft_seconds", help, |engine| Some(engine.ttft_predicted.sum))?;
    let help = "Sum of the times to the first token that the engine measured, of all its requests.";
    family("gpuadmit_engine_measured_ttft_seconds", help, |engine| Some(engine.ttft_measured?.sum))?;
    let mut family = |name: &str, help: &str, value: fn(&EngineSnapshot) -> Option<u64>| {
        sheet.counter(name, help, engines.iter().map(|one| ([("engine", &*one.engine)], value(one))))
    };
    let help = "Requests in gpuadmit_engine_predicted_ttft_seconds_total.";
    family("gpuadmit_engine_predicted_ttft_requests", help, |engine| Some(engine.ttft_predicted.count))?;
    let help = "Requests in gpuadmit_engine_measured_ttft_seconds_total.";
    family("gpuadmit_engine_measured_ttft_requests", help, |engine| Some(engine.ttft_measured?.count))?;
    let fared = || {
        let split = |engine| [(engine, "due"), (engine, "none")];
        engines.iter().flat_map(split).map(|(engine, denials)| {
            let fared = if denials == "due" { engine.pressed } else { engine.calm };
            ([("engine", &*engine.engine), ("denials", denials)], fared)
        })
    };
    let help =
        "Time in which the engine was watched: within ten seconds after a denial was due, and otherwise.";
    let time = fared().map(|(labels, fared)| (labels, seconds(fared.time)));
    sheet.counter("gpuadmit_engine_watched_seconds", help, time)?;
    let help =
        "Of that, time in which requests waited in the engine. A right denial is one beside which they wait.";
    let queued = fared().map(|(labels, fared)| (labels, seconds(fared.queued)));
    sheet.counter("gpuadmit_engine_watched_waiting_seconds", help, queued)?;
    let help = "Preemptions that the engine counted meanwhile.";
    let preemptions = fared().map(|(labels, fared)| (labels, Some(fared.preemptions)));
    sheet.counter("gpuadmit_engine_preemptions", help, preemptions)
}

const fn seconds(time: Duration) -> Option<f64> {
    Some(time.as_secs_f64())
}
