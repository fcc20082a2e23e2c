//! What fits into a cache, and what to change when it does not.

use super::layout::Layout;

/// vLLM keeps one block of every pool as its null block (0.32, v1/core/block_pool.py).
const NULL_BLOCKS: u64 = 1;

/// A pool of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Blocks, the null block included.
    pub(crate) blocks: u64,
    /// Tokens that vLLM says it holds, at the context window (`kv_cache_size_tokens`).
    pub(crate) tokens: u64,
}

/// A load that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Tokens of each request, prompt and output.
    pub(crate) tokens: u64,
    /// Requests at once.
    pub(crate) requests: u64,
}

impl Pool {
    /// The pool in `cache_bytes` of each GPU, for requests of at most `window` tokens.
    pub(crate) fn of(layout: &Layout, cache_bytes: u64, window: u64) -> Self {
        let blocks = cache_bytes / layout.block_bytes.max(1);
        let each = layout.blocks_for(window);
        // vLLM says int(blocks / blocks per request × window).
        let tokens = u128::from(blocks) * u128::from(window) / u128::from(each);
        Self { blocks, tokens: u64::try_from(tokens).unwrap_or(u64::MAX) }
    }

    /// Requests of `tokens` each that fit at once.
    pub(crate) fn requests(&self, layout: &Layout, tokens: u64) -> u64 {
        self.blocks.saturating_sub(NULL_BLOCKS) / layout.blocks_for(tokens)
    }

    /// Whether a load fits.
    pub(crate) fn fits(&self, layout: &Layout, load: &Load) -> bool {
        self.requests(layout, load.tokens) >= load.requests
    }

    /// The longest requests of which so many fit at once, at most `most` tokens; 0: not even the shortest.
    pub(crate) fn longest(&self, layout: &Layout, requests: u64, most: u64) -> u64 {
        let fits = |tokens: u64| self.fits(layout, &Load { tokens, requests });
        let (mut fitting, mut beyond) = (0, most.saturating_add(1));
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                beyond = middle;
            }
        }
        fitting
    }
}
