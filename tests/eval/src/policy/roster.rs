//! Every rule with the parameters it is tried with.

use gpuadmit_core::parts::Parts;

use super::{
    Policy,
    bucket::TokenBucket,
    epp::{TokenConcurrency, Utilization},
    gauge::{Everybody, Margin, WaitingLimit},
    gpuadmit::Gpuadmit,
    ledger::{ActiveBlocks, Concurrency, NoEvict, WorstCase},
    past_future::PastFuture,
    ttft::WithTtft,
    vllm::{QueuedRequests, QueuedTokens},
};
use crate::{
    reference::{Clairvoyant, MARGINS, ORDERS, PLANS, Planned, State},
    situation::Situation,
    time::{MILLISECOND, SECOND},
};

/// One rule with one set of parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Rule, as in [`FAMILIES`].
    pub(crate) family: &'static str,
    /// Its parameter; 0 where it has none.
    pub(crate) value: f64,
    /// Whether it also gets the TTFT rule.
    pub(crate) ttft: bool,
    /// What gpuadmit has of its learned parts.
    pub(crate) parts: Parts,
}

/// A rule and the values of its parameter that are tried. The best of each situation is shown: an operator, who must
/// choose one in advance, cannot do that.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// What its parameter is.
    pub(crate) parameter: &'static str,
    pub(crate) values: &'static [f64],
    /// Values in quick mode.
    pub(crate) quick: &'static [f64],
    /// Whether it is also tried with the TTFT rule; gpuadmit and the ceiling have their own.
    pub(crate) ttft: bool,
}

const fn fixed(name: &'static str, ttft: bool) -> Family {
    Family { name, parameter: "", values: &[0.0], quick: &[0.0], ttft }
}

const fn swept(
    name: &'static str,
    parameter: &'static str,
    values: &'static [f64],
    quick: &'static [f64],
) -> Family {
    Family { name, parameter, values, quick, ttft: true }
}

/// Rules that see the future, and that see the true state of the engine. Gates are relative to the latter.
pub(crate) const CLAIRVOYANT: &str = "ceiling";
pub(crate) const STATE: &str = "state";

const fn reference(name: &'static str, values: &'static [f64]) -> Family {
    Family { name, parameter: "variant", values, quick: values, ttft: false }
}

