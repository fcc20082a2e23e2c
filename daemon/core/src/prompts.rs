//! The prompts of one request and the blocks that they hold.
//!
//! A completion may bring a list of prompts. vLLM serves each as a request of its own, with the whole context window to
//! itself (0.32, entrypoints/openai/completion/serving.py). Only their number, their sum and the longest are kept, so
//! the blocks of prompts of different lengths are an upper bound; those of prompts of one length are exact.

use crate::units::{Blocks, Tokens};

/// The prompts of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// How many, at least 1.
    pub count: u32,
    /// Tokens of all together.
    pub total: Tokens,
    /// Tokens of the longest.
    pub longest: Tokens,
}

impl From<Tokens> for Prompts {
    /// A single prompt.
    fn from(tokens: Tokens) -> Self {
        Self { count: 1, total: tokens, longest: tokens }
    }
}

impl FromIterator<Tokens> for Prompts {
    fn from_iter<I: IntoIterator<Item = Tokens>>(lengths: I) -> Self {
        lengths.into_iter().fold(Self::default(), |sum, one| Self {
            count: sum.count.saturating_add(1),
            total: sum.total + one,
            longest: sum.longest.max(one),
        })
    }
}

impl Prompts {
    /// The shortest has at least this many tokens.
    pub(crate) fn shortest(self) -> Tokens {
        self.total.saturating_sub(self.longest.times(u64::from(self.count.saturating_sub(1))))
    }

    /// Each prompt cut to at most `most` tokens; an upper bound of what is left.
    pub(crate) fn cut(self, most: Tokens) -> Self {
        let total = self.total.min(most.times(u64::from(self.count)));
        Self { total, longest: self.longest.min(most), ..self }
    }

    /// Sequences made of each prompt, where `n` are made of all.
    pub(crate) fn samples(self, n: u32) -> u32 {
        (n / self.count.max(1)).max(1)
    }

    /// Blocks that `n` sequences hold which have each generated `generated` tokens.
    pub(crate) fn held(self, generated: Tokens, n: u32, block_size: u64) -> Blocks {
        let samples = self.samples(n);
        let each = self.each(generated, block_size);
        if samples <= 1 {
            return each;
        }
        let shared = self.shared(block_size);
        shared + each.saturating_sub(shared).times(u64::from(samples))
    }

    /// Blocks of one sequence per prompt.
    pub(crate) fn each(self, generated: Tokens, block_size: u64) -> Blocks {
        let (count, block_size) = (u64::from(self.count.max(1)), block_size.max(1));
        // All but the last block of a sequence are full, so no more than this share of the blocks is empty.
        let tokens = self.total + generated.times(count);
        let rounded = tokens.0.saturating_add(count.saturating_mul(block_size - 1)) / block_size;
        let of_longest = (self.longest + generated).to_blocks(block_size).times(count);
        Blocks(rounded).min(of_longest)
    }

    /// Of those, the blocks that several sequences of one prompt share: full prompt blocks, but never the one with the
    /// last prompt token, which each sequence computes itself (vLLM 0.32 v1/core/kv_cache_manager.py,
    /// `get_computed_blocks`: a hit is at most `num_tokens - 1`).
    pub(crate) fn shared(self, block_size: u64) -> Blocks {
        let (count, block_size) = (u64::from(self.count.max(1)), block_size.max(1));
        if self.total == self.longest.times(count) {
            return Blocks(self.longest.0.saturating_sub(1) / block_size).times(count);
        }
        Blocks(self.total.0.saturating_sub(count.saturating_mul(block_size)).div_ceil(block_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(lengths: &[u64]) -> Prompts {
        lengths.iter().copied().map(Tokens).collect()
    }

    fn held(lengths: &[u64], generated: u64, n: u32) -> u64 {
        prompts(lengths).held(Tokens(generated), n, 16).0
    }

    #[test]
    fn a_single_sequence_holds_prompt_and_output_rounded_up() {
        assert_eq!(held(&[100], 28, 1), 8);
        assert_eq!(held(&[100], 29, 1), 9);
    }

    #[test]
    fn sequences_share_full_prompt_blocks_but_never_the_one_with_the_last_prompt_token() {
        // 100 tokens = 6 full blocks of 16 + 4; each of 3 sequences has 1 block for 4 + 10 tokens.
        assert_eq!(held(&[100], 10, 3), 6 + 3);
        // 96 tokens = 6 full blocks, the last of them not shared: 5 shared, 1 + 1 each.
        assert_eq!(held(&[96], 10, 3), 5 + 6);
        assert_eq!(held(&[0], 10, 2), 2);
    }

    #[test]
    fn prompts_of_one_length_hold_just_what_each_holds() {
        // 1,000 + 24 tokens = 64 blocks.
        assert_eq!(held(&[1000; 10], 24, 10), 640);
        // Two sequences of each prompt: 62 full blocks shared, 8 + 24 tokens = 2 blocks of their own.
        assert_eq!(held(&[1000; 10], 24, 20), 10 * (62 + 2 * 2));
    }

    /// Nothing is shared between prompts, and no mixture of lengths holds more than the bound.
    #[test]
    fn the_blocks_of_a_mixture_are_never_underestimated() {
        for lengths in [&[1, 31][..], &[16, 17, 500], &[0, 0, 1], &[15, 16, 17, 18], &[4000, 1, 1, 1]] {
            for (generated, samples) in [(0, 1), (1, 1), (16, 3), (100, 2)] {
                let true_blocks = |length: u64| {
                    let each = (length + generated).div_ceil(16);
                    let shared = if samples > 1 { length.saturating_sub(1) / 16 } else { 0 };
                    shared + samples * (each - shared)
                };
                let all: u64 = lengths.iter().map(|length| true_blocks(*length)).sum();
                let count = u32::try_from(lengths.len() as u64 * samples).unwrap();
                let bound = held(lengths, generated, count);
                assert!(bound >= all, "{lengths:?} {generated} {samples}: {bound} < {all}");
                assert!(bound <= all + lengths.len() as u64 * samples, "{lengths:?}: {bound} for {all}");
            }
        }
    }

    #[test]
    fn the_shortest_is_never_overestimated() {
        assert_eq!(prompts(&[1000; 10]).shortest(), Tokens(1000));
        assert_eq!(prompts(&[10, 8000]).shortest(), Tokens(10));
        assert_eq!(prompts(&[10, 5, 8000]).shortest(), Tokens(0));
    }
}
