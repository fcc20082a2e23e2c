//! Whether an engine can take one request more.

use super::forecast::{Forecast, Item, Start, until, watching};
use crate::{
    engine::RequestId,
    request::{Phase, Request},
    time::{MILLISECOND, Nanos},
    world::World,
};

/// What is known, or assumed, of an engine at one moment.
pub(super) struct Outlook<'a> {
    world: &'a World,
    at: Nanos,
    /// Share of the time that an objective allows within which a forecast first token is in time.
    share: f64,
    /// Whether requests' growth must fit into the pool as forecast.
    exact: bool,
    items: Vec<Item>,
}

impl<'a> Outlook<'a> {
    /// Of all that is in the engine or on its way, each request with a guess of its output length. Nobody's growth is
    /// taken to overflow the pool.
    pub(super) fn of_slots_and_time(
        world: &'a World,
        at: Nanos,
        share: f64,
        length: impl Fn(&Request, u64) -> u64,
    ) -> Self {
        Self::new(world, at, share, false, length)
    }

    /// With the output length that `length` gives for a request and what it has generated.
    fn new(
        world: &'a World,
        at: Nanos,
        share: f64,
        exact: bool,
        length: impl Fn(&Request, u64) -> u64,
    ) -> Self {
        let mut outlook = Self { world, at, share, exact, items: Vec::with_capacity(world.live.len() + 1) };
        let mut live: Vec<RequestId> = world.live.clone();
        live.sort_by_key(|id| world.fates[*id as usize].sent_at + world.request(*id).delivery);
        let mut partial = world.partial;
        for id in live {
            let (request, generated) = (world.request(id), world.fates[id as usize].generated);
            let length = length(request, generated);
            let item = outlook.live(id, length, &mut partial);
            outlook.items.push(item);
        }
        outlook
    }

    /// A request in the engine or on its way. `partial` prompt tokens of those that wait are computed: the first ones'.
    fn live(&self, id: RequestId, length: u64, partial: &mut u64) -> Item {
        let (request, fate) = (self.world.request(id), &self.world.fates[id as usize]);
        let mut item = self.item(request, fate.sent_at, length);
        item.generated = if fate.phase == Phase::Decoding { fate.generated } else { 0 };
        item.remaining = length.saturating_sub(item.generated).max(1);
        if fate.phase == Phase::Queued {
            let cached = if fate.cached > 0 { fate.cached } else { item.computed };
            let done = (*partial).min(request.prompt.saturating_sub(cached + 1));
            *partial -= done;
            item.computed = cached + done;
        }
        item
    }

    /// `request`, let in at `sent`.
    fn item(&self, request: &Request, sent: Nanos, length: u64) -> Item {
        let computed = self.world.cached(self.at, request);
        let allowed = self.world.deadline(request, computed) as f64 * self.share;
        Item {
            arrives: self.after(sent + request.delivery),
            prompt: request.prompt,
            computed,
            generated: 0,
            remaining: length.max(1),
            deadline: milliseconds(sent) + allowed / MILLISECOND as f64 - milliseconds(self.at),
        }
    }

    fn after(&self, at: Nanos) -> f64 {
        milliseconds(at.saturating_sub(self.at))
    }

    /// Adds a request that will be let in at `sent`.
    pub(super) fn expect(&mut self, request: &Request, sent: Nanos, length: u64) {
        let item = self.item(request, sent, length);
        self.items.push(item);
    }

    /// Whether `request`, let in now, will meet its objective and harm nobody: nothing else misses its first token or
    /// the pace for it, and the pool does not overflow until it has ended.
    pub(super) fn takes(mut self, request: &Request, length: u64) -> bool {
        self.expect(request, self.at, length);
        let (start, candidate) = (self.start(), self.items.len() - 1);
        let with = watching(start, &self.items, candidate);
        if (with.overflows && self.exact) || with.first_tokens[candidate] > self.items[candidate].deadline {
            return false;
        }
        let pace = milliseconds(self.world.objective.pace);
        let late = |forecast: &Forecast, item: usize| {
            let (first, deadline) = (forecast.first_tokens[item], self.items[item].deadline);
            self.items[item].generated == 0 && first > deadline
        };
        let missed: Vec<_> = (0..candidate).filter(|item| late(&with, *item)).collect();
        if missed.is_empty() && with.longest_step <= pace {
            return true;
        }
        let without = until(start, &self.items[..candidate], with.ends[candidate]);
        let slower = with.longest_step > pace && without.longest_step <= pace;
        // One that arrives after the end is in neither forecast.
        !slower && missed.iter().all(|item| late(&without, *item))
    }

    fn start(&self) -> Start<'a> {
        let setup = &self.world.setup;
        let capacity = setup.blocks + self.world.shared();
        Start { setup, capacity, exact: self.exact, step_end: self.after(self.world.step_end) }
    }
}

/// Share of the objective within which a forecast of true lengths counts as in time: it is not exact.
pub(super) const EXACT: f64 = 0.95;

/// The outlook with true lengths, and with all that will come without asking while `request` lives.
pub(super) fn true_outlook<'a>(world: &'a World, at: Nanos, request: &Request) -> Outlook<'a> {
    let mut outlook = Outlook::new(world, at, EXACT, true, |request, _| request.length);
    let horizon = at + world.lifetime(request);
    for coming in world.bypassing(at).take_while(|coming| coming.at < horizon) {
        outlook.expect(coming, coming.at, coming.length);
    }
    outlook
}

/// Whether `request`, let in now, would meet its objective and harm nobody, by true lengths and with all that will come
/// without asking.
pub(crate) fn fits(world: &World, at: Nanos, request: &Request) -> bool {
    true_outlook(world, at, request).takes(request, request.length)
}

pub(super) fn milliseconds(time: Nanos) -> f64 {
    time as f64 / MILLISECOND as f64
}
