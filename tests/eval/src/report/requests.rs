//! Every request of a run and every look at a rule's estimate, for those who ask why.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{
    cells::Cell,
    engine::RequestId,
    estimation::Look,
    policy::Candidate,
    request::{Fate, Request},
    run::Played,
    time::{Nanos, seconds},
};

/// Writes what became of every request, and why, and what was believed when, into `folder`.
pub(crate) fn write(
    folder: &Path,
    cell: &Cell,
    candidate: &Candidate,
    played: &Played,
    falsely_denied: &[RequestId],
) -> Result<()> {
    let mut text = String::from(
        "id,arrived_s,prompt,length,max_tokens,asked,phase,ttft_s,longest_gap_s,preempted,good,cached,\
         denied_for,used,ceiling_admits,falsely_denied,retry_after_s\n",
    );
    for pair in played.world.requests.iter().zip(&played.world.fates) {
        row(&mut text, pair, falsely_denied);
    }
    fs::create_dir_all(folder)?;
    let name = format!("{} {} {} {}", cell.name(), candidate.rule(), candidate.value, cell.seed);
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

fn row(text: &mut String, (request, fate): (&Request, &Fate), falsely_denied: &[RequestId]) {
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
        fate.good(),
        fate.cached,
    );
    let denial = fate.denial.map_or(",,,".into(), |denial| {
        let falsely = falsely_denied.contains(&request.id);
        format!("{},{:.3},{},{falsely}", denial.reason, denial.usage, denial.fits)
    });
    let told = fate.told.map_or(String::new(), |after| format!("{:.3}", after.as_secs_f64()));
    let _ = writeln!(text, ",{denial},{told}");
}
