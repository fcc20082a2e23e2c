//! A bounded load against one engine, each request through admission, and what became of it.

mod engine;
mod http;
mod load;
mod request;
mod tally;
mod target;

use std::{sync::Arc, time::Duration};

use gpuadmit_client::Connection;
use tokio::{
    sync::{Mutex, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

pub(crate) use self::{
    engine::Watched,
    load::{Load, Phase},
    tally::{Quantiles, Row, Tally},
    target::Target,
};
use self::{engine::watch_pool, load::Work, request::Client};

/// Longest pause after a denial that says when to come back.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Pause after a denial that does not.
const PAUSE: Duration = Duration::from_millis(500);
/// Share of the time after which the burst begins, whatever is left of the mixed load.
const MIXED_SHARE: f64 = 0.6;
/// Time for cancelled requests to give their room back.
const GRACE: Duration = Duration::from_secs(5);

/// All that came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Request by request, added up.
    pub(crate) tally: Tally,
    /// What the daemon told of the pool meanwhile.
    pub(crate) pool: Watched,
    /// Preemptions by the engine's own counter; `None`: it does not tell.
    pub(crate) preempted: Option<u64>,
    /// How long it took.
    pub(crate) took: Duration,
}

/// Runs the load until it is done, its time is over, or `stop` says so; then cancels what still runs.
pub(crate) async fn run(
    connection: &Connection,
    target: Target,
    load: Load,
    mut stop: watch::Receiver<bool>,
) -> Outcome {
    let started = Instant::now();
    let target = Arc::new(target);
    let before = engine::preemptions(&target).await;
    let (ending, ended) = watch::channel(false);
    let pool = tokio::spawn(watch_pool(connection.clone(), target.engine.clone(), ended.clone()));
    let tally = Arc::new(Mutex::new(Tally::default()));
    let client = Client::new(connection.clone(), Arc::clone(&target), load.wait, load.ignore_eos, ended);
    let mut work = tokio::spawn(all(client, load.clone(), Arc::clone(&tally), target.window));
    let is_done = tokio::select! {
        _ = &mut work => true,
        () = sleep(load.time) => false,
        _ = stop.wait_for(|stop| *stop) => false,
    };
    let _ = ending.send(true);
    if !is_done {
        let _ = timeout(GRACE, work).await;
    }
    let pool = timeout(GRACE, pool).await.ok().and_then(Result::ok).unwrap_or_default();
    let after = engine::preemptions(&target).await;
    let preempted = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    let tally = std::mem::take(&mut *tally.lock().await);
    Outcome { tally, pool, preempted, took: started.elapsed() }
}

/// The mixed load with the long request in it, then the burst.
async fn all(client: Client, load: Load, tally: Arc<Mutex<Tally>>, window: u64) {
    let mixed = Arc::new(Mutex::new(load.mixed(window)));
    let mut workers = JoinSet::new();
    workers.spawn(one(client.clone(), load.long(window), Arc::clone(&tally)));
    for _ in 0..load.concurrency {
        workers.spawn(worker(client.clone(), Arc::clone(&mixed), Arc::clone(&tally)));
    }
    let enough = load.time.mul_f64(MIXED_SHARE);
    if timeout(enough, async { while workers.join_next().await.is_some() {} }).await.is_err() {
        mixed.lock().await.clear();
    }
    // Nothing begins any more once it is told to end.
    let burst = if client.is_ending() { vec![] } else { load.burst(window) };
    for work in burst {
        workers.spawn(one(client.clone(), work, Arc::clone(&tally)));
    }
    while workers.join_next().await.is_some() {}
}

async fn worker(client: Client, works: Arc<Mutex<Vec<Work>>>, tally: Arc<Mutex<Tally>>) {
    while !client.is_ending() {
        let Some(work) = works.lock().await.pop() else { return };
        let done = client.run(work).await;
        let pause = done.denied.as_ref().map(|denied| denied.come_back.unwrap_or(PAUSE).min(LONGEST_PAUSE));
        tally.lock().await.add(work.phase, done);
        if let Some(pause) = pause {
            client.unless_ending(sleep(pause)).await;
        }
    }
}

async fn one(client: Client, work: Work, tally: Arc<Mutex<Tally>>) {
    let done = client.run(work).await;
    tally.lock().await.add(work.phase, done);
}
