//! One run: arrivals → rule → engine → ends, in virtual time.
//!
//! ```text
//! Arrive ─ decide ─┬─ denied (lost, or Retry once)
//!                  └─ Reach ─ engine ─ StepEnd … ─ Told (unless lost)
//! Scrape ─ Sample ─ Deliver ─ rule        Look: the rule's estimate against the truth
//! ```

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::Duration,
};

use anyhow::Result;
use gpuadmit_core::{
    observation::{EngineReading, RankReading},
    request::Outcome,
    units::Span,
};

use crate::{
    cells::Cell,
    engine::{AisimEngine, EngineModel, Event, Exposition, Output, RequestId, Step, Submission},
    estimation::{Look, raw_gauge},
    hindsight,
    measure::Measured,
    policy::{Answer, Ask, Candidate, End, Policy, Stream, Streams, mono},
    random::{Random, hash},
    request::{Phase, Request},
    time::{MILLISECOND, Nanos, SECOND, nanos, seconds},
    world::World,
};

/// From a gateway's yes to the engine's queue: network, HTTP, tokenizer; milliseconds.
const TRAVEL_MS: (f64, f64) = (5.0, 20.0);
/// From the end of a step to the gateway's report of a request that ended in it.
const REPORT_MS: (f64, f64) = (0.5, 5.0);
/// A scrape takes so long, milliseconds …
const SCRAPE_MS: (f64, f64) = (3.0, 30.0);
/// … and sometimes, when the API server is busy, longer.
const SLOW_SCRAPE_SHARE: f64 = 0.01;
const SLOW_SCRAPE_MS: (f64, f64) = (200.0, 1500.0);
/// Intervals between scrapes vary by this share.
const JITTER: f64 = 0.1;
/// Gateways report progress this often.
const PROGRESS: Nanos = 10 * SECOND;
/// A gateway forgets a stream in which nothing has come for so long.
const STREAM_TIMEOUT: Nanos = 60 * SECOND;
/// Mean time between two looks at a rule's estimate.
const LOOK_S: f64 = 0.5;
/// After the last arrival, what is in the engine may end for so long.
const DRAIN: Nanos = 120 * SECOND;

/// What happens next.
#[derive(Clone, Debug)]
enum Next {
    Arrive(RequestId),
    Retry(RequestId),
    Reach(RequestId),
    /// Of the engine's life so named.
    StepEnd(u32),
    Told(RequestId),
    /// A client leaves.
    Leave(RequestId),
    /// The engine dies and is back, empty.
    Restart,
    Scrape,
    /// A scrape's figures are taken; it delivers at the named time.
    Sample {
        sent: Nanos,
        deliver: Nanos,
    },
    Deliver {
        sent: Nanos,
        sampled: Box<Sampled>,
    },
    Progress,
    Look,
}

/// What a scrape brings, and whether the engine was idle then.
#[derive(Clone, Debug)]
struct Sampled {
    reading: RankReading,
    life: u32,
    idle: bool,
}

/// One run.
struct Run {
    at: Nanos,
    end: Nanos,
    world: World,
    engine: AisimEngine,
    exposition: Exposition,
    policy: Box<dyn Policy>,
    streams: Streams,
    /// Step under way and when it began.
    step: Option<(Nanos, Step)>,
    /// Which life of the engine this is.
    life: u32,
    /// Readings of an idle engine in a row.
    idle_readings: u32,
    queue: BinaryHeap<Reverse<(Nanos, u64)>>,
    happenings: HashMap<u64, Next>,
    next: u64,
    /// Of scrapes and of looks: streams of their own, so that all rules meet the same.
    scraping: Random,
    looking: Random,
    seed: u64,
    interval: Nanos,
    retry: bool,
    looks: Vec<Look>,
    gauge: Option<u64>,
    /// Blocks × nanoseconds in use while requests arrived, and until when that is summed up.
    used_time: (f64, Nanos),
}

/// What is left of a run when it is over.
pub(crate) struct Played {
    pub(crate) world: World,
    pub(crate) looks: Vec<Look>,
    /// Blocks × nanoseconds in use while requests arrived.
    pub(crate) used_time: f64,
    /// Reservations that the rule still holds.
    pub(crate) held: Option<usize>,
}

