//! Between the node's snapshots, events and decision records and the `gpuadmit.v1` messages that operators read.

use std::time::{Duration, SystemTime};

use gpuadmit_core::{
    counts::DecisionCounts,
    event::{Event, Severity},
    explain::{Record, Terms},
    guard::Held,
    node::Standing,
    observation::{EngineProcess, Obstacle, ProcessRole, SourceHealth},
    request::Class,
    settings::Mode,
    snapshot::{
        Demand, DeviceSnapshot, EngineSettings, EngineSnapshot, EngineState, Headrooms, MemorySplit,
        PoolSnapshot, Rejections, RejectionsReading, Snapshot, SourceSnapshot,
    },
    units::{Blocks, Bytes, Mono},
};
use gpuadmit_proto::v1;

use super::convert::{headroom, millis, reason};
use crate::{clock, handle::Explained, tokens::TokenizerStatus};

/// Wall clock and node's clock, read together, to tell wall-clock times of the node's instants.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    now: Mono,
    unix_ms: u64,
}

impl Clocks {
    pub(super) fn read() -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { now: clock::now(), unix_ms: millis(unix) }
    }

    pub(super) fn unix_ms(self, at: Mono) -> u64 {
        self.unix_ms.saturating_sub(millis(self.now.since(at)))
    }
}

/// What a snapshot says, `uptime` after the daemon's start, without what is the server's own: version, uptime, simulated.
pub(super) fn status(from: &Snapshot, uptime: Duration, events: usize) -> v1::StatusResponse {
    let clocks = Clocks::read();
    let skip = from.events.len().saturating_sub(events);
    v1::StatusResponse {
        epoch: from.epoch & 0x00ff_ffff,
        engines: from.engines.iter().map(|one| engine(one, uptime, clocks.now)).collect(),
        devices: from.devices.iter().map(device).collect(),
        sources: from.sources.iter().map(source).collect(),
        events: from.events.iter().skip(skip).map(|one| event(one, clocks)).collect(),
        decisions: Some(counts(&from.decisions)),
        reservations: from.reservations,
        reservations_limit: from.reservations_limit,
        snapshot_age_ms: Some(millis(clocks.now.since(from.at))),
        ..v1::StatusResponse::default()
    }
}

/// How prompts are counted.
pub(super) fn tokenizers(from: TokenizerStatus) -> v1::Tokenizers {
    let loaded = from.loaded.into_iter().map(|one| v1::Tokenizer {
        model: one.model.as_ref().into(),
        memory_bytes: one.memory_bytes,
        has_chat_template: one.has_template,
        load_ms: millis(one.load_time),
    });
    let absent = from.absent.into_iter();
    v1::Tokenizers {
        limit: u32::try_from(from.most).unwrap_or(u32::MAX),
        loaded: loaded.collect(),
        absent: absent
            .map(|(model, reason)| v1::AbsentTokenizer { model: model.as_ref().into(), reason })
            .collect(),
        texts: from.texts,
        counted: from.counted,
        uncounted: from.uncounted,
    }
}

fn counts(from: &DecisionCounts) -> v1::DecisionCounts {
    let by_reason = from.by_reason.iter();
    v1::DecisionCounts {
        admitted: from.admitted,
        denied: from.denied,
        would_have_denied: from.would_have_denied,
        by_reason: by_reason
            .map(|&(why, count)| v1::ReasonCount { reason: reason(why).into(), count })
            .collect(),
    }
}

fn engine(from: &EngineSnapshot, uptime: Duration, now: Mono) -> v1::Engine {
    v1::Engine {
        id: from.engine.as_ref().into(),
        address: from.address.as_ref().into(),
        version: from.version.clone(),
        models: from.models.iter().map(|model| model.as_ref().into()).collect(),
        state: state(from.state).into(),
        state_reason: from.state_reason.clone(),
        state_for_ms: millis(now.since(from.state_since)),
        mode: mode(from.mode).into(),
        headroom: from.headroom.map(headroom),
        pools: from.pools.iter().map(pool).collect(),
        max_model_len: from.max_model_len.map(|tokens| tokens.0),
        devices: from.devices.iter().map(|uuid| uuid.as_ref().into()).collect(),
        processes: from.processes.iter().map(process).collect(),
        reservations: from.reservations,
        orphans: from.orphans,
        tokens_per_second_per_request: from.token_rate,
        scrape_interval_ms: from.scrape_interval.map(millis),
        scrape_cpu_share: from.scrape_cpu_share,
        bypass_requests: from.bypass_requests,
        headroom_by_class: class_headrooms(&from.headrooms),
        demand: Some(demand(&from.demand)),
        rejections: Some(rejections(from.rejections, uptime)),
        guards: from.guards.iter().map(guard).collect(),
        queued: from.queued,
        settings: Some(settings(&from.settings)),
    }
}

