//! The decision alone: what `Node` takes for a call with 10, 100 and 1,000 live reservations.
//!
//! Time is virtual, so that every run makes exactly the same calls: a call that is slow in each of three runs is the
//! core's doing, one that is slow once is the machine's.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use gpuadmit_core::{
    node::{Completed, Node},
    request::{Class, Completion, Outcome, Prompt, Reference, Request, ReservationId, Verdict},
    settings::Settings,
    units::{Mono, Tokens},
};
use gpuadmit_tests::bench::{
    allocations::{Allocations, Counted},
    engine::{BLOCK_SIZE, MODEL, PROMPT, ReadyEngine},
    samples::Samples,
    smoke,
    table::{Report, quotient, time},
};

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Virtual time between two calls, and calls between two readings of the engine: one reading in 200 ms.
const CALL_GAP: Duration = Duration::from_micros(10);
const CALLS_PER_READING: usize = 20_000;
/// Blocks that each live reservation takes: (200 + 312) / 16.
const OUTPUT: u64 = 312;
const BLOCKS_EACH: u64 = (PROMPT + OUTPUT) / BLOCK_SIZE;
/// Output tokens that each live request has generated: half of what it may.
const GENERATED: u64 = OUTPUT / 2;
/// Share of the pool that they hold: of three quarters, 23 of the 32 blocks that each may grow to.
const USED: f64 = 0.75 * 23.0 / 32.0;
const RUNS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let calls = if smoke() { 2 * CALLS_PER_READING } else { 1_000_000 };
    let mut rows = Vec::new();
    for live in [10, 100, 1_000] {
        let mut result = Run::new(live)?.measure(calls)?;
        for _ in 1..RUNS {
            result = result.merge(Run::new(live)?.measure(calls)?);
        }
        rows.extend(result.rows(live));
    }
    let mut report = Report::new("decision");
    report.table(&["live reservations, call", "mean", "p99", "worst", "worst as run", "allocations"], &rows);
    report.paragraph(&format!(
        "{calls} calls of each kind, timed one by one (reading the clock is {} of each), in {RUNS} runs of the same calls. \
         Of each call the fastest run counts, so that what else the machine did is left out; \"worst as run\" leaves it \
         in, for the first run. One call in {CALLS_PER_READING} comes just after a reading of the engine.",
        time(clock_cost())
    ));
    report.write()?;
    Ok(())
}

/// Kinds of calls.
const KINDS: [&str; 3] = ["admit: admitted", "complete", "admit: denied (KV_FULL)"];

/// Calls of one kind.
#[derive(Default)]
struct Tally {
    times: Samples,
    /// The same calls, each as fast as it was in any run.
    fastest: Samples,
    allocations: u64,
}

impl Tally {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let before = Allocations::now();
        let start = Instant::now();
        let result = call();
        self.times.since(start);
        self.allocations += Allocations::now().since(before).calls;
        result
    }

    fn row(self, title: String) -> Vec<String> {
        let count = u128::try_from(self.times.count()).unwrap_or(u128::MAX);
        let disturbed = time(self.times.worst());
        let (mean, worst) = (time(self.fastest.mean()), time(self.fastest.worst()));
        let p99 = time(self.fastest.sorted().quantile(990));
        vec![title, mean, p99, worst, disturbed, quotient(self.allocations.into(), count)]
    }
}

/// What was measured.
#[derive(Default)]
struct Measured {
    /// By kind of call.
    calls: [Tally; 3],
    readings: Tally,
}

impl Measured {
    fn tallies(&mut self) -> impl Iterator<Item = &mut Tally> {
        self.calls.iter_mut().chain([&mut self.readings])
    }

    /// Takes in another run of the same calls.
    fn merge(mut self, mut other: Self) -> Self {
        for (one, other) in self.tallies().zip(other.tallies()) {
            one.fastest = std::mem::take(&mut one.fastest).faster_of(&other.times);
        }
        self
    }