/// Runs `candidate` in `cell`.
pub(crate) fn run(cell: &Cell, candidate: &Candidate) -> Result<Measured> {
    let policy = candidate.build(Duration::from_nanos(cell.interval));
    let played = play(cell, cell.requests()?, policy)?;
    let falsely_denied = hindsight::falsely_denied(cell, &played.world)?;
    Ok(Measured::of(cell, candidate, &played, &falsely_denied))
}

/// Lets `policy` decide in `cell`.
pub(crate) fn play(cell: &Cell, requests: Vec<Request>, policy: Box<dyn Policy>) -> Result<Played> {
    let mut run = Run::new(cell, requests, policy)?;
    run.play();
    Ok(Played { held: run.policy.held(), world: run.world, looks: run.looks, used_time: run.used_time.0 })
}

impl Run {
    fn new(cell: &Cell, requests: Vec<Request>, mut policy: Box<dyn Policy>) -> Result<Self> {
        let setup = cell.setup();
        let exposition = Exposition::new(&setup);
        policy.started(0, &setup, exposition.reading());
        let mut run = Self {
            at: 0,
            end: SECOND + cell.length,
            world: World::new(setup, requests),
            engine: AisimEngine::new(&setup)?,
            exposition,
            interval: policy.interval().unwrap_or(cell.interval),
            policy,
            streams: Streams::new(),
            step: None,
            life: 0,
            idle_readings: 0,
            queue: BinaryHeap::new(),
            happenings: HashMap::new(),
            next: 0,
            scraping: Random::new(cell.seed, 3),
            looking: Random::new(cell.seed, 4),
            seed: cell.seed,
            retry: cell.retry,
            looks: Vec::new(),
            gauge: None,
            used_time: (0.0, SECOND),
        };
        if let Some(at) = cell.restart {
            run.plan(SECOND + at, Next::Restart);
        }
        Ok(run)
    }
}

impl Run {
    fn play(&mut self) {
        for id in 0..self.world.requests.len() as RequestId {
            let at = self.world.request(id).at;
            self.plan(at, Next::Arrive(id));
        }
        self.plan(self.interval.min(SECOND) / 2, Next::Scrape);
        self.plan(PROGRESS, Next::Progress);
        self.plan(SECOND, Next::Look);
        while let Some(Reverse((at, key))) = self.queue.pop() {
            if at > self.end + DRAIN || (at > self.end && self.idle_readings >= 2) {
                break;
            }
            self.at = at;
            if let Some(next) = self.happenings.remove(&key) {
                self.happen(next);
            }
        }
        self.account();
    }

    fn plan(&mut self, at: Nanos, next: Next) {
        self.queue.push(Reverse((at, self.next)));
        self.happenings.insert(self.next, next);
        self.next += 1;
    }

    /// A delay of request `id`, the same whatever the rule.
    fn soon(&self, id: RequestId, (low, high): (f64, f64)) -> Nanos {
        self.at + nanos(Random::new(self.seed, hash(5, u64::from(id))).between(low, high) / 1e3)
    }

    fn happen(&mut self, next: Next) {
        match next {
            Next::Arrive(id) => self.arrive(id, false),
            Next::Retry(id) => self.arrive(id, true),
            Next::Reach(id) => self.reach(id),
            Next::StepEnd(life) if life == self.life => self.step_end(),
            Next::StepEnd(_) => {}
            Next::Told(id) => self.told(id),
            Next::Leave(id) => self.client_leaves(id),
            Next::Restart => self.restart(),
            Next::Scrape => self.scrape(),
            Next::Sample { sent, deliver } => {
                let (reading, idle) = (self.exposition.reading(), self.world.live.is_empty());
                let sampled = Box::new(Sampled { reading, life: self.life, idle });
                self.plan(deliver, Next::Deliver { sent, sampled });
            }
            Next::Deliver { sent, sampled } => self.deliver(sent, *sampled),
            Next::Progress => self.progress(),
            Next::Look => self.look(),
        }
    }

    fn arrive(&mut self, id: RequestId, again: bool) {
        if self.world.request(id).bypass {
            self.let_in(id);
            return;
        }
        let answer = self.policy.decide(&Ask {
            at: self.at,
            request: &self.world.requests[id as usize],
            streams: &self.streams,
            setup: &self.world.setup,
            world: &self.world,
        });
        match answer {
            Answer::Admit { max_tokens } => {
                let request = &mut self.world.requests[id as usize];
                request.length = request.length.min(max_tokens.unwrap_or(u64::MAX)).max(1);
                let stream = Stream {
                    prompt: request.prompt,
                    max_tokens: request.max_tokens,
                    sent_at: self.at,
                    generated: 0,
                    last_token: self.at,
                };
                self.streams.insert(id, stream);
                self.let_in(id);
            }
            Answer::Deny { retry_after } => self.denied(id, again, retry_after),
        }
    }

