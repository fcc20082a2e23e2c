//! What a request may need over its whole life: the one place that answers it.

use crate::{
    request::{MAX_COUNT, Prompt, PromptCount, Request},
    settings::Settings,
    units::{Blocks, Tokens},
};

/// What a request is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Prompt tokens.
    pub(crate) prompt: Tokens,
    /// How they were found.
    pub(crate) count: PromptCount,
    /// Output tokens per sequence that room is kept for.
    pub(crate) output: Tokens,
    /// Output tokens per sequence that the caller may forward; `None`: it set none and none is imposed.
    pub(crate) granted: Option<Tokens>,
    /// It ends there at the latest, output tokens per sequence.
    pub(crate) most: Tokens,
    /// Sequences.
    pub(crate) n: u32,
}

/// Why a request can never be served as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// Prompt and output exceed the context window.
    Context {
        /// The window.
        window: Tokens,
    },
    /// max_tokens exceeds the operator's limit.
    Limit {
        /// The limit.
        limit: Tokens,
    },
}

impl Need {
    /// Counts `request` against the context window and the operator's limits: prompt + max_tokens, or `unlimited` output
    /// tokens where the client set no limit.
    pub(crate) fn of(
        request: &Request<'_>,
        window: Option<Tokens>,
        unlimited: Tokens,
        settings: &Settings,
    ) -> Result<Self, Misfit> {
        let (prompt, count) = count_prompt(request.prompt, window);
        // The engine needs room for at least one output token.
        if let Some(window) = window
            && prompt >= window
            && count != PromptCount::Bounded
        {
            return Err(Misfit::Context { window });
        }
        let left = window.map(|window| Tokens(window.saturating_sub(prompt).0.max(1)));
        let mut granted = request.max_tokens;
        let limit = settings.most_tokens(request.class);
        if let (Some(asked), Some(limit)) = (granted, limit)
            && asked > limit
        {
            if !settings.clamp_max_tokens {
                return Err(Misfit::Limit { limit });
            }
            granted = Some(limit);
        }
        if let (Some(asked), Some(left), Some(window)) = (granted, left, window)
            && asked > left
            && count != PromptCount::Bounded
        {
            if !settings.clamp_max_tokens {
                return Err(Misfit::Context { window });
            }
            granted = Some(left);
        }
        granted = granted.or(limit);
        let left = left.unwrap_or(Tokens(MAX_COUNT));
        let output = granted.unwrap_or(unlimited).min(left);
        let most = granted.unwrap_or(left).min(left);
        Ok(Self { prompt, count, output, granted, most, n: request.n.max(1) })
    }

    /// Tokens that it may come to compute: the prompt once, the output of every sequence.
    pub(crate) fn tokens(&self) -> Tokens {
        self.prompt + self.output.times(u64::from(self.n))
    }

    /// Blocks at the end of its life.
    pub(crate) fn blocks(&self, block_size: u64) -> Blocks {
        blocks_held(self.prompt, self.output, self.n, block_size)
    }
}

/// Prompt tokens and how they were found. A bound beyond the window says no more than the window itself, for the
/// engine refuses longer prompts.
pub(crate) fn count_prompt(prompt: Prompt, window: Option<Tokens>) -> (Tokens, PromptCount) {
    let bound = match prompt {
        Prompt::Tokens(tokens) => return (tokens, PromptCount::Exact),
        Prompt::Counted { tokens, count: PromptCount::Bounded, .. } => tokens,
        Prompt::Counted { tokens, count, .. } => return (tokens, count),
        Prompt::Text(text) => text.hard().high,
        Prompt::Bytes(bytes) => Tokens(bytes),
    };
    let most = window.map_or(bound, |window| Tokens(window.0.saturating_sub(1)));
    (bound.min(most), PromptCount::Bounded)
}

/// Blocks that `n` sequences hold which share one prompt and have each generated `generated` tokens.
///
/// Only full prompt blocks are shared, and never the one with the last prompt token, which each sequence computes
/// itself (vLLM 0.32 v1/core/kv_cache_manager.py, `get_computed_blocks`: a hit is at most `num_tokens - 1`).
pub(crate) fn blocks_held(prompt: Tokens, generated: Tokens, n: u32, block_size: u64) -> Blocks {
    let each = (prompt + generated).to_blocks(block_size);
    if n <= 1 {
        return each;
    }
    let shared = Blocks(prompt.0.saturating_sub(1) / block_size.max(1));
    shared + each.saturating_sub(shared).times(u64::from(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    #[test]
    fn a_single_sequence_holds_prompt_and_output_rounded_up() {
        assert_eq!(blocks_held(Tokens(100), Tokens(28), 1, 16), Blocks(8));
        assert_eq!(blocks_held(Tokens(100), Tokens(29), 1, 16), Blocks(9));
    }

    #[test]
    fn sequences_share_full_prompt_blocks_but_never_the_one_with_the_last_prompt_token() {
        // 100 tokens = 6 full blocks of 16 + 4; each of 3 sequences has 1 block for 4 + 10 tokens.
        assert_eq!(blocks_held(Tokens(100), Tokens(10), 3, 16), Blocks(6 + 3));
        // 96 tokens = 6 full blocks, the last of them not shared: 5 shared, 1 + 1 each.
        assert_eq!(blocks_held(Tokens(96), Tokens(10), 3, 16), Blocks(5 + 6));
        assert_eq!(blocks_held(Tokens(0), Tokens(10), 2, 16), Blocks(2));
    }

    #[test]
    fn without_max_tokens_a_default_is_kept_and_nothing_imposed() {
        let need = Need::of(&request(500), Some(Tokens(4096)), Tokens(1024), &Settings::default()).unwrap();
        assert_eq!((need.output, need.granted), (Tokens(1024), None));
        let near_the_end =
            Need::of(&request(4000), Some(Tokens(4096)), Tokens(1024), &Settings::default()).unwrap();
        assert_eq!(near_the_end.output, Tokens(96));
    }

    #[test]
    fn max_tokens_is_clamped_to_the_window_or_denied_by_policy() {
        let mut asked = request(4000);
        asked.max_tokens = Some(Tokens(200));
        let mut settings = Settings::default();
        let need = Need::of(&asked, Some(Tokens(4096)), Tokens(1024), &settings).unwrap();
        assert_eq!(need.granted, Some(Tokens(96)));
        settings.clamp_max_tokens = false;
        let misfit = Need::of(&asked, Some(Tokens(4096)), Tokens(1024), &settings).unwrap_err();
        assert_eq!(misfit, Misfit::Context { window: Tokens(4096) });
    }

    #[test]
    fn an_exact_prompt_that_fills_the_window_never_fits_but_a_bound_may_still() {
        let settings = Settings::default();
        assert!(Need::of(&request(4096), Some(Tokens(4096)), Tokens(1024), &settings).is_err());
        let mut text = request(0);
        text.prompt = Prompt::Bytes(100_000);
        let need = Need::of(&text, Some(Tokens(4096)), Tokens(1024), &settings).unwrap();
        assert_eq!((need.prompt, need.count), (Tokens(4095), PromptCount::Bounded));
        assert_eq!(need.output, Tokens(1));
    }

    #[test]
    fn the_operators_limit_is_imposed_also_where_the_client_set_none() {
        let settings = Settings { max_tokens_limit: Some(Tokens(256)), ..Settings::default() };
        let need = Need::of(&request(10), None, Tokens(1024), &settings).unwrap();
        assert_eq!((need.output, need.granted), (Tokens(256), Some(Tokens(256))));
    }
}
