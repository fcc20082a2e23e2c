//! The state reference: the engine's true state and how long outputs are in general, but no future and no request's own
//! length.
//!
//! It knows every slot, the queue and each prompt in it, those that asked nobody included, and how often such requests
//! come. First tokens are forecast with lengths drawn from the distribution of outputs longer than what a request has
//! generated; the draws are spread evenly, so that many requests together end as the distribution says. The pool must
//! hold the mean of what requests will hold and some standard deviations more, now and at any later step.

use anyhow::Result;

use super::{
    growth::{Growing, Lengths},
    outlook::Outlook,
};
use crate::{
    policy::{Answer, Ask, Policy},
    random::hash,
    request::{Fate, Request},
    situation::Situation,
    time::{Nanos, nanos, seconds},
    world::World,
};

/// Margins that are tried: standard deviations that stay free in the pool, and the share of an objective's time within
/// which a forecast first token is in time.
pub(crate) const MARGINS: [(f64, f64); 8] =
    [(0.0, 1.0), (0.5, 0.95), (1.0, 1.0), (1.0, 0.9), (1.5, 0.95), (2.0, 0.9), (2.0, 0.7), (3.0, 0.8)];
/// A seed's distance to the one whose requests show the distribution.
const OTHER_DRAW: u64 = 0x5eed;
/// The golden ratio's fraction: its multiples are spread evenly over [0, 1).
const GOLDEN: f64 = 0.618_033_988_749_894_9;
/// Most requests that are expected to come without asking in one forecast.
const MOST_EXPECTED: u64 = 200;
/// Later steps at which the pool is looked at, each this much further than the one before.
const LOOKS: i32 = 14;
const FURTHER: f64 = 1.7;

/// The rule.
pub(crate) struct State {
    deviations: f64,
    share: f64,
    /// Without regard to max_tokens.
    lengths: Lengths,
    /// Requests as they come without asking.
    typical: Vec<Request>,
    /// Mean time between two of those.
    bypass_every: Option<Nanos>,
}

impl State {
    pub(crate) fn new(situation: &Situation, (deviations, share): (f64, f64)) -> Result<Self> {
        let other = Situation { seed: situation.seed ^ OTHER_DRAW, ..situation.clone() };
        let arrivals = other.source.load(other.speed, other.length, other.seed)?;
        let lengths = Lengths::new(arrivals.iter().map(|arrival| arrival.output.max(1)).collect());
        let typical = other.requests()?;
        let bypassing = typical.len() as f64 * situation.clients.bypass;
        let bypass_every = (bypassing >= 1.0).then(|| nanos(seconds(situation.length) / bypassing));
        Ok(Self { deviations, share, lengths, typical, bypass_every })
    }

    /// An output length of `request`, which has generated so many tokens.
    fn length(&self, request: &Request, generated: u64) -> u64 {
        let place = (f64::from(request.id) * GOLDEN).fract();
        self.lengths.quantile(generated, place).min(request.max_tokens.unwrap_or(u64::MAX)).max(generated + 1)
    }

    /// Those that will come without asking before `until`, as often as they do on average.
    fn expected(&self, at: Nanos, until: Nanos) -> impl Iterator<Item = (Nanos, &Request)> {
        let every = self.bypass_every.unwrap_or(Nanos::MAX);
        let times = (1..=MOST_EXPECTED).map(move |number| at.saturating_add(every.saturating_mul(number)));
        times.take_while(move |time| *time < until).filter_map(move |time| {
            let place = hash(at, time) % self.typical.len().max(1) as u64;
            self.typical.get(place as usize).map(|request| (time, request))
        })
    }

    /// Whether the pool will hold all, with the margin.
    fn has_room(&self, world: &World, growing: &[Growing]) -> bool {
        let setup = &world.setup;
        let capacity = ((setup.blocks + world.shared()) * setup.block_size) as f64;
        let mut step = 1.0;
        (0..LOOKS).all(|_| {
            let held = self.lengths.held(growing, step as u64);
            step = (step * FURTHER).max(step + 1.0);
            let rounding = held.count * (setup.block_size - 1) as f64 / 2.0;
            held.mean + rounding + self.deviations * held.variance.sqrt() <= capacity
        })
    }
}

impl Policy for State {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let Ask { at, request, world, .. } = *ask;
        let live = world.live.iter().map(|id| known(world.request(*id), &world.fates[*id as usize]));
        let mut growing: Vec<_> = live.collect();
        growing.push(Growing::new(request));
        let length = self.length(request, 0);
        let ends = at + world.lifetime(&Request { length, ..request.clone() });
        let mut outlook = Outlook::of_slots_and_time(world, at, self.share, |request, generated| {
            self.length(request, generated)
        });
        let step_time = world.step_time.max(1);
        let horizon = at + FURTHER.powi(LOOKS) as u64 * step_time;
        for (time, coming) in self.expected(at, horizon) {
            let start = (time - at) / step_time;
            growing.push(Growing { start, certain: false, ..Growing::new(coming) });
            if time < ends {
                outlook.expect(coming, time, coming.length);
            }
        }
        Answer::plain(self.has_room(world, &growing) && outlook.takes(request, length))
    }
}

impl Growing {
    fn new(request: &Request) -> Self {
        let max_tokens = request.max_tokens.unwrap_or(u64::MAX);
        Self { start: 0, prompt: request.prompt, generated: 0, max_tokens, certain: true }
    }
}

fn known(request: &Request, fate: &Fate) -> Growing {
    Growing { generated: fate.generated, ..Growing::new(request) }
}
