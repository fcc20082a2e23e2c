//! How vLLM puts layers into groups that share one pool of blocks (0.32, v1/core/kv_cache_utils.py,
//! `get_kv_cache_groups`): every block of the pool has the same bytes, and a request holds blocks for each group.

use std::collections::BTreeMap;

use super::model::{Layer, Reach};

/// vLLM raises the block size of hybrid models in steps of at least this many tokens (platforms/interface.py).
const STATE_ALIGNMENT: u64 = 16;

/// How the model is served, as far as its cache goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serving {
    /// GPUs that share every layer.
    pub(crate) tensor_parallel: u64,
    /// Bytes per value of the model's own type.
    pub(crate) value_bytes: u64,
    /// Bytes per value of keys and values in the cache.
    pub(crate) cache_bytes: u64,
    /// Tokens per block.
    pub(crate) block_size: u64,
    /// Most tokens of one request that may be scheduled and not yet settled.
    pub(crate) in_flight: u64,
    /// Whether prefixes are cached: then layers with a state keep several per request.
    pub(crate) prefix_caching: bool,
}

/// What a group's layers keep of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keeps {
    /// These tokens.
    Tokens(Reach),
    /// One state, or this many with prefix caching.
    State(u64),
}

/// Layers with one table of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Layers in it.
    pub(crate) layers: u64,
    /// Tokens per block.
    pub(crate) block_size: u64,
    /// What they keep.
    pub(crate) keeps: Keeps,
}

/// The groups of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of one block on one GPU, all layers that share it together.
    pub(crate) block_bytes: u64,
    /// The groups.
    pub(crate) groups: Vec<Group>,
    serving: Serving,
}

impl Layer {
    /// Bytes on one GPU: of one token, or of one state.
    fn unit_bytes(&self, serving: &Serving) -> u64 {
        let gpus = serving.tensor_parallel.max(1);
        match *self {
            // Heads that are fewer than the GPUs are kept several times.
            Self::Heads { heads, width, .. } => {
                (heads / gpus).max(1).saturating_mul(width).saturating_mul(serving.cache_bytes)
            }
            Self::Latent { width } => width.saturating_mul(serving.cache_bytes),
            Self::Indexer { bytes } => bytes,
            Self::State { convolution, groups, of_group, recurrent, recurrent_bytes, .. } => {
                // Groups that the GPUs do not divide evenly become one on each (mamba2_state_shape).
                let groups = if groups.is_multiple_of(gpus) { groups / gpus } else { 1 };
                let convolution = (convolution / gpus).saturating_add(groups.saturating_mul(of_group));
                let recurrent_bytes = recurrent_bytes.unwrap_or(serving.value_bytes);
                let recurrent = (recurrent / gpus).saturating_mul(recurrent_bytes);
                convolution.saturating_mul(serving.value_bytes).saturating_add(recurrent)
            }
        }
    }

    const fn is_state(&self) -> bool {
        matches!(self, Self::State { .. })
    }

    const fn keeps(&self) -> Keeps {
        match *self {
            Self::Heads { reach, .. } => Keeps::Tokens(reach),
            Self::Latent { .. } | Self::Indexer { .. } => Keeps::Tokens(Reach::All),
            Self::State { checkpoints, .. } => Keeps::State(1 + checkpoints),
        }
    }
}

impl Layout {
    /// The layout of `layers`, of which there is at least one.
    pub(crate) fn of(layers: &[Layer], serving: &Serving) -> Self {
        let block_size = block_size(layers, serving);
        let mut kinds: BTreeMap<Layer, u64> = BTreeMap::new();
        for layer in layers {
            *kinds.entry(*layer).or_default() += 1;
        }
        let mut serving = *serving;
        serving.block_size = block_size;
        let first = layers.first().map_or(Keeps::State(1), Layer::keeps);
        if kinds.keys().all(|layer| layer.keeps() == first) {
            return Self::of_one_kind(&kinds, first, serving);
        }
        Self::of_several_kinds(&kinds, serving)
    }

