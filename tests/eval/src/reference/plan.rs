//! A plan of who is let in, made beforehand from all lengths and arrivals.
//!
//! Window after window of requests that ask: those that bring most for what they take are let in first, each if the
//! output tokens that come in time increase by it; then one is exchanged for another where that brings more. A window's
//! second half is planned again with the next.

use std::collections::HashMap;

use super::{
    clairvoyant::worth,
    forecast::{Forecast, Item, Start, until},
    outlook::milliseconds,
};
use crate::{
    policy::{Answer, Ask, Policy},
    request::Request,
    trace::Content,
    world::World,
};

/// Requests that are planned together; half of them are settled.
const WINDOW: usize = 48;
/// Shares of an objective's time that are tried: the forecast is not exact.
pub(crate) const PLANS: [f64; 2] = [0.93, 1.0];
/// Rounds of exchanges.
const ROUNDS: usize = 4;
/// Of those let in, so many before and after a denied one are tried in exchange for it.
const NEAR: usize = 8;

/// Lets in what the plan says.
pub(crate) struct Planned {
    share: f64,
    admitted: Vec<bool>,
}

impl Planned {
    /// A first token is in time within `share` of what its objective allows.
    pub(crate) const fn within(share: f64) -> Self {
        Self { share, admitted: Vec::new() }
    }
}

impl Policy for Planned {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        if self.admitted.is_empty() {
            self.admitted = Plan::new(ask.world, self.share).make();
        }
        Answer::plain(self.admitted[ask.request.id as usize])
    }
}

struct Plan<'a> {
    world: &'a World,
    share: f64,
    /// By time of arrival.
    requests: Vec<&'a Request>,
    /// Place of the turn before in the same conversation.
    before: Vec<Option<usize>>,
    admitted: Vec<bool>,
    /// When each one let in ends, by the last forecast, milliseconds.
    ends: Vec<f64>,
}

impl<'a> Plan<'a> {
    fn new(world: &'a World, share: f64) -> Self {
        let mut requests: Vec<_> = world.requests.iter().collect();
        requests.sort_by_key(|request| request.at);
        let mut last = HashMap::new();
        let before = requests.iter().enumerate().map(|(place, request)| match request.content {
            Content::Session(session) | Content::Conversation { session, .. } => last.insert(session, place),
            Content::Own | Content::Blocks { .. } => None,
        });
        let before = before.collect();
        let admitted = requests.iter().map(|request| request.bypass).collect();
        Self { world, share, before, admitted, ends: vec![f64::INFINITY; requests.len()], requests }
    }

    /// Of every request, by id, whether it is let in.
    fn make(mut self) -> Vec<bool> {
        let asking: Vec<_> = (0..self.requests.len()).filter(|place| !self.requests[*place].bypass).collect();
        for first in (0..asking.len()).step_by(WINDOW / 2) {
            self.window(&asking[first..asking.len().min(first + WINDOW)]);
        }
        let mut by_id = vec![false; self.requests.len()];
        for (request, admitted) in self.requests.iter().zip(self.admitted) {
            by_id[request.id as usize] = admitted;
        }
        by_id
    }

    fn window(&mut self, window: &[usize]) {
        let (Some(first), Some(last)) = (window.first(), window.last()) else { return };
        let begins = milliseconds(self.requests[*first].at);
        let live = |place: &usize| self.admitted[*place] && self.ends[*place] > begins;
        let from = (0..*first).find(live).unwrap_or(*first);
        let range = (from, *last + 1);
        for place in window {
            self.admitted[*place] = false;
        }
        let mut value = self.value(range);
        let mut order = window.to_vec();
        let worth = |place: usize| worth(self.world, self.requests[place]);
        order.sort_by(|a, b| worth(*b).total_cmp(&worth(*a)));
        for place in order {
            value = self.attempt(range, value, &[place]);
        }
        for _ in 0..ROUNDS {
            let rounds_value = value;
            value = self.exchange(window, range, value);
            if value == rounds_value {
                break;
            }
        }
        let (items, forecast) = self.forecast(range);
        for (place, item) in items {
            self.ends[place] = forecast.ends[item];
        }
    }

    /// Exchanges each denied one for one let in, where that increases the value.
    fn exchange(&mut self, window: &[usize], range: (usize, usize), mut value: u64) -> u64 {
        for (number, place) in window.iter().enumerate() {
            let near = &window[number.saturating_sub(NEAR)..window.len().min(number + NEAR + 1)];
            for other in near {
                if self.admitted[*place] != self.admitted[*other] {
                    value = self.attempt(range, value, &[*place, *other]);
                }
            }
            value = self.attempt(range, value, &[*place]);
        }
        value
    }

    /// Lets in those of `places` that are denied, and the reverse, if the value increases.
    fn attempt(&mut self, range: (usize, usize), value: u64, places: &[usize]) -> u64 {
        let flip = |plan: &mut Self| places.iter().for_each(|place| plan.admitted[*place] ^= true);
        flip(self);
        let attempted = self.value(range);
        if attempted > value {
            return attempted;
        }
        flip(self);
        value
    }

    /// Output tokens of those let in that come in time; 0 where the pool overflows.
    fn value(&self, range: (usize, usize)) -> u64 {
        let (items, forecast) = self.forecast(range);
        if forecast.overflows {
            return 0;
        }
        let good = items.into_iter().filter(|(place, item)| {
            let request = self.requests[*place];
            let allowed = milliseconds(request.at) + milliseconds(self.allowed(request, *place)) * self.share;
            forecast.first_tokens[*item] <= allowed
        });
        good.map(|(place, _)| self.requests[place].length).sum()
    }

    fn allowed(&self, request: &Request, place: usize) -> u64 {
        self.world.deadline(request, self.cached(place))
    }

    /// Those let in within the range, with their places in the forecast from an idle engine.
    fn forecast(&self, (from, to): (usize, usize)) -> (Vec<(usize, usize)>, Forecast) {
        let admitted: Vec<_> = (from..to).filter(|place| self.admitted[*place]).collect();
        let items: Vec<_> = admitted.iter().map(|place| self.item(*place)).collect();
        let setup = &self.world.setup;
        let start = Start { setup, capacity: setup.blocks, exact: false, step_end: 0.0 };
        let forecast = until(start, &items, f64::INFINITY);
        (admitted.into_iter().zip(0..).collect(), forecast)
    }

    fn item(&self, place: usize) -> Item {
        let request = self.requests[place];
        Item {
            arrives: milliseconds(request.at + request.delivery),
            prompt: request.prompt,
            computed: self.cached(place),
            generated: 0,
            remaining: request.length.max(1),
            deadline: f64::INFINITY,
        }
    }

    /// Prompt tokens that the turn before leaves in the prefix cache.
    fn cached(&self, place: usize) -> u64 {
        let before =
            self.before[place].filter(|before| self.admitted[*before] && self.world.setup.prefix_caching);
        let said = before.map_or(0, |before| self.requests[before].prompt + self.requests[before].length);
        said.min(self.requests[place].prompt.saturating_sub(1))
    }
}