fn settings(from: &EngineSettings) -> v1::EngineSettings {
    v1::EngineSettings {
        version_known: from.version_known,
        gpu_memory_utilization: from.gpu_memory_utilization,
        max_num_seqs: from.max_num_seqs,
        max_num_batched_tokens: from.max_num_batched_tokens,
        statistics_off: from.statistics_off,
        metrics_filtered: from.metrics_filtered,
        obstacle: from.obstacle.map_or(v1::Obstacle::Unspecified, obstacle).into(),
    }
}

const fn obstacle(from: Obstacle) -> v1::Obstacle {
    match from {
        Obstacle::Tls => v1::Obstacle::Tls,
        Obstacle::Grpc => v1::Obstacle::Grpc,
        Obstacle::Headless => v1::Obstacle::Headless,
        Obstacle::RelativeSocket => v1::Obstacle::RelativeSocket,
    }
}

fn class_headrooms(from: &Headrooms) -> Vec<v1::ClassHeadroom> {
    let known = from.by_class().into_iter().filter_map(|(of, room)| Some((of, room?)));
    known
        .map(|(of, room)| v1::ClassHeadroom {
            priority_class: class(of).into(),
            headroom: Some(headroom(room)),
        })
        .collect()
}

fn demand(from: &Demand) -> v1::Demand {
    v1::Demand {
        ratio: from.ratio,
        occupancy: from.occupancy,
        prefill: from.prefill,
        age_ms: from.age.map(millis),
        scale_up: from.scale_up,
    }
}

/// A daemon that has just been started has watched for less than a whole window.
fn rejections(from: Rejections, uptime: Duration) -> v1::Rejections {
    let reading = match from.reading {
        None => v1::RejectionsReading::Unspecified,
        Some(RejectionsReading::Unused) => v1::RejectionsReading::Unused,
        Some(RejectionsReading::Fine) => v1::RejectionsReading::Fine,
        Some(RejectionsReading::Edge) => v1::RejectionsReading::Edge,
        Some(RejectionsReading::Strained) => v1::RejectionsReading::Strained,
        Some(RejectionsReading::LosingUsers) => v1::RejectionsReading::LosingUsers,
    };
    v1::Rejections {
        window_ms: millis(from.window.min(uptime)),
        decided: from.decided,
        denied: from.denied,
        reading: reading.into(),
    }
}

fn class(from: Class) -> v1::PriorityClass {
    match from {
        Class::Interactive => v1::PriorityClass::Interactive,
        Class::Standard => v1::PriorityClass::Standard,
        Class::Batch => v1::PriorityClass::Batch,
    }
}

/// Headroom of those engines that `wanted` names; all without.
pub(super) fn engine_headrooms(from: &Snapshot, wanted: Option<&str>) -> Vec<v1::EngineHeadroom> {
    let engines = from.engines.iter().filter(|one| wanted.is_none_or(|id| id == one.engine.as_ref()));
    engines
        .map(|one| v1::EngineHeadroom {
            engine: one.engine.as_ref().into(),
            state: state(one.state).into(),
            headroom: one.headroom.map(headroom),
        })
        .collect()
}

fn pool(from: &PoolSnapshot) -> v1::Pool {
    let blocks = |blocks: Blocks| blocks.0;
    v1::Pool {
        rank: from.rank,
        blocks_total: from.total.map(blocks),
        block_size: from.block_size,
        blocks_reported: from.reported.map(blocks),
        blocks_corrected: from.corrected.map(|(_, estimate, _)| estimate.0),
        blocks_corrected_low: from.corrected.map(|(low, _, _)| low.0),
        blocks_corrected_high: from.corrected.map(|(_, _, high)| high.0),
        blocks_committed: from.committed.map(blocks),
        running: from.running,
        waiting: from.waiting,
        age_ms: from.age.map(millis),
    }
}

