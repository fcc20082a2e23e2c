//! What a step costs in time.

use serde::{Deserialize, Serialize};

use crate::time::{Nanos, nanos};

/// Milliseconds of a step: weights are read once, every sequence, prompt token and token of context adds its part.
///
/// The defaults resemble a model of 8 billion parameters on a GPU of the middle class (about 1 TB/s and 270 useful
/// TFLOP/s): 15 ms for its 8 to 16 GB of weights, 16 GFLOP per prompt token, 128 KiB of KV cache per token of context,
/// 0.5 MFLOP per pair of prompt token and context token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepCost {
    /// For a step, whatever it does.
    pub(crate) base: f64,
    /// For a sequence in it (sampling, detokenisation, bookkeeping).
    pub(crate) per_sequence: f64,
    /// For a prompt token.
    pub(crate) per_prefill_token: f64,
    /// For a token of context that decoding attends to.
    pub(crate) per_context_token: f64,
    /// For a pair of a prompt token and a token of context before it.
    pub(crate) per_prefill_pair: f64,
}

impl Default for StepCost {
    fn default() -> Self {
        Self {
            base: 15.0,
            per_sequence: 0.04,
            per_prefill_token: 0.06,
            per_context_token: 0.000_13,
            per_prefill_pair: 0.000_002,
        }
    }
}

/// What a step does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) decoding: u64,
    /// Context of the decoding sequences together.
    pub(crate) context: u64,
    pub(crate) prefilling: u64,
    /// Prompt tokens computed.
    pub(crate) prompt_tokens: u64,
    /// Context before those, of all prefilling sequences together.
    pub(crate) prompt_context: u64,
}

impl StepCost {
    pub(crate) fn duration(&self, work: Work) -> Nanos {
        let prefilling = work.prefilling.max(1) as f64;
        let prompt = work.prompt_tokens as f64;
        let before = (work.prompt_context as f64 + prompt / 2.0) / prefilling;
        let milliseconds = self.base
            + self.per_sequence * (work.decoding + work.prefilling) as f64
            + self.per_prefill_token * prompt
            + self.per_context_token * work.context as f64
            + self.per_prefill_pair * prompt * before;
        nanos(milliseconds / 1e3)
    }
}
