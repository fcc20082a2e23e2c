//! The pool of KV cache blocks.

use crate::number::float;

/// Counts blocks; which block is whose does not matter here. One of them is the null block, which holds nothing and is
/// never free (vLLM `v1/core/block_pool.py`).
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    usable: u64,
    free: u64,
    block_size: u64,
}

impl Pool {
    /// `blocks` with the null block, of `block_size` tokens.
    pub(crate) fn new(blocks: u64, block_size: u64) -> Self {
        let usable = blocks.saturating_sub(1);
        Self { usable, free: usable, block_size: block_size.max(1) }
    }

    /// Blocks that `tokens` of one sequence need.
    pub(crate) const fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.block_size)
    }

    pub(crate) const fn free(&self) -> u64 {
        self.free
    }

    /// Takes `blocks`, all or none.
    pub(crate) const fn take(&mut self, blocks: u64) -> bool {
        let enough = blocks <= self.free;
        if enough {
            self.free -= blocks;
        }
        enough
    }

    pub(crate) fn give_back(&mut self, blocks: u64) {
        self.free = self.free.saturating_add(blocks).min(self.usable);
    }

    /// `1 - free / (blocks - 1)`.
    pub(crate) fn usage(&self) -> f64 {
        if self.usable == 0 { 0.0 } else { 1.0 - float(self.free) / float(self.usable) }
    }
}