fn process(from: &EngineProcess) -> v1::Process {
    let role = match from.role {
        ProcessRole::ApiServer => v1::ProcessRole::ApiServer,
        ProcessRole::EngineCore => v1::ProcessRole::EngineCore,
        ProcessRole::Worker => v1::ProcessRole::Worker,
        ProcessRole::Helper => v1::ProcessRole::Helper,
    };
    v1::Process { pid: from.pid, role: role.into() }
}

fn device(from: &DeviceSnapshot) -> v1::Device {
    let age = from.age;
    let free =
        |split: MemorySplit| Some(v1::DeviceHeadroom { bytes: split.memory.free.0, age_ms: millis(age?) });
    v1::Device {
        uuid: from.uuid.as_ref().into(),
        index: from.index,
        name: from.name.clone(),
        pci: from.pci.clone(),
        parent: from.parent.as_ref().map(|uuid| uuid.as_ref().into()),
        memory: from.memory.map(memory),
        headroom: from.memory.and_then(free),
        utilisation_percent: from.utilisation_percent,
        engines: from.engines.iter().map(|engine| engine.as_ref().into()).collect(),
        problem: from.problem.clone(),
    }
}

fn memory(from: MemorySplit) -> v1::DeviceMemory {
    let bytes = |bytes: Bytes| bytes.0;
    v1::DeviceMemory {
        total_bytes: from.memory.total.0,
        reserved_bytes: from.memory.reserved.map(bytes),
        free_bytes: from.memory.free.0,
        engine_bytes: from.engine.map(bytes),
        co_tenant_bytes: from.co_tenant.map(bytes),
        unattributed_bytes: from.unattributed.map(bytes),
    }
}

fn source(from: &SourceSnapshot) -> v1::Source {
    let health = match from.health {
        SourceHealth::Ok => v1::SourceHealth::Ok,
        SourceHealth::Degraded => v1::SourceHealth::Degraded,
        SourceHealth::Failed => v1::SourceHealth::Failed,
        SourceHealth::Absent => v1::SourceHealth::Absent,
    };
    v1::Source {
        name: from.source.as_ref().into(),
        health: health.into(),
        detail: from.detail.clone(),
        age_ms: Some(millis(from.age)),
        busy_us: from.busy.map(|busy| u64::try_from(busy.as_micros()).unwrap_or(u64::MAX)),
    }
}

pub(super) fn guard(from: &Held) -> v1::Guard {
    v1::Guard {
        engine: from.engine.as_ref().into(),
        prompt_tokens_min: from.size.shortest().0,
        prompt_tokens_max: from.size.longest().0,
        deaths: from.deaths,
        configuration: from.configuration.clone(),
        left_ms: millis(from.left),
        probe_in_ms: millis(from.probe_in),
    }
}

pub(super) fn event(from: &Event, clocks: Clocks) -> v1::Event {
    let severity = match from.kind.severity() {
        Severity::Info => v1::Severity::Info,
        Severity::Warning => v1::Severity::Warning,
        Severity::Critical => v1::Severity::Critical,
    };
    v1::Event {
        cursor: from.cursor,
        unix_ms: clocks.unix_ms(from.at),
        severity: severity.into(),
        kind: from.kind.as_str().into(),
        engine: from.engine.as_ref().map(|engine| engine.as_ref().into()),
        device: from.device.as_ref().map(|device| device.as_ref().into()),
        message: from.message.clone(),
        cause: from.cause.map(|cause| cause.as_str().into()),
        caused_by: from.caused_by,
    }
}

/// A decision's record and where its reservation stands.
pub(super) fn explained((record, standing): &Explained, clocks: Clocks) -> v1::DecisionRecord {
    let standing = standing.map(|standing| match standing {
        Standing::Live => "live",
        Standing::Orphan => "orphan",
        Standing::Ended => "ended",
    });
    v1::DecisionRecord {
        unix_ms: clocks.unix_ms(record.at),
        reservation_id: record.reservation.map(|id| id.0),
        model: record.model.as_ref().into(),
        engine: record.engine.as_ref().map(|engine| engine.as_ref().into()),
        tenant: Some(record.tenant.as_ref()).filter(|tenant| !tenant.is_empty()).map(Into::into),
        priority_class: class(record.class).into(),
        denied: record.denied.map(|why| reason(why).into()),
        observed_reason: record.observed.map(|why| reason(why).into()),
        terms: record.terms.as_ref().map(terms),
        reservation_state: standing.map(Into::into),
        message: sentence(record),
    }
}

