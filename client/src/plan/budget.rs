//! What memory of a GPU is left for the KV cache, by the same sum that vLLM makes when it starts:
//! memory × gpu_memory_utilization − weights − activations at their peak − what lies outside of PyTorch.
//! Only a start shows the last two exactly; here they are estimated, on the high side.

use super::{
    PlanError,
    config::Config,
    model::{head_width, heads, hidden, kv_heads},
    weights::Weights,
};

/// CUDA context, cuBLAS and attention workspaces, CUDA graphs, bytes per GPU.
const OUTSIDE_BYTES: u64 = 1 << 30;
/// Buffers of the collective operations among several GPUs, bytes per GPU.
const COLLECTIVE_BYTES: u64 = 1 << 29;
/// Copies of the widest activation that live at once.
const ACTIVATIONS_ALIVE: u64 = 2;

/// One GPU and how much of it the engine may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gpu {
    /// Memory, bytes.
    pub(crate) memory_bytes: u64,
    /// Share that the engine may take, above 0 to 1.
    pub(crate) utilization: f64,
}

/// How the engine is asked to batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Most tokens per step.
    pub(crate) tokens: u64,
    /// Most sequences per step.
    pub(crate) sequences: u64,
}

/// Where the memory of one GPU goes, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// What the engine may take.
    pub(crate) usable_bytes: u64,
    /// Its share of the weights.
    pub(crate) weights_bytes: u64,
    /// Everything else that is no KV cache.
    pub(crate) other_bytes: u64,
    /// What is left for the KV cache; 0 where nothing is.
    pub(crate) cache_bytes: u64,
}

impl Budget {
    /// The sum for one of `tensor_parallel` GPUs.
    pub(crate) fn of(gpu: &Gpu, weights: Weights, other_bytes: u64, tensor_parallel: u64) -> Self {
        let usable_bytes = share(gpu.memory_bytes, gpu.utilization);
        let weights_bytes = weights.bytes().div_ceil(tensor_parallel.max(1));
        let cache_bytes = usable_bytes.saturating_sub(weights_bytes).saturating_sub(other_bytes);
        Self { usable_bytes, weights_bytes, other_bytes, cache_bytes }
    }

    /// A cache of a given size.
    pub(crate) const fn given(cache_bytes: u64) -> Self {
        Self { usable_bytes: 0, weights_bytes: 0, other_bytes: 0, cache_bytes }
    }
}

/// Estimate of what is neither weights nor cache, bytes per GPU: the activations of a full step, the logits of all
/// sequences in 32 bits beside the model's own type, and a fixed part.
pub(crate) fn other_bytes(
    config: &Config,
    batch: &Batch,
    value_bytes: u64,
    tensor_parallel: u64,
) -> Result<u64, PlanError> {
    let width = hidden(config)?;
    let gpus = tensor_parallel.max(1);
    let queries = heads(config)?.saturating_mul(head_width(config)?) / gpus;
    let keys = (kv_heads(config)?.saturating_mul(head_width(config)?) / gpus).saturating_mul(2);
    let inner = match config.largest("intermediate_size")? {
        Some(inner) => inner,
        None => config.largest("moe_intermediate_size")?.unwrap_or(4 * width),
    } / gpus;
    let experts = config.largest("num_experts_per_tok")?.unwrap_or(1);
    let inner_of_experts =
        config.largest("moe_intermediate_size")?.unwrap_or(inner).saturating_mul(experts) / gpus;
    let widest = queries.saturating_add(keys).max(2 * inner).max(inner_of_experts.saturating_mul(2));
    let alive = widest.saturating_mul(ACTIVATIONS_ALIVE);
    let per_token = width.saturating_mul(2).saturating_add(alive).saturating_mul(value_bytes);
    let vocabulary = config.count("vocab_size")?.unwrap_or(0);
    let logits = batch.sequences.saturating_mul(vocabulary).saturating_mul(4 + value_bytes);
    let collective = if gpus > 1 { COLLECTIVE_BYTES } else { 0 };
    Ok(batch
        .tokens
        .saturating_mul(per_token)
        .saturating_add(logits)
        .saturating_add(OUTSIDE_BYTES + collective))
}

/// `bytes × share`, rounded down; to the byte up to 2^53.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "memory of a GPU is far below 2^53 bytes, the share is within 0 and 1"
)]
fn share(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share.clamp(0.0, 1.0)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_leaves_nothing() {
        let gpu = Gpu { memory_bytes: 1000, utilization: 0.9 };
        let budget = Budget::of(&gpu, Weights::Given(700), 100, 1);
        assert_eq!((budget.usable_bytes, budget.cache_bytes), (900, 100));
        assert_eq!(Budget::of(&gpu, Weights::Given(701), 100, 2).cache_bytes, 449);
        assert_eq!(Budget::of(&gpu, Weights::Given(900), 100, 1).cache_bytes, 0);
    }
}
