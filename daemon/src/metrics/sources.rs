//! Where the figures come from.

use std::fmt;

use gpuadmit_core::{observation::SourceHealth, snapshot::SourceSnapshot};

use super::sheet::Sheet;

const HEALTHS: [(SourceHealth, &str); 4] = [
    (SourceHealth::Ok, "ok"),
    (SourceHealth::Degraded, "degraded"),
    (SourceHealth::Failed, "failed"),
    (SourceHealth::Absent, "absent"),
];

pub(super) fn write(sheet: &mut Sheet<'_>, sources: &[SourceSnapshot]) -> fmt::Result {
    let of = |source: &SourceSnapshot| [("source", source.source.to_string())];
    let healths = sources.iter().flat_map(|source| {
        HEALTHS.map(|(health, name)| {
            ([("source", &*source.source), ("health", name)], Some(u64::from(source.health == health)))
        })
    });
    sheet.gauge("gpuadmit_source_health", "1 for the health that the source is in.", healths)?;
    let ages = sources.iter().map(|source| (of(source), Some(source.age.as_secs_f64())));
    sheet.gauge("gpuadmit_source_age_seconds", "Time since the source last reported.", ages)?;
    let busy = sources.iter().map(|source| (of(source), source.busy.map(|busy| busy.as_secs_f64())));
    let help =
        "Time spent inside the source's calls. Of nvml: in the driver, which holds its lock meanwhile.";
    sheet.counter("gpuadmit_source_busy_seconds", help, busy)
}
