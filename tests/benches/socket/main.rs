//! Calls over the Unix socket, at 1, 8 and 64 callers, against the empty unary call on the same server in the same run.
//!
//! The kinds of calls take turns of a quarter of a second, so that what the machine does meanwhile meets them all alike.

mod calls;
mod server;

use std::{
    env, hint,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use calls::{Kind, Pair};
use gpuadmit_client::{Connection, connect};
use gpuadmit_tests::bench::{
    allocations::Counted,
    samples::Sorted,
    smoke,
    table::{Report, per_second, quotient, ratio, time},
};
use server::Server;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

const CALLERS: [usize; 3] = [1, 8, 64];
const KINDS: [Kind; 4] = [Kind::Check, Kind::Unary, Kind::Text, Kind::Session];
const TURN: Duration = Duration::from_millis(250);
const ROUNDS: usize = 12;
const SMOKE_TURN: Duration = Duration::from_millis(30);
/// The server is there long before this.
const START_DEADLINE: Duration = Duration::from_secs(10);
const TITLES: [&str; 10] = [
    "callers, call",
    "p50",
    "p99",
    "p99.9",
    "p50 / Check",
    "p99 / Check",
    "calls",
    "calls/s",
    "calls/s per server core",
    "allocations per call",
];

fn main() -> Result<()> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == server::ROLE) {
        return server::serve(&arguments.next().context("the socket's path is missing")?);
    }
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("s");
    let mut server = Server::start(&socket)?;
    // The callers share one core, as far as the system lets them: the server's work is what is asked for.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = Report::new("socket");
    runtime.block_on(async {
        let connection = connect(&socket)?;
        wait_until_ready(&connection).await?;
        table(&mut report, "Nothing else running.", &mut server, &connection).await?;
        let cores = thread::available_parallelism()?.get();
        let title = format!("{cores} threads of other work, one for each core.");
        let _others = OtherWork::start(cores);
        table(&mut report, &title, &mut server, &connection).await
    })?;
    report.paragraph(&format!(
        "Check is the empty unary call of gRPC's health service. Unary and Session make pairs of Admit and Complete; \
         text: with the prompt as a text of {} characters; \
         calls/s, CPU and allocations are those of both. One connection; Session: one stream per caller. The server is \
         the daemon's own in a process of its own, over a node with one ready engine; its CPU time and allocations \
         include reading the engine and publishing snapshots. At most it had {} MiB of memory.",
        calls::TEXT,
        server.peak_kib()?.div_ceil(1_024)
    ));
    report.write()?;
    Ok(())
}

/// A call is admitted only once the engine has been read.
async fn wait_until_ready(connection: &Connection) -> Result<()> {
    let deadline = Instant::now() + START_DEADLINE;
    loop {
        match calls::phase(Kind::Unary, 1, connection, Instant::now() + SMOKE_TURN).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(SMOKE_TURN).await,
        }
    }
}

async fn table(report: &mut Report, title: &str, server: &mut Server, connection: &Connection) -> Result<()> {
    let mut rows = Vec::new();
    for callers in CALLERS {
        rows.extend(rows_of(callers, server, connection).await?);
    }
    report.paragraph(title);
    report.table(&TITLES, &rows);
    Ok(())
}

/// All turns of one kind.
#[derive(Default)]
struct Turns {
    pair: Pair,
    time: Duration,
    server_cpu: Duration,
    allocations: u64,
}

async fn rows_of(callers: usize, server: &mut Server, connection: &Connection) -> Result<Vec<Vec<String>>> {
    let (turn, rounds) = if smoke() { (SMOKE_TURN, 1) } else { (TURN, ROUNDS) };
    let mut turns: [Turns; 4] = Default::default();
    for round in 0..=rounds {
        for (kind, turns) in KINDS.into_iter().zip(&mut turns) {
            let (cpu, allocations) = (server.cpu()?, server.allocations()?);
            let start = Instant::now();
            let (mut first, mut second) = calls::phase(kind, callers, connection, start + turn).await?;
            // The first round only warms up.
            if round > 0 {
                turns.pair.0.append(&mut first);
                turns.pair.1.append(&mut second);
                turns.time += start.elapsed();
                turns.server_cpu += server.cpu()?.saturating_sub(cpu);
                turns.allocations += server.allocations()?.saturating_sub(allocations);
            }
        }
    }
    let [check, unary, text, session] = turns;
    let (check_row, base) = rows(callers, "Check", check, None);
    let unary = rows(callers, "unary", unary, Some(&base)).0;
    let text = rows(callers, "unary, text,", text, Some(&base)).0;
    let session = rows(callers, "Session", session, Some(&base)).0;
    Ok([check_row, unary, text, session].concat())
}

/// The rows of one kind, and the sorted durations of its first call.
fn rows(callers: usize, name: &str, turns: Turns, base: Option<&Sorted>) -> (Vec<Vec<String>>, Sorted) {
    let Turns { pair: (first, second), time, server_cpu, allocations } = turns;
    let calls = first.count() + second.count();
    let each = quotient(allocations.into(), u128::try_from(calls).unwrap_or(u128::MAX));
    let whole = [calls.to_string(), per_second(calls, time), per_second(calls, server_cpu), each];
    let row = |call: &str, durations: &Sorted, whole: [String; 4]| {
        let mut row = vec![format!("{callers}, {call}")];
        row.extend(quantiles(durations, base));
        row.extend(whole);
        row
    };
    let complete = (second.count() > 0).then(|| second.sorted());
    let first = first.sorted();
    let rows = match &complete {
        None => vec![row(name, &first, whole)],
        Some(complete) => vec![
            row(&format!("{name} Admit"), &first, whole),
            row(&format!("{name} Complete"), complete, Default::default()),
        ],
    };
    (rows, first)
}

fn quantiles(durations: &Sorted, base: Option<&Sorted>) -> [String; 5] {
    let against = |per_mille| {
        base.map_or_else(String::new, |base| ratio(durations.quantile(per_mille), base.quantile(per_mille)))
    };
    let [p50, p99, p999] = [500, 990, 999].map(|per_mille| time(durations.quantile(per_mille)));
    [p50, p99, p999, against(500), against(990)]
}

/// Threads that take all the CPU they get, until this is dropped.
struct OtherWork(Arc<AtomicBool>);

impl OtherWork {
    fn start(threads: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for OtherWork {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