    fn denied(&mut self, id: RequestId, again: bool, retry_after: Option<Duration>) {
        let denial = self.world.denial(self.at, self.world.request(id));
        let fate = self.world.fate(id);
        fate.phase = Phase::Denied;
        fate.denial = Some(denial);
        if let (true, false, Some(after)) = (self.retry, again, retry_after) {
            fate.retried = true;
            self.plan(self.at + after.as_nanos() as Nanos, Next::Retry(id));
        }
    }

    fn let_in(&mut self, id: RequestId) {
        let at = self.at;
        let fate = self.world.fate(id);
        fate.phase = Phase::Travelling;
        fate.sent_at = at;
        self.world.live.push(id);
        let reaches = self.soon(id, TRAVEL_MS);
        self.plan(reaches, Next::Reach(id));
        if let Some(after) = self.world.request(id).leaves_after {
            self.plan(reaches + after, Next::Leave(id));
        }
    }

    fn reach(&mut self, id: RequestId) {
        self.world.fate(id).phase = Phase::Queued;
        let request = self.world.request(id);
        let end = request.prompt + request.length;
        let output = match request.content.session() {
            Some(_) if self.world.setup.prefix_caching => {
                Output::Tokens(request.content.tokens(id, request.prompt, end))
            }
            _ => Output::Length(request.length),
        };
        let prompt = request.content.tokens(id, 0, request.prompt);
        self.exposition.arrived(self.at, id, request.prompt);
        self.engine.submit(Submission { id, prompt, output });
        self.begin_step();
    }

    fn begin_step(&mut self) {
        if self.step.is_some() {
            return;
        }
        let Some(step) = self.engine.step(self.at) else { return };
        self.account();
        let mut ending = 0;
        for event in &step.events {
            match *event {
                Event::Scheduled { id, cached } => self.world.fate(id).cached = cached,
                Event::Preempted { id } => self.world.fate(id).preempted = true,
                Event::Finished { id } => {
                    let request = self.world.request(id);
                    ending += self.world.blocks(request.prompt + request.length - 1);
                }
                Event::Token { .. } | Event::Rejected { .. } => {}
            }
        }
        // What ends with this step is held until then.
        self.world.used = (step.gauges.used + ending).min(self.world.setup.blocks);
        self.world.partial += step.prompt_tokens;
        self.world.step_time = smoothed(self.world.step_time, step.duration);
        self.world.step_end = self.at + step.duration;
        self.plan(self.world.step_end, Next::StepEnd(self.life));
        self.step = Some((self.at, step));
    }

    fn step_end(&mut self) {
        let Some((began, step)) = self.step.take() else { return };
        self.account();
        self.exposition.stepped(began, self.at, &step);
        self.world.used = step.gauges.used;
        for event in &step.events {
            match *event {
                Event::Token { id } => self.token(id),
                Event::Finished { id } => self.ended(id, Phase::Done),
                Event::Rejected { id } => self.ended(id, Phase::Failed),
                Event::Scheduled { .. } | Event::Preempted { .. } => {}
            }
        }
        self.begin_step();
    }

