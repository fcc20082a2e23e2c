//! Rules that know every length and every arrival. The best of them in a situation is its ceiling.

use super::outlook::true_outlook;
use crate::{
    policy::{Answer, Ask, Policy},
    request::Request,
    time::Nanos,
    world::World,
};

/// Which of those that fit are let in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// All, as they arrive.
    Arrival,
    /// Those that bring at least as many output tokens for what they take as this share of all requests does not.
    Worth(f64),
    /// Those that leave room for all shorter ones to come while they live.
    Shortest,
    /// Those that leave room for all to come while they live that bring more for what they take.
    WorthFirst,
}

/// All that are tried.
pub(crate) const ORDERS: [Order; 7] = [
    Order::Arrival,
    Order::Worth(0.15),
    Order::Worth(0.3),
    Order::Worth(0.5),
    Order::Worth(0.7),
    Order::Shortest,
    Order::WorthFirst,
];

/// A clairvoyant rule.
pub(crate) struct Clairvoyant {
    order: Order,
    /// Of each request, by id; filled at the first question.
    worth: Vec<f64>,
    /// Least worth of one that is let in.
    least: f64,
}

impl Clairvoyant {
    pub(crate) const fn new(order: Order) -> Self {
        Self { order, worth: Vec::new(), least: 0.0 }
    }

    fn weigh(&mut self, world: &World) {
        self.worth = world.requests.iter().map(|request| worth(world, request)).collect();
        if let Order::Worth(share) = self.order {
            let mut sorted = self.worth.clone();
            sorted.sort_by(f64::total_cmp);
            self.least = sorted[((sorted.len() - 1) as f64 * share) as usize];
        }
    }

    /// Whether `other` comes before `request` where both cannot be had.
    fn precedes(&self, other: &Request, request: &Request) -> bool {
        match self.order {
            Order::Arrival | Order::Worth(_) => false,
            Order::Shortest => other.length < request.length,
            Order::WorthFirst => self.worth[other.id as usize] > self.worth[request.id as usize],
        }
    }

    fn takes(&self, world: &World, at: Nanos, request: &Request) -> bool {
        if self.worth[request.id as usize] < self.least
            || !true_outlook(world, at, request).takes(request, request.length)
        {
            return false;
        }
        let horizon = at + world.lifetime(request);
        let later = world.asking(at).take_while(|later| later.at < horizon);
        let better: Vec<_> = later.filter(|later| self.precedes(later, request)).collect();
        if better.is_empty() {
            return true;
        }
        let mut outlook = true_outlook(world, at, request);
        for other in better {
            outlook.expect(other, other.at, other.length);
        }
        outlook.takes(request, request.length)
    }
}

impl Policy for Clairvoyant {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        if self.worth.is_empty() {
            self.weigh(ask.world);
        }
        Answer::plain(self.takes(ask.world, ask.at, ask.request))
    }
}

/// Output tokens for the share of the engine's scarcest resource that a request takes: blocks and slots over its life,
/// tokens of steps.
pub(super) fn worth(world: &World, request: &Request) -> f64 {
    let setup = &world.setup;
    let (prompt, length) = (request.prompt as f64, request.length as f64);
    let blocks = length * (prompt + length / 2.0) / setup.pool_tokens() as f64;
    let slots = length / setup.max_num_seqs as f64;
    let time = (prompt + length) / setup.max_num_batched_tokens as f64;
    length / blocks.max(slots).max(time)
}
