//! The report of the node as `gpuadmit.v1` tells it.

use gpuadmit_core::{
    report::{EngineReport, Fared, Hour},
    snapshot::Snapshot,
};
use gpuadmit_proto::v1;

use super::{
    convert::{millis, reason},
    status::{Clocks, mode},
};

/// One engine's hours, with its mode from `now`.
pub(super) fn engine(from: &EngineReport, now: &Snapshot, clocks: Clocks) -> v1::EngineReport {
    let known = now.engines.iter().find(|engine| engine.engine == from.engine);
    v1::EngineReport {
        engine: from.engine.as_ref().into(),
        mode: known.map_or(v1::Mode::Unspecified, |engine| mode(engine.mode)).into(),
        hours: from.hours.iter().map(|one| hour(one, clocks)).collect(),
    }
}

fn hour(from: &Hour, clocks: Clocks) -> v1::ReportHour {
    let counts = from.by_reason();
    v1::ReportHour {
        start_unix_ms: clocks.unix_ms(from.start),
        admitted: from.admitted,
        would_have_denied: from.would_have_denied,
        denied: from.denied,
        by_reason: counts.map(|(why, count)| v1::ReasonCount { reason: reason(why).into(), count }).collect(),
        pressed: Some(fared(from.pressed)),
        calm: Some(fared(from.calm)),
    }
}

fn fared(from: Fared) -> v1::Fared {
    let (time_ms, queued_ms) = (millis(from.time), millis(from.queued));
    v1::Fared { time_ms, queued_ms, preemptions: from.preemptions }
}
