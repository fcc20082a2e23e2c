//! By what a request is judged.

use serde::{Deserialize, Serialize};

use crate::{
    engine::EngineSetup,
    request::{Fate, Phase, Request},
    time::{Nanos, SECOND},
};

/// By what a request is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Objective {
    /// Of the first token.
    pub(crate) limit: Limit,
    /// The longest pause between two tokens of a good answer.
    #[serde(rename = "pace_ns")]
    pub(crate) pace: Nanos,
    /// Whether callers name it. Otherwise the rule knows the class only.
    pub(crate) named: bool,
}

/// When a first token is in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    /// So many nanoseconds after its admission, delivery and its own prefill included.
    FirstTokenNs(Nanos),
    /// When it waits behind others no longer than its class allows; its delivery and its own prefill do not count.
    Class(Class),
}

/// A request's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Class {
    Interactive,
    Standard,
    Batch,
}

impl Class {
    /// The longest wait behind others.
    pub(crate) const fn wait(self) -> Nanos {
        match self {
            Self::Interactive => 3 * SECOND,
            Self::Standard => 5 * SECOND,
            Self::Batch => 60 * SECOND,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Standard => "standard",
            Self::Batch => "batch",
        }
    }
}

impl Objective {
    /// A first token within 3 s, no pause longer than 1 s, named by the caller.
    pub(crate) const USUAL: Self = Self { limit: Limit::FirstTokenNs(3 * SECOND), pace: SECOND, named: true };

    /// The class that callers state.
    pub(crate) const fn class(&self) -> Class {
        match self.limit {
            Limit::FirstTokenNs(_) => Class::Standard,
            Limit::Class(class) => class,
        }
    }

    /// The longest time from admission to first token of `request`, `cached` of whose prompt tokens are in the prefix
    /// cache.
    pub(crate) fn deadline(&self, setup: &EngineSetup, request: &Request, cached: u64) -> Nanos {
        match self.limit {
            Limit::FirstTokenNs(limit) => limit,
            Limit::Class(class) => {
                class.wait() + request.delivery + setup.prefill_alone(request.prompt, cached)
            }
        }
    }

    /// Whether the request ended and met it.
    pub(crate) fn met(&self, setup: &EngineSetup, request: &Request, fate: &Fate) -> bool {
        fate.phase == Phase::Done
            && fate.ttft().is_some_and(|ttft| ttft <= self.deadline(setup, request, fate.cached))
            && fate.longest_gap <= self.pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::StepCost, time::MILLISECOND, trace::Content};

    #[test]
    fn a_class_bounds_the_wait_behind_others_only() {
        let cost = StepCost {
            base: 10.0,
            per_sequence: 0.0,
            per_prefill_token: 1.0,
            per_context_token: 0.0,
            per_prefill_pair: 0.0,
        };
        let setup = EngineSetup { max_num_batched_tokens: 100, cost, ..EngineSetup::of_pool(48_000, true) };
        let request = Request {
            id: 0,
            at: 0,
            prompt: 250,
            length: 10,
            max_tokens: None,
            tenant: 0,
            content: Content::Own,
            delivery: 40 * MILLISECOND,
            bypass: false,
            lost: false,
            leaves_after: None,
        };
        let of = |limit| Objective { limit, ..Objective::USUAL };
        let class = of(Limit::Class(Class::Standard));
        // Three steps of 10 ms and 250 tokens of 1 ms; with 150 of them cached one step and 100 tokens.
        assert_eq!(class.deadline(&setup, &request, 0), 5 * SECOND + (40 + 30 + 250) * MILLISECOND);
        assert_eq!(class.deadline(&setup, &request, 150), 5 * SECOND + (40 + 10 + 100) * MILLISECOND);
        assert_eq!(of(Limit::FirstTokenNs(SECOND)).deadline(&setup, &request, 0), SECOND);
    }
}