    fn rows(self, live: u64) -> Vec<Vec<String>> {
        let calls = KINDS.iter().zip(self.calls).map(|(kind, tally)| tally.row(format!("{live}, {kind}")));
        calls.chain([self.readings.row(format!("{live}, a reading taken in"))]).collect()
    }
}

/// One run: a node with so many live reservations.
struct Run {
    node: Node,
    engine: ReadyEngine,
    now: Mono,
    live: u64,
    pool: u64,
}

impl Run {
    /// The live reservations, grown to all they may, take three quarters of the pool.
    fn new(live: u64) -> Result<Self, Box<dyn Error>> {
        let pool = live * BLOCKS_EACH * 4 / 3;
        let settings = Settings { lease: Duration::from_hours(1), ..Settings::default() };
        let now = Mono(1_000_000_000_000);
        let mut run = Self { node: Node::new(settings, 1), engine: ReadyEngine::new(pool), now, live, pool };
        run.node.observe(run.now, run.engine.facts(run.now));
        run.read(0);
        for _ in 0..live {
            let id = run.admit()?;
            run.node.progress(run.now, Reference::Id(id), Tokens(GENERATED)).ok_or("not held")?;
        }
        Ok(run)
    }

    fn measure(mut self, calls: usize) -> Result<Measured, Box<dyn Error>> {
        let mut measured = Measured::default();
        measured.tallies().for_each(|tally| tally.times = Samples::with_capacity(calls));
        let [admits, completions, denials] = &mut measured.calls;
        for call in 0..calls {
            if call % CALLS_PER_READING == 0 {
                measured.readings.time(|| self.read(self.live));
                self.node.handle_timeout(self.now);
            }
            let id = admits.time(|| self.admit())?;
            completions.time(|| self.complete(id))?;
            denials.time(|| self.deny())?;
        }
        measured.tallies().for_each(|tally| tally.fastest = tally.times.clone());
        Ok(measured)
    }

    fn read(&mut self, running: u64) {
        let used = if running == 0 { 0.0 } else { USED };
        let reading = self.engine.reading(self.now, running, used, 0);
        self.node.observe(self.now, reading);
    }

    fn admit(&mut self) -> Result<ReservationId, Box<dyn Error>> {
        self.now = self.now + CALL_GAP;
        match self.node.admit(self.now, &request(PROMPT))?.verdict {
            Verdict::Admit(admit) => Ok(admit.reservation),
            Verdict::Deny(deny) => Err(format!("denied: {}", deny.message).into()),
        }
    }

    fn complete(&mut self, id: ReservationId) -> Result<(), Box<dyn Error>> {
        self.now = self.now + CALL_GAP;
        // Thousands of these come and go between two readings: no engine could show them.
        let completion = Completion { outcome: Outcome::NotSent, output_tokens: None, prompt_tokens: None };
        match self.node.complete(self.now, Reference::Id(id), completion) {
            Completed::Held => Ok(()),
            other => Err(format!("not held: {other:?}").into()),
        }
    }

    /// A request for three fifths of the pool, of which more than half is in use.
    fn deny(&mut self) -> Result<(), Box<dyn Error>> {
        self.now = self.now + CALL_GAP;
        match self.node.admit(self.now, &request(self.pool * BLOCK_SIZE * 3 / 5))?.verdict {
            Verdict::Admit(_) => Err("admitted what cannot fit".into()),
            Verdict::Deny(_) => Ok(()),
        }
    }
}

fn request(prompt: u64) -> Request<'static> {
    Request {
        model: MODEL,
        engine: None,
        prompt: Prompt::Tokens(Tokens(prompt)),
        max_tokens: Some(Tokens(OUTPUT)),
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
    }
}

/// What reading the clock twice adds to each sample: the median of a thousand empty ones.
fn clock_cost() -> Duration {
    let mut samples = Samples::with_capacity(1_000);
    for _ in 0..1_000 {
        samples.since(Instant::now());
    }
    samples.sorted().quantile(500)
}