fn terms(from: &Terms) -> v1::Terms {
    v1::Terms {
        rank: from.rank,
        reported: from.reported.map(|blocks| blocks.0),
        age_ms: from.age.map(millis),
        growth: from.growth.0,
        unseen: from.unseen.0,
        ended: from.ended.0,
        bypass: from.bypass.0,
        need: from.need.0,
        limit: from.limit.map(|blocks| blocks.0),
        prompt_tokens: from.prompt.0,
        output_tokens: from.output.0,
        reservations: from.reservations,
        peak_mean: from.peak.map(|peak| peak.mean.0),
        peak_spread: from.peak.map(|peak| peak.spread.0),
        peak_in_tokens: from.peak.map(|peak| peak.tokens.0),
    }
}

/// The decision in one sentence.
fn sentence(record: &Record) -> String {
    let engine = record.engine.as_deref().map(|engine| format!(" at {engine}")).unwrap_or_default();
    let verdict = match (record.denied, record.observed) {
        (Some(why), _) => format!("denied{engine}: {why}"),
        (None, Some(why)) => format!("admitted{engine}, where enforce mode would have denied: {why}"),
        (None, None) => format!("admitted{engine}"),
    };
    let Some(terms) = record.terms.as_ref() else { return verdict };
    let or_unknown = |blocks: Option<Blocks>| blocks.map_or("unknown".into(), |blocks| blocks.0.to_string());
    format!(
        "{verdict}; reported {} + growth {} + unseen {} − ended {} + bypass {} + need {} against {} blocks",
        or_unknown(terms.reported),
        terms.growth.0,
        terms.unseen.0,
        terms.ended.0,
        terms.bypass.0,
        terms.need.0,
        or_unknown(terms.limit),
    )
}

/// Number of a state in the API.
pub(crate) fn state_number(state: EngineState) -> i32 {
    self::state(state).into()
}

fn state(from: EngineState) -> v1::EngineState {
    match from {
        EngineState::Starting => v1::EngineState::Starting,
        EngineState::Ready => v1::EngineState::Ready,
        EngineState::Draining => v1::EngineState::Draining,
        EngineState::Suspect => v1::EngineState::Suspect,
        EngineState::Stalled => v1::EngineState::Stalled,
        EngineState::Asleep => v1::EngineState::Asleep,
        EngineState::Unknown => v1::EngineState::Unknown,
        EngineState::Down => v1::EngineState::Down,
    }
}

pub(super) fn mode(from: Mode) -> v1::Mode {
    match from {
        Mode::Enforce => v1::Mode::Enforce,
        Mode::Observe => v1::Mode::Observe,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpuadmit_core::request::Reason;

    use super::*;

    #[test]
    fn wall_clock_times_count_back_from_now() {
        let clocks = Clocks { now: Mono(5_000_000_000), unix_ms: 1_700_000_000_000 };
        assert_eq!(clocks.unix_ms(Mono(4_500_000_000)), 1_699_999_999_500);
        assert_eq!(clocks.unix_ms(Mono(6_000_000_000)), 1_700_000_000_000);
    }

    #[test]
    fn a_record_tells_its_sum_in_one_sentence() {
        let terms = Terms { need: Blocks(7), limit: Some(Blocks(10)), growth: Blocks(4), ..Terms::default() };
        let record = Record {
            at: Mono(0),
            reservation: None,
            model: "m".into(),
            engine: Some(Arc::from("vllm-8000")),
            tenant: "".into(),
            class: Class::Standard,
            denied: Some(Reason::KvFull),
            observed: None,
            terms: Some(terms),
        };
        let expected = "denied at vllm-8000: KV_FULL; reported unknown + growth 4 + unseen 0 − ended 0 + bypass 0 \
                        + need 7 against 10 blocks";
        assert_eq!(sentence(&record), expected);
    }
}
