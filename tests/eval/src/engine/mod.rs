//! What an engine is to the harness, and what it costs to take a step.

mod aisim;
mod cost;
mod exposition;

pub(crate) use aisim::AisimEngine;
pub(crate) use cost::{StepCost, Work};
pub(crate) use exposition::Exposition;

use serde::{Deserialize, Serialize};

use crate::time::{Nanos, seconds};

/// A request's number within a run.
pub(crate) type RequestId = u32;

/// How an engine is set up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EngineSetup {
    /// Blocks that can hold tokens.
    pub(crate) blocks: u64,
    /// Tokens per block.
    pub(crate) block_size: u64,
    /// Most sequences in the batch.
    pub(crate) max_num_seqs: u64,
    /// Most tokens per step.
    pub(crate) max_num_batched_tokens: u64,
    /// Context window.
    pub(crate) max_model_len: u64,
    /// Whether prompts may share blocks.
    pub(crate) prefix_caching: bool,
    /// What a step costs.
    pub(crate) cost: StepCost,
}

/// Largest context window of the models that the traces are for.
const LARGEST_WINDOW: u64 = 131_072;

impl EngineSetup {
    /// vLLM's defaults for an API server on a GPU of the middle class, with a pool of so many tokens.
    pub(crate) fn of_pool(pool: u64, prefix_caching: bool) -> Self {
        let block_size = 16;
        Self {
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            cost: StepCost::default(),
            ..Self::with_window(pool / block_size, block_size, prefix_caching)
        }
    }

    /// Its window is as large as the pool allows: vLLM does not start with a larger one.
    pub(crate) fn with_window(blocks: u64, block_size: u64, prefix_caching: bool) -> Self {
        Self {
            blocks,
            block_size,
            max_num_seqs: 1,
            max_num_batched_tokens: block_size,
            max_model_len: LARGEST_WINDOW.min(blocks * block_size),
            prefix_caching,
            cost: StepCost::default(),
        }
    }

    /// Tokens that the pool holds.
    pub(crate) const fn pool_tokens(&self) -> u64 {
        self.blocks * self.block_size
    }

    /// Prompt tokens a second while nothing decodes, in steps that are full: what a benchmark of prefill shows.
    pub(crate) fn prefill_rate(&self) -> f64 {
        let full = self.max_num_batched_tokens;
        full as f64 / seconds(self.prefill_alone(full, 0))
    }

    /// Time from a prompt's arrival in the idle engine to its first token, `cached` of its tokens being in the prefix
    /// cache.
    pub(crate) fn prefill_alone(&self, prompt: u64, cached: u64) -> Nanos {
        let mut done = cached.min(prompt.saturating_sub(1));
        let mut time = 0;
        while done < prompt {
            let piece = (prompt - done).min(self.max_num_batched_tokens);
            let work = Work { prefilling: 1, prompt_tokens: piece, prompt_context: done, ..Work::default() };
            time += self.cost.duration(work);
            done += piece;
        }
        time
    }
}

/// A request as the engine gets it.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub(crate) id: RequestId,
    /// Token ids of the prompt: equal prefixes share blocks.
    pub(crate) prompt: Vec<u32>,
    /// Tokens it will generate, token ids included where a later prompt contains them.
    pub(crate) output: Output,
}

/// What a request will generate.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    /// So many tokens that nobody sees again.
    Length(u64),
    /// These tokens.
    Tokens(Vec<u32>),
}

/// The engine's gauges after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gauges {
    /// Blocks that live requests refer to.
    pub(crate) used: u64,
    pub(crate) running: u64,
    pub(crate) waiting: u64,
}

/// What one step did.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) duration: Nanos,
    /// Prompt tokens computed, those computed anew after a preemption included.
    pub(crate) prompt_tokens: u64,
    /// In the order in which they happened.
    pub(crate) events: Vec<Event>,
    /// As they are after the step.
    pub(crate) gauges: Gauges,
}

/// One thing that a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Came into the batch, so many prompt tokens of it from the prefix cache.
    Scheduled { id: RequestId, cached: u64 },
    /// Fell out of the batch: to be computed anew.
    Preempted { id: RequestId },
    /// Generated a token.
    Token { id: RequestId },
    /// Ended.
    Finished { id: RequestId },
    /// Can never run.
    Rejected { id: RequestId },
}

/// An engine, stepped in virtual time.
pub(crate) trait EngineModel {
    /// A request arrives; the next step sees it.
    fn submit(&mut self, submission: Submission);
    /// A client left.
    fn abort(&mut self, id: RequestId);
    /// Computes the step that begins `at`; `None`: there is nothing to do.
    fn step(&mut self, at: Nanos) -> Option<Step>;
    /// As they are now.
    fn gauges(&self) -> Gauges;
}
