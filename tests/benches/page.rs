//! The shared page: what a read of one engine's headroom takes, with nobody writing and with a writer that never stops,
//! and what showing a decision there adds to the decision.

use std::{
    error::Error,
    hint::black_box,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use gpuadmit_client::page::Reader;
use gpuadmit_core::{
    request::{Class, Completion, Outcome, Prompt, Reference, Request, ReservationId, Verdict},
    settings::Settings,
    units::Tokens,
};
use gpuadmit_tests::bench::{
    engine::{MODEL, ReadyEngine},
    smoke,
    table::{Report, time},
};
use gpuadmitd::{
    clock,
    handle::Handle,
    page::{Readers, Writer},
};

/// Calls timed together, for one takes about as long as reading the clock.
const BATCH: u32 = 1000;
/// So many blocks that nothing is ever denied.
const POOL_BLOCKS: u64 = 1 << 20;
/// Long enough that a page nobody beats stays fresh.
const BEAT: Duration = Duration::from_hours(1);

fn main() -> Result<(), Box<dyn Error>> {
    let batches = if smoke() { 10 } else { 2000 };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("page");
    let mut rows = Vec::new();

    let bare = node(None)?;
    rows.push(row("admit and complete, no page", &batched(batches, || admit_and_complete(&bare))?));
    let shown = node(Some(path.clone()))?;
    rows.push(row(
        "admit and complete, shown on the page",
        &batched(batches, || admit_and_complete(&shown))?,
    ));

    let reader = Reader::open(&path)?;
    let read = || -> Result<(), Box<dyn Error>> {
        black_box(reader.engine(black_box("engine"))?);
        Ok(())
    };
    rows.push(row("read, nobody writes", &batched(batches, read)?));
    let done = AtomicBool::new(false);
    let busy = thread::scope(|threads| {
        let writer = threads.spawn(|| {
            while !done.load(Relaxed) {
                admit_and_complete(&shown).map_err(|error| error.to_string())?;
            }
            Ok::<(), String>(())
        });
        let read = batched(batches, read);
        done.store(true, Relaxed);
        writer.join().map_err(|_| "the writer panicked")??;
        read
    })?;
    rows.push(row("read, while decisions are made without a pause", &busy));

    let mut report = Report::new("page");
    report.table(&["call", "median", "p99", "worst"], &rows);
    report.paragraph(&format!(
        "{batches} batches of {BATCH} calls; each figure is that of a batch, divided by its calls. A read looks for the \
         engine, copies its slot and looks whether the page is fresh, which reads the clock."
    ));
    report.write()?;
    Ok(())
}

/// Times of one call, a batch each, in ascending order.
fn batched(
    batches: usize,
    mut call: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut times = Vec::with_capacity(batches);
    for _ in 0..batches {
        let start = Instant::now();
        for _ in 0..BATCH {
            call()?;
        }
        times.push(start.elapsed() / BATCH);
    }
    times.sort();
    Ok(times)
}

fn row(title: &str, times: &[Duration]) -> Vec<String> {
    let at = |share: usize| {
        times.get((times.len() * share / 100).min(times.len() - 1)).copied().unwrap_or_default()
    };
    vec![title.into(), time(at(50)), time(at(99)), time(at(100))]
}

/// A node with a ready engine, and its page.
fn node(page: Option<PathBuf>) -> Result<Handle, Box<dyn Error>> {
    let handle = Handle::new(Settings::default(), 1);
    let readers = Readers { gid: None, others: false };
    let writer = page.map(|path| Writer::create(path, readers, 1, BEAT)).transpose()?;
    handle.show_on(writer);
    let mut engine = ReadyEngine::new(POOL_BLOCKS);
    handle.observe(engine.facts(clock::now()));
    handle.observe(engine.reading(clock::now(), 0, 0.0, 0));
    Ok(handle)
}

fn admit_and_complete(handle: &Handle) -> Result<(), Box<dyn Error>> {
    let id = admit(handle)?;
    let completion = Completion { outcome: Outcome::NotSent, output_tokens: None, prompt_tokens: None };
    let _ = handle.complete(Reference::Id(id), completion);
    Ok(())
}

fn admit(handle: &Handle) -> Result<ReservationId, Box<dyn Error>> {
    let request = Request {
        model: MODEL,
        engine: None,
        prompt: Prompt::Tokens(Tokens(200)),
        max_tokens: Some(Tokens(312)),
        n: 1,
        has_stop: false,
        class: Class::Standard,
        tenant: "",
        session_key: None,
        ttft_objective: None,
        pace_objective: None,
        wait: Duration::ZERO,
        request_id: None,
        peer_uid: 0,
        session: None,
        forwards_rank: false,
    };
    match handle.admit(&request)?.verdict {
        Verdict::Admit(admit) => Ok(admit.reservation),
        Verdict::Deny(deny) => Err(format!("denied: {}", deny.message).into()),
    }
}
