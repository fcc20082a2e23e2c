//! What an engine is to the harness, and what it costs to take a step.

mod aisim;
mod cost;
mod exposition;

pub(crate) use aisim::AisimEngine;
pub(crate) use cost::StepCost;
pub(crate) use exposition::Exposition;

use crate::time::Nanos;

/// A request's number within a run.
pub(crate) type RequestId = u32;

/// How an engine is set up.
#[derive(Clone, Copy, Debug)]
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