    fn token(&mut self, id: RequestId) {
        if !self.world.fate(id).live() {
            return;
        }
        let (at, prompt) = (self.at, self.world.request(id).prompt);
        let fate = self.world.fate(id);
        fate.generated += 1;
        let first = fate.first_token.is_none();
        if first {
            fate.first_token = Some(at);
            fate.phase = Phase::Decoding;
            let computed = prompt - fate.cached.min(prompt);
            self.world.partial = self.world.partial.saturating_sub(computed);
        } else {
            fate.longest_gap = fate.longest_gap.max(at - fate.last_token);
        }
        let fate = self.world.fate(id);
        fate.last_token = at;
        let generated = fate.generated;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.generated = generated;
            stream.last_token = at;
            if first {
                self.policy.first_token(at, id);
            }
        }
    }

    fn ended(&mut self, id: RequestId, phase: Phase) {
        if !self.world.fate(id).live() {
            return;
        }
        self.world.fate(id).phase = phase;
        self.world.live.retain(|live| *live != id);
        self.world.served(self.at, id);
        // What was recomputed after preemptions is not counted one by one; an empty engine sets it right.
        if self.world.live.is_empty() {
            self.world.partial = 0;
        }
        if self.streams.contains_key(&id) && !self.world.request(id).lost {
            let told = self.soon(id, REPORT_MS);
            self.plan(told, Next::Told(id));
        }
    }

    fn client_leaves(&mut self, id: RequestId) {
        if !self.world.fate(id).live() {
            return;
        }
        self.engine.abort(id);
        self.exposition.aborted(self.at, id);
        self.ended(id, Phase::Left);
        if self.step.is_none() {
            self.account();
            self.world.used = self.engine.gauges().used;
        }
    }

    fn restart(&mut self) {
        self.account();
        self.engine = AisimEngine::new(&self.world.setup).expect("it was built before");
        self.exposition = Exposition::new(&self.world.setup);
        self.life += 1;
        self.step = None;
        self.world.used = 0;
        self.world.step_end = self.at;
        for id in self.world.live.clone() {
            if self.world.fate(id).phase != Phase::Travelling {
                self.ended(id, Phase::Failed);
            }
        }
    }

    /// The gateway reports a request's end.
    fn told(&mut self, id: RequestId) {
        self.streams.remove(&id);
        let fate = self.world.fate(id);
        let outcome = match fate.phase {
            Phase::Left => Outcome::Cancelled,
            Phase::Failed => Outcome::EngineError,
            _ => Outcome::Ok,
        };
        let end = End { outcome, generated: fate.generated };
        self.policy.completed(self.at, id, &end);
    }

    fn scrape(&mut self) {
        let range = if self.scraping.chance(SLOW_SCRAPE_SHARE) { SLOW_SCRAPE_MS } else { SCRAPE_MS };
        let takes = nanos(self.scraping.between(range.0, range.1) / 1e3);
        let sample = self.at + nanos(seconds(takes) * self.scraping.between(0.2, 0.9));
        let deliver = self.at + takes;
        self.plan(sample, Next::Sample { sent: self.at, deliver });
        let pause = seconds(self.interval) * self.scraping.between(1.0 - JITTER, 1.0 + JITTER);
        self.plan((self.at + nanos(pause)).max(deliver + MILLISECOND), Next::Scrape);
    }

    fn deliver(&mut self, sent: Nanos, Sampled { reading, life, idle }: Sampled) {
        self.idle_readings = if idle { self.idle_readings + 1 } else { 0 };
        self.gauge = raw_gauge(&reading, &self.world.setup);
        let reading = EngineReading {
            span: Span { not_before: mono(sent), not_after: mono(self.at) },
            ranks: vec![reading],
            asleep: Some(false),
            process_start: Some(f64::from(life)),
            interval: Duration::from_nanos(self.interval),
            cpu_cost: Duration::from_millis(1),
            malformed: 0,
        };
        self.policy.scraped(self.at, &reading);
    }

    fn progress(&mut self) {
        let at = self.at;
        self.streams.retain(|_, stream| at - stream.last_token < STREAM_TIMEOUT);
        for (id, stream) in &self.streams {
            // After its end a stream says nothing, also where the end itself was lost.
            if self.world.fates[*id as usize].live() {
                self.policy.progressed(at, *id, stream.generated);
            }
        }
        self.plan(at + PROGRESS, Next::Progress);
    }

    fn look(&mut self) {
        let ledger: u64 = {
            let held = |stream: &Stream| self.world.blocks(stream.prompt + stream.generated);
            self.streams.values().map(held).sum()
        };
        if let Some(estimate) = self.policy.estimate(self.at) {
            self.looks.push(Look { truth: self.world.used, estimate, gauge: self.gauge, ledger });
        }
        let pause = nanos(self.looking.exponential(LOOK_S));
        self.plan(self.at + pause.max(MILLISECOND), Next::Look);
    }

    /// Sums up use until now.
    fn account(&mut self) {
        let until = self.at.min(self.end);
        let (sum, from) = self.used_time;
        if until > from {
            self.used_time = (sum + self.world.used as f64 * (until - from) as f64, until);
        }
    }
}

/// Mean step time: the past weighs as some fifty steps.
fn smoothed(mean: Nanos, step: Nanos) -> Nanos {
    (mean * 49 + step) / 50
}
