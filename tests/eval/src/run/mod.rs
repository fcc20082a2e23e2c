//! One run: arrivals → rule → engine → ends, in virtual time.
//!
//! ```text
//! Arrive ─ decide ─┬─ denied (lost, or Retry once)
//!                  └─ Reach ─ engine ─ StepEnd … ─ Told (unless lost)
//! Scrape ─ Sample ─ Deliver ─ rule        Look: the rule's estimate against the truth
//! ```

mod engine;
mod gateway;
mod telemetry;
mod usage;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    path::Path,
};

use anyhow::Result;
use gpuadmit_core::observation::RankReading;

use crate::{
    engine::{AisimEngine, Exposition, RequestId, Step},
    estimation::Look,
    hindsight,
    measure::Measured,
    policy::{Candidate, Policy, Streams},
    random::{Random, hash},
    report,
    request::Request,
    situation::{LEAD, Situation, Telemetry},
    time::{Nanos, SECOND, nanos},
    world::World,
};

/// From the end of a step to the gateway's report of a request that ended in it.
const REPORT_MS: (f64, f64) = (0.5, 5.0);
/// A scrape takes so long, milliseconds …
const SCRAPE_MS: (f64, f64) = (3.0, 30.0);
/// … and when the API server is busy at least so long.
const SLOW_SCRAPE_MS: f64 = 200.0;
/// Intervals between scrapes vary by this share.
const JITTER: f64 = 0.1;
/// Gateways report progress this often.
const PROGRESS: Nanos = 10 * SECOND;
/// A gateway forgets a stream in which nothing has come for so long.
const STREAM_TIMEOUT: Nanos = 60 * SECOND;
/// Mean length of a spell in which the API server lags, and of one in which it does not.
const LAG_SPELL_S: f64 = 20.0;
/// Mean time between two looks at a rule's estimate.
const LOOK_S: f64 = 0.5;
/// After the last arrival, what is in the engine may end for so long.
const DRAIN: Nanos = 120 * SECOND;

pub(crate) use usage::{InUse, Resource, Usage};

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

/// A step, when it began and ended, and when the API server has its figures.
struct Unseen {
    shown: Nanos,
    began: Nanos,
    ended: Nanos,
    step: Step,
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
    telemetry: Telemetry,
    /// Steps that the exposition does not show yet, and when it will.
    unseen: VecDeque<Unseen>,
    lagging: Random,
    /// Whether the API server lags now, and until when.
    lags: (bool, Nanos),
    looking: Random,
    seed: u64,
    interval: Nanos,
    retry: bool,
    looks: Vec<Look>,
    gauge: Option<u64>,
    scraped_at: Nanos,
    usage: Usage,
}

/// What is left of a run when it is over.
pub(crate) struct Played {
    pub(crate) world: World,
    pub(crate) looks: Vec<Look>,
    pub(crate) usage: Usage,
    pub(crate) ended_at: Nanos,
    /// Reservations that the rule still holds.
    pub(crate) held: Option<usize>,
}

/// What is wanted of a run besides its figures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// What became of every request goes into this folder.
    pub(crate) requests: Option<&'a Path>,
    /// Whether denials are judged, which takes a second run.
    pub(crate) false_denials: bool,
}

/// Runs `candidate` in `situation`.
pub(crate) fn run(situation: &Situation, candidate: &Candidate, wanted: &Wanted<'_>) -> Result<Measured> {
    let played = play(situation, situation.requests()?, candidate.build(situation))?;
    let falsely_denied = match wanted.false_denials {
        true => hindsight::falsely_denied(situation, &played.world)?,
        false => Vec::new(),
    };
    if let Some(folder) = wanted.requests {
        report::requests::write(folder, situation, candidate, &played, &falsely_denied)?;
    }
    Ok(Measured::of(situation, candidate, &played, &falsely_denied))
}

/// Lets `policy` decide in `situation`.
pub(crate) fn play(situation: &Situation, requests: Vec<Request>, policy: Box<dyn Policy>) -> Result<Played> {
    let mut run = Run::new(situation, requests, policy)?;
    run.play();
    Ok(Played {
        held: run.policy.held(),
        ended_at: run.at,
        world: run.world,
        looks: run.looks,
        usage: run.usage,
    })
}

impl Run {
    fn new(situation: &Situation, requests: Vec<Request>, mut policy: Box<dyn Policy>) -> Result<Self> {
        let setup = situation.engine;
        let exposition = Exposition::new(&setup);
        policy.started(0, &setup, exposition.reading());
        let mut run = Self {
            at: 0,
            end: LEAD + situation.length,
            world: World::new(setup, situation.objective, requests),
            engine: AisimEngine::new(&setup)?,
            exposition,
            interval: policy.interval().unwrap_or(situation.telemetry.interval),
            policy,
            streams: Streams::new(),
            step: None,
            life: 0,
            idle_readings: 0,
            queue: BinaryHeap::new(),
            happenings: HashMap::new(),
            next: 0,
            scraping: Random::new(situation.seed, 3),
            telemetry: situation.telemetry,
            unseen: VecDeque::new(),
            lagging: Random::new(situation.seed, 6),
            lags: (false, 0),
            looking: Random::new(situation.seed, 4),
            seed: situation.seed,
            retry: situation.gateway.retry,
            looks: Vec::new(),
            gauge: None,
            scraped_at: 0,
            usage: Usage::new(setup.blocks, setup.max_num_seqs, LEAD, LEAD + situation.length),
        };
        if let Some(at) = situation.restart {
            run.plan(LEAD + at, Next::Restart);
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
                self.show();
                let (reading, idle) = (self.exposition.reading(), self.world.live.is_empty());
                let sampled = Box::new(Sampled { reading, life: self.life, idle });
                self.plan(deliver, Next::Deliver { sent, sampled });
            }
            Next::Deliver { sent, sampled } => self.deliver(sent, *sampled),
            Next::Progress => self.progress(),
            Next::Look => self.look(),
        }
    }

    /// Sums up use until now.
    fn account(&mut self) {
        self.usage.account(self.at, self.world.used);
    }
}