    /// All layers keep the same tokens: one group, whatever their sizes.
    fn of_one_kind(kinds: &BTreeMap<Layer, u64>, keeps: Keeps, serving: Serving) -> Self {
        let page = |layer: &Layer| match layer.keeps() {
            Keeps::Tokens(_) => layer.unit_bytes(&serving).saturating_mul(serving.block_size),
            Keeps::State(_) => layer.unit_bytes(&serving),
        };
        let pages = kinds.iter().map(|(layer, count)| page(layer).saturating_mul(*count));
        let block_bytes = pages.fold(0, u64::saturating_add);
        let group = Group { layers: kinds.values().sum(), block_size: serving.block_size, keeps };
        Self { block_bytes, groups: vec![group], serving }
    }

    /// Pages are brought to one size, and every kind is split into groups of as many layers.
    fn of_several_kinds(kinds: &BTreeMap<Layer, u64>, serving: Serving) -> Self {
        let page = |layer: &Layer| layer.unit_bytes(&serving).saturating_mul(serving.block_size);
        let page_of_tokens = kinds.keys().filter(|layer| !layer.is_state()).map(page).max();
        let page_bytes = page_of_tokens.unwrap_or(1).max(1);
        let fewest = kinds.values().copied().min().unwrap_or(1).max(1);
        let most = kinds.values().copied().max().unwrap_or(1);
        // Padding is accepted where the numbers are close (most < 1.5 × fewest).
        let in_group = if 2 * most < 3 * fewest { most } else { fewest };
        let groups = kinds.iter().flat_map(|(layer, count)| {
            let smaller = page_bytes / page(layer).max(1);
            let grown = smaller > 1 && page_bytes.is_multiple_of(page(layer)) && !layer.is_state();
            let block_size = serving.block_size.saturating_mul(if grown { smaller } else { 1 });
            let splits = count.div_ceil(in_group);
            // Layer i goes to group i mod splits.
            (0..splits).map(move |split| Group {
                layers: (count + splits - 1 - split) / splits,
                block_size,
                keeps: layer.keeps(),
            })
        });
        Self { block_bytes: page_bytes.saturating_mul(in_group), groups: groups.collect(), serving }
    }

    /// Blocks that a request of `tokens` holds at most, in all groups together.
    pub(crate) fn blocks_for(&self, tokens: u64) -> u64 {
        let in_flight = self.serving.in_flight;
        let blocks = |group: &Group| match group.keeps {
            Keeps::Tokens(Reach::All) => tokens.div_ceil(group.block_size),
            // A window may begin anywhere within a block.
            Keeps::Tokens(Reach::Window(window)) => {
                (window.saturating_sub(1) + in_flight).min(tokens).div_ceil(group.block_size) + 1
            }
            Keeps::Tokens(Reach::Chunk(chunk)) => (chunk + in_flight).min(tokens).div_ceil(group.block_size),
            Keeps::State(cached) if self.serving.prefix_caching => cached,
            Keeps::State(_) => 1,
        };
        self.groups.iter().map(blocks).fold(0, u64::saturating_add).max(1)
    }

    /// Bytes that one more token of a long request takes on one GPU: of the layers that keep all tokens.
    pub(crate) fn bytes_per_token(layers: &[Layer], serving: &Serving) -> u64 {
        let growing = layers.iter().filter(|layer| layer.keeps() == Keeps::Tokens(Reach::All));
        growing.map(|layer| layer.unit_bytes(serving)).fold(0, u64::saturating_add)
    }
}

/// Tokens per block: as asked, or as many as a state layer's page needs (platforms/interface.py,
/// `_align_hybrid_block_size`).
fn block_size(layers: &[Layer], serving: &Serving) -> u64 {
    let largest = |state: bool| {
        let those = layers.iter().filter(|layer| layer.is_state() == state);
        those.map(|layer| layer.unit_bytes(serving)).max().filter(|bytes| *bytes > 0)
    };
    match (largest(true), largest(false)) {
        (Some(state), Some(token)) => {
            let step = STATE_ALIGNMENT.max(serving.block_size);
            let steps = state.div_ceil(step.saturating_mul(token));
            serving.block_size.max(step.saturating_mul(steps))
        }
        _ => serving.block_size,
    }
}
