//! Every request of a run and every look at a rule's estimate, for those who ask why.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{
    engine::RequestId,
    estimation::Look,
    policy::Candidate,
    request::Request,
    run::Played,
    situation::Situation,
    time::{Nanos, seconds},
    world::World,
};

/// Writes what became of every request, and why, and what was believed when, into `folder`.
pub(crate) fn write(
    folder: &Path,
    situation: &Situation,
    candidate: &Candidate,
    played: &Played,
    falsely_denied: &[RequestId],
) -> Result<()> {
    let mut text = String::from(
        "id,arrived_s,prompt,length,max_tokens,asked,phase,ttft_s,longest_gap_s,preempted,good,cached,\
         denied_for,used,ceiling_admits,falsely_denied,retry_after_s\n",
    );
    for request in &played.world.requests {
        row(&mut text, &played.world, request, falsely_denied);
    }
    fs::create_dir_all(folder)?;
    let name = format!("{} {} {} {}", situation.name(), candidate.rule(), candidate.value, situation.seed);
    let name = name.replace([' ', '/'], "-");
    let save = |ending: &str, text: String| {
        let path = folder.join(format!("{name}{ending}.csv"));
        fs::write(&path, text).with_context(|| path.display().to_string())
    };
    save("", text)?;
    if played.looks.is_empty() { Ok(()) } else { save("-looks", looks(&played.looks)) }
}

fn looks(looks: &[Look]) -> String {
    let mut text = String::from("at_s,scraped_at_s,used,low,estimate,high,gauge,ledger\n");
    for look in looks {
        let Look { at, scraped_at, truth, estimate, gauge, ledger } = *look;
        let _ = writeln!(
            text,
            "{:.3},{:.3},{truth},{},{},{},{},{ledger}",
            seconds(at),
            seconds(scraped_at),
            estimate.low,
            estimate.middle,
            estimate.high,
            gauge.map_or(String::new(), |gauge| gauge.to_string()),
        );
    }
    text
}

fn row(text: &mut String, world: &World, request: &Request, falsely_denied: &[RequestId]) {
    let fate = &world.fates[request.id as usize];
    let time = |time: Nanos| format!("{:.3}", seconds(time));
    let _ = write!(
        text,
        "{},{},{},{},{},{},{:?},{},{},{},{},{}",
        request.id,
        time(request.at),
        request.prompt,
        request.length,
        request.max_tokens.map_or(String::new(), |most| most.to_string()),
        !request.bypass,
        fate.phase,
        fate.ttft().map_or(String::new(), time),
        time(fate.longest_gap),
        fate.preempted,
        world.good(request.id),
        fate.cached,
    );
    let denial = fate.denial.map_or(",,,".into(), |denial| {
        let falsely = falsely_denied.contains(&request.id);
        format!("{},{:.3},{},{falsely}", denial.reason, denial.usage, denial.fits)
    });
    let told = fate.told.map_or(String::new(), |after| format!("{:.3}", after.as_secs_f64()));
    let _ = writeln!(text, ",{denial},{told}");
}
