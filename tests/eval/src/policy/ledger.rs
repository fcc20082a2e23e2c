//! Rules that count what was sent and has not come back.

use super::{Answer, Ask, Policy, Stream};

/// Output tokens that a budget assumes for a request without max_tokens.
pub(crate) const ASSUMED_OUTPUT: u64 = 1024;

/// At most so many requests under way.
pub(crate) struct Concurrency(pub(crate) usize);

impl Policy for Concurrency {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        Answer::plain(ask.streams.len() < self.0)
    }
}

/// Worst-case budget: prompts and allowed outputs of all under way stay below a share of the pool's tokens.
pub(crate) struct WorstCase(pub(crate) f64);

impl Policy for WorstCase {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let worst = |prompt: u64, max_tokens: Option<u64>| prompt + max_tokens.unwrap_or(ASSUMED_OUTPUT);
        let promised: u64 = ask.streams.values().map(|stream| worst(stream.prompt, stream.max_tokens)).sum();
        let budget = self.0 * (ask.setup.blocks * ask.setup.block_size) as f64;
        let need = worst(ask.request.prompt, ask.request.max_tokens);
        Answer::plain((promised + need) as f64 <= budget)
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
        Answer::plain(promised + blocks(ask.request.prompt, ask.request.max_tokens) <= ask.setup.blocks)
    }
}

/// Endpoint picker's token concurrency: prompt tokens count until the first chunk, output is guessed as
/// min(1.5 × prompt, max_tokens, cap). Its default limit is 1,000,000; here a share of the pool's tokens.
pub(crate) struct TokenConcurrency(pub(crate) f64);

/// As published.
const OUTPUT_RATIO: f64 = 1.5;
/// Guessed outputs are cut here.
const OUTPUT_CAP: u64 = 4096;

impl TokenConcurrency {
    fn tokens(prompt: u64, max_tokens: Option<u64>, started: bool) -> u64 {
        let guess =
            ((prompt as f64 * OUTPUT_RATIO) as u64).min(max_tokens.unwrap_or(u64::MAX)).min(OUTPUT_CAP);
        if started { guess } else { prompt + guess }
    }
}

impl Policy for TokenConcurrency {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let of = |stream: &Stream| Self::tokens(stream.prompt, stream.max_tokens, stream.generated > 0);
        let in_flight: u64 = ask.streams.values().map(of).sum();
        let need = Self::tokens(ask.request.prompt, ask.request.max_tokens, false);
        let limit = self.0 * (ask.setup.blocks * ask.setup.block_size) as f64;
        Answer::plain((in_flight + need) as f64 <= limit)
    }
}

/// Dynamo's router: a worker is busy while the blocks of its requests (prompts, and output as it is generated, with
/// `router_track_output_blocks`) exceed a share of the pool. It rejects when all are busy; here there is one.
pub(crate) struct ActiveBlocks(pub(crate) f64);

impl Policy for ActiveBlocks {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let held = |stream: &Stream| ask.world.blocks(stream.prompt + stream.generated);
        let active: u64 = ask.streams.values().map(held).sum();
        Answer::plain(active as f64 <= self.0 * ask.setup.blocks as f64)
    }
}
