//! What the node is and what it decided.

use std::{fmt, time::Duration};

use gpuadmit_core::{
    counts::{Answered, DecisionCounts, Ruling},
    request::{Class, Reason},
    snapshot::{About, Snapshot, Warning},
};

use super::sheet::{ALONE, Sheet};

pub(super) fn write(
    sheet: &mut Sheet<'_>,
    snapshot: &Snapshot,
    age: Duration,
    simulated: bool,
) -> fmt::Result {
    let simulated = if simulated { "true" } else { "false" };
    let build = [("version", env!("CARGO_PKG_VERSION")), ("simulated", simulated)];
    sheet.gauge("gpuadmit_build_info", "Always 1; the labels tell what runs.", [(build, Some(1_u64))])?;
    let age = [(ALONE, Some(age.as_secs_f64()))];
    let alone = |count: u64| [(ALONE, Some(count))];
    let help = "Age of the snapshot of the node that this page shows.";
    sheet.gauge("gpuadmit_snapshot_age_seconds", help, age)?;
    sheet.gauge("gpuadmit_reservations", "Reservations held.", alone(snapshot.reservations))?;
    let help = "Most reservations that can be held.";
    sheet.gauge("gpuadmit_reservations_limit", help, alone(snapshot.reservations_limit))?;
    decisions(sheet, &snapshot.decisions)?;
    let held = snapshot.warnings.iter().map(|warning| (about(warning), Some(1_u64)));
    let help = "1 while a warning holds: from its event until the event that it is over. One that follows from \
                another one (consequence) is no alert of its own.";
    sheet.gauge("gpuadmit_warning_active", help, held)
}

fn about(warning: &Warning) -> [(&str, &str); 5] {
    let (engine, device, host) = match &warning.about {
        About::Engine(engine) => (&**engine, "", ""),
        About::Device(device) => ("", &**device, ""),
        About::Host(part) => ("", "", &**part),
    };
    let consequence = if warning.consequence { "true" } else { "false" };
    [
        ("kind", warning.kind.as_str()),
        ("engine", engine),
        ("device", device),
        ("host_part", host),
        ("consequence", consequence),
    ]
}

fn decisions(sheet: &mut Sheet<'_>, counts: &DecisionCounts) -> fmt::Result {
    let by_class = counts.by_class.iter();
    sheet.counter(
        "gpuadmit_decisions",
        "Decisions by class and verdict; a denial, and what observe mode would have denied, by its reason.",
        by_class.map(|((of, ruling), count)| (labels(*of, *ruling), Some(*count))),
    )?;
    let split = |answered: &Answered| [("admitted", answered.admitted), ("denied", answered.denied)];
    let named = counts.by_tenant.iter().flat_map(|(tenant, answered)| {
        split(answered).map(|(verdict, count)| {
            ([("tenant", &**tenant), ("others", ""), ("verdict", verdict)], Some(count))
        })
    });
    let others = split(&counts.other_tenants).map(|(verdict, count)| {
        let occurred = (counts.other_tenants != Answered::default()).then_some(count);
        ([("tenant", ""), ("others", "true"), ("verdict", verdict)], occurred)
    });
    sheet.counter(
        "gpuadmit_tenant_decisions",
        "Decisions by tenant: those named in the configuration and the first that came; the rest together (others).",
        named.chain(others),
    )
}

fn labels(of: Class, ruling: Ruling) -> [(&'static str, &'static str); 3] {
    let verdict = match ruling {
        Ruling::Admitted => "admitted",
        Ruling::WouldDeny(_) => "would_deny",
        Ruling::Denied(_) => "denied",
    };
    let reason = ruling.reason().map_or("", Reason::as_str);
    [("class", class(of)), ("verdict", verdict), ("reason", reason)]
}

pub(super) const fn class(of: Class) -> &'static str {
    match of {
        Class::Interactive => "interactive",
        Class::Standard => "standard",
        Class::Batch => "batch",
    }
}