/// All rules.
pub(crate) const FAMILIES: &[Family] = &[
    reference("ceiling", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
    reference("state", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    fixed("gpuadmit", false),
    fixed("gpuadmit-installed", false),
    fixed("gpuadmit-ends", false),
    fixed("none", true),
    fixed("gauge-5s", true),
    fixed("gauge-100ms", true),
    swept(
        "token-bucket",
        "of the rate of prefill",
        &[0.125, 0.25, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0],
        &[0.25, 0.5, 1.0, 2.0],
    ),
    swept("worst-case", "share of pool", &[0.75, 1.0, 1.25, 1.5, 2.0], &[1.0, 1.5]),
    swept("epp", "kv limit", &[0.7, 0.8, 0.9, 0.95, 1.0], &[0.8, 0.95]),
    swept("epp-hybrid", "of the slots", &[0.5, 0.75, 1.0, 1.25], &[0.75, 1.0]),
    swept("epp-tokens", "share of pool", &[0.5, 0.75, 1.0, 1.5, 2.0], &[0.75, 1.0]),
    swept(
        "concurrency",
        "requests",
        &[4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0],
        &[8.0, 16.0, 32.0, 64.0],
    ),
    swept("concurrency-slots", "of the slots", &[0.25, 0.5, 0.75, 1.0, 1.25], &[0.5, 1.0]),
    swept("kaito", "waiting", &[2.0, 8.0, 32.0, 256.0], &[2.0, 32.0]),
    fixed("kaito-slots", true),
    swept("vllm-requests", "of the slots", &[1.0, 1.1, 1.25, 1.5, 2.0], &[1.0, 1.25]),
    swept("vllm-tokens", "of objective × rate of prefill", &[0.25, 0.5, 0.75, 1.0], &[0.5, 1.0]),
    swept("dynamo", "share of pool", &[0.6, 0.7, 0.8, 0.9, 1.0], &[0.7, 0.85]),
    fixed("no-evict", true),
    swept("past-future", "reserve", &[0.0, 0.03, 0.05, 0.1, 0.2], &[0.03, 0.1]),
];

/// A rule by its name.
pub(crate) fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

impl Family {
    /// All that is tried of it.
    pub(crate) fn candidates(&self, quick: bool) -> Vec<Candidate> {
        let values = if quick { self.quick } else { self.values };
        let variants: &[bool] = if self.ttft { &[false, true] } else { &[false] };
        let pairs = variants.iter().flat_map(|ttft| values.iter().map(|value| (*value, *ttft)));
        pairs
            .map(|(value, ttft)| Candidate { family: self.name, value, ttft, parts: Parts::default() })
            .collect()
    }
}

impl Candidate {
    /// Name of the rule, with its variant.
    pub(crate) fn rule(&self) -> String {
        let parts = if self.parts == Parts::default() { "" } else { ", parts missing" };
        format!("{}{}{parts}", self.family, if self.ttft { " + TTFT" } else { "" })
    }

    /// Name of the rule, and its parameter where it has one.
    pub(crate) fn title(&self) -> String {
        match family(self.family).map_or("", |family| family.parameter) {
            "" => self.rule(),
            parameter => format!("{} ({} {parameter})", self.rule(), self.value),
        }
    }

    /// A fresh instance for `situation`.
    pub(crate) fn build(&self, situation: &Situation) -> Box<dyn Policy> {
        let value = self.value;
        match self.family {
            "ceiling" => match ORDERS.get(value as usize) {
                Some(order) => Box::new(Clairvoyant::new(*order)),
                None => Box::new(Planned::within(PLANS[value as usize - ORDERS.len()])),
            },
            "state" => {
                Box::new(State::new(situation, MARGINS[value as usize]).expect("it was loaded before"))
            }
            "gpuadmit" => Box::new(Gpuadmit::new(situation, self.parts)),
            "gpuadmit-installed" => Box::new(Gpuadmit::as_installed(situation, self.parts)),
            "gpuadmit-ends" => Box::new(Gpuadmit::ends_only(situation, self.parts)),
            "gauge-5s" => self.wrap(Margin::new(0.15, Some(5 * SECOND))),
            "gauge-100ms" => self.wrap(Margin::new(0.15, Some(100 * MILLISECOND))),
            "token-bucket" => self.wrap(TokenBucket::new(value)),
            "worst-case" => self.wrap(WorstCase(value)),
            "epp" => self.wrap(Utilization::new(value)),
            "epp-hybrid" => self.wrap(Utilization::hybrid(value)),
            "epp-tokens" => self.wrap(TokenConcurrency(value)),
            "concurrency" => self.wrap(Concurrency::Requests(value as usize)),
            "concurrency-slots" => self.wrap(Concurrency::OfSlots(value)),
            "kaito" => self.wrap(WaitingLimit::new(Some(value as u64))),
            "kaito-slots" => self.wrap(WaitingLimit::new(None)),
            "vllm-requests" => self.wrap(QueuedRequests { of_slots: value }),
            "vllm-tokens" => self.wrap(QueuedTokens { of_objective: value }),
            "dynamo" => self.wrap(ActiveBlocks(value)),
            "no-evict" => self.wrap(NoEvict),
            "past-future" => self.wrap(PastFuture::new(value)),
            _ => self.wrap(Everybody),
        }
    }

    fn wrap<P: Policy + 'static>(&self, policy: P) -> Box<dyn Policy> {
        if self.ttft { Box::new(WithTtft::new(policy)) } else { Box::new(policy) }
    }
}
