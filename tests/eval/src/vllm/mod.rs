//! The engine model beside a real vLLM: the same requests into both, blocks in use compared step by step.
//!
//! Steps, not seconds, are the common clock: the real engine's step counter tells before which step each request was
//! there, and the model gets it before the same step. So nothing depends on how fast this machine is.

mod compare;
mod http;
mod load;
mod scrape;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use crate::random::Random;
pub(crate) use load::Load;
use load::Sent;
use scrape::Sample;

/// The real engine is scraped this often.
const SCRAPE_EVERY: Duration = Duration::from_millis(10);
/// No run takes longer.
const LONGEST: Duration = Duration::from_mins(10);

/// Sends the sequence to the vLLM at `address`, then to the model, and writes what differs into `folder`.
pub(crate) fn check(address: SocketAddr, load: Load, folder: &Path) -> Result<()> {
    let engine = scrape::Engine::ask(address, load.slots())?;
    let mut random = Random::new(32, 1);
    let sequence = load.sequence(&mut random);
    let samples = drive(address, &engine, (load, &sequence), &mut random)?;
    compare::report(&engine, &sequence, &samples, (folder, load.stem()))
}

/// Sends the sequence and scrapes until all is over.
fn drive(
    address: SocketAddr,
    engine: &scrape::Engine,
    (load, sequence): (Load, &[Sent]),
    random: &mut Random,
) -> Result<Vec<Sample>> {
    let first = scrape::sample(address)?;
    ensure!(first.running + first.waiting == 0, "http://{address} is not idle: {first:?}");
    let over = Arc::new(AtomicBool::new(false));
    let watching = Arc::clone(&over);
    let watcher = thread::spawn(move || watch(address, &watching));
    let mut clients = Vec::new();
    for (number, sent) in sequence.iter().enumerate() {
        let body = engine.completion(number as u32, *sent);
        clients.push(thread::spawn(move || http::post(address, "/v1/completions", &body)));
        thread::sleep(Duration::from_secs_f64(random.exponential(load.pause_ms()) / 1e3));
    }
    let answers: Result<Vec<_>> =
        clients.into_iter().map(|client| client.join().expect("a client panicked")).collect();
    // The counters of the last step are there a moment later.
    thread::sleep(Duration::from_millis(500));
    over.store(true, Ordering::Relaxed);
    let mut samples = watcher.join().expect("the watcher panicked")?;
    answers.context("a completion")?;
    for sample in &mut samples {
        sample.since(&first);
    }
    Ok(samples)
}

fn watch(address: SocketAddr, over: &AtomicBool) -> Result<Vec<Sample>> {
    let began = Instant::now();
    let mut samples = Vec::new();
    while !over.load(Ordering::Relaxed) {
        ensure!(began.elapsed() < LONGEST, "not over after {LONGEST:?}");
        samples.push(scrape::sample(address)?);
        thread::sleep(SCRAPE_EVERY);
    }
    Ok(samples)
}
