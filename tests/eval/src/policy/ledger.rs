//! Rules that count what was sent and has not come back.

use super::{Answer, Ask, Policy, Stream};

/// Output tokens that a budget assumes for a request without max_tokens.
pub(crate) const ASSUMED_OUTPUT: u64 = 1024;

/// At most so many requests under way.
pub(crate) enum Concurrency {
    Requests(usize),
    /// This multiple of the engine's slots.
    OfSlots(f64),
}

impl Policy for Concurrency {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let limit = match *self {
            Self::Requests(limit) => limit,
            Self::OfSlots(share) => (share * ask.setup.max_num_seqs as f64).max(1.0) as usize,
        };
        Answer::because(ask.streams.len() < limit, "slots")
    }
}

/// Worst-case budget: prompts and allowed outputs of all under way stay below a share of the pool's tokens.
pub(crate) struct WorstCase(pub(crate) f64);

impl Policy for WorstCase {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let worst = |prompt: u64, max_tokens: Option<u64>| prompt + max_tokens.unwrap_or(ASSUMED_OUTPUT);
        let promised: u64 = ask.streams.values().map(|stream| worst(stream.prompt, stream.max_tokens)).sum();
        let budget = self.0 * ask.setup.pool_tokens() as f64;
        let need = worst(ask.request.prompt, ask.request.max_tokens);
        Answer::because((promised + need) as f64 <= budget, "memory")
    }
}

/// TensorRT-LLM's GUARANTEED_NO_EVICT: blocks for prompt and all output are set aside; without a limit the output may
/// fill the context window.
pub(crate) struct NoEvict;

impl Policy for NoEvict {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let window = ask.setup.max_model_len;
        let blocks = |prompt: u64, max_tokens: Option<u64>| {
            let output = max_tokens.unwrap_or(window).min(window - prompt.min(window));
            ask.world.blocks(prompt + output)
        };
        let promised: u64 = ask.streams.values().map(|stream| blocks(stream.prompt, stream.max_tokens)).sum();
        let need = blocks(ask.request.prompt, ask.request.max_tokens);
        Answer::because(promised + need <= ask.setup.blocks, "memory")
    }
}

/// Dynamo's router: a worker is busy while the blocks of its requests (prompts, and output as it is generated, with
/// `router_track_output_blocks`) exceed a share of the pool. It rejects when all are busy; here there is one.
pub(crate) struct ActiveBlocks(pub(crate) f64);

impl Policy for ActiveBlocks {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let held = |stream: &Stream| ask.world.blocks(stream.prompt + stream.generated);
        let active: u64 = ask.streams.values().map(held).sum();
        Answer::because(active as f64 <= self.0 * ask.setup.blocks as f64, "memory")
    }
}
