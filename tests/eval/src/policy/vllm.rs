//! vLLM's own limits (0.32, `AsyncLLM.check_admission`). They stand in its API server, so they count everybody's
//! requests, and reject everybody's.

use super::{Answer, Ask, Policy};
use crate::{request::Phase, time::seconds};

/// `--max-num-queued-reqs`: rejects when this many are unfinished, whether they wait or run.
pub(crate) struct QueuedRequests {
    /// Multiple of max_num_seqs: vLLM advises max_num_seqs plus the desired depth of the queue.
    pub(crate) of_slots: f64,
}

impl Policy for QueuedRequests {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let limit = (self.of_slots * ask.setup.max_num_seqs as f64) as usize;
        Answer::because(ask.world.live.len() < limit, "slots")
    }

    fn asked_by_everybody(&self) -> bool {
        true
    }
}

/// `--max-num-queued-tokens`: rejects when the prompts of all requests without a first token have this many tokens, the
/// new one not counted.
pub(crate) struct QueuedTokens {
    /// vLLM advises the objective times the rate of prefill: a multiple of that.
    pub(crate) of_objective: f64,
}

impl Policy for QueuedTokens {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let world = ask.world;
        let prefilling = world.live.iter().filter(|id| world.fates[**id as usize].phase != Phase::Decoding);
        let queued: u64 = prefilling.map(|id| world.request(*id).prompt).sum();
        let limit = self.of_objective * seconds(ask.deadline()) * ask.setup.prefill_rate();
        Answer::because((queued as f64) < limit, "time")
    }

    fn asked_by_everybody(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::EngineSetup, policy::Streams, request::Request, situation::Objective, trace::Content,
        world::World,
    };

    fn request(id: u32) -> Request {
        Request {
            id,
            at: 0,
            prompt: 1000,
            length: 10,
            max_tokens: None,
            tenant: 0,
            content: Content::Own,
            delivery: 0,
            bypass: false,
            lost: false,
            leaves_after: None,
        }
    }

    /// How many of requests that all come at once are let in.
    fn let_in(mut policy: impl Policy, setup: EngineSetup) -> usize {
        let requests: Vec<_> = (0..200).map(request).collect();
        let mut world = World::new(setup, Objective::USUAL, requests.clone());
        let streams = Streams::new();
        for request in &requests {
            let ask = Ask { at: 0, request, streams: &streams, setup: &setup, world: &world };
            if policy.decide(&ask) == Answer::plain(true) {
                world.live.push(request.id);
            }
        }
        world.live.len()
    }

    #[test]
    fn unfinished_requests_are_limited() {
        let setup = EngineSetup { max_num_seqs: 20, ..EngineSetup::of_pool(1_000_000, false) };
        assert_eq!(let_in(QueuedRequests { of_slots: 1.5 }, setup), 30);
    }

    #[test]
    fn the_request_that_reaches_the_limit_of_tokens_is_the_last() {
        let setup = EngineSetup::of_pool(1_000_000, false);
        // 2,048 tokens in 15 + 0.04 + 2,048 × 0.06 + 2,048² / 2 × 0.000002 ms: 14,400 a second, 43 prompts in 3 s.
        assert!((setup.prefill_rate() - 14_391.0).abs() < 100.0, "{}", setup.prefill_rate());
        assert_eq!(let_in(QueuedTokens { of_objective: 1.0 }, setup), 44);
    }
}
