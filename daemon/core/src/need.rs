//! What a request may need over its whole life: the one place that answers it.

use crate::{
    count::TextSize,
    prompts::Prompts,
    request::{MAX_COUNT, Prompt, PromptCount, Request},
    settings::Settings,
    units::{Blocks, Tokens},
};

/// What a request is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Prompts.
    pub(crate) prompts: Prompts,
    /// How they were found.
    pub(crate) count: PromptCount,
    /// How they were found, for the caller.
    pub(crate) shown: PromptCount,
    /// Output tokens per sequence that room is kept for.
    pub(crate) output: Tokens,
    /// Output tokens per sequence that the caller may forward; `None`: it set none and none is imposed.
    pub(crate) granted: Option<Tokens>,
    /// It ends there at the latest, output tokens per sequence.
    pub(crate) most: Tokens,
    /// Sequences, of all prompts together.
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
        // The engine needs room for at least one output token, if it is to generate any.
        let first = Tokens(u64::from(request.max_tokens != Some(Tokens::ZERO)));
        let most_prompt = window.map(|window| window.saturating_sub(first));
        let cut = request.prompt.text().is_some_and(|text| text.cut.is_some());
        let (prompts, count) = counted(request.prompt);
        // A bound beyond the window says no more than the window itself, for the engine refuses longer prompts.
        let within = most_prompt.filter(|_| cut || count == PromptCount::Bounded);
        let prompts = within.map_or(prompts, |most| prompts.cut(most));
        let least = at_least(request.prompt, prompts, count);
        if let (Some(window), Some(most)) = (window, most_prompt)
            && least > most
            && !cut
        {
            return Err(Misfit::Context { window });
        }
        // Each prompt has the window to itself: the shortest leaves most of it.
        let shortest = match count {
            PromptCount::Bounded if prompts.count > 1 => first,
            PromptCount::Bounded => least,
            _ => prompts.shortest(),
        };
        let left = window.map(|window| window.saturating_sub(shortest).max(first));
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
        {
            if !settings.clamp_max_tokens {
                return Err(Misfit::Context { window });
            }
            granted = Some(left);
        }
        granted = granted.or(limit.map(|limit| left.map_or(limit, |left| limit.min(left))));
        let room = window.map(|window| window.saturating_sub(prompts.shortest()).max(first));
        let left = room.unwrap_or(Tokens(MAX_COUNT));
        let output = granted.unwrap_or(unlimited).min(left);
        let most = granted.unwrap_or(left).min(left);
        let n = request.n.max(1).saturating_mul(prompts.count.max(1));
        let shown = named(request.prompt, count);
        Ok(Self { prompts, count, shown, output, granted, most, n })
    }

    /// Tokens that it may come to compute: each prompt once, the output of every sequence.
    pub(crate) fn tokens(&self) -> Tokens {
        self.prompts.total + self.output.times(u64::from(self.n))
    }

    /// Blocks at the end of its life.
    pub(crate) fn blocks(&self, block_size: u64) -> Blocks {
        self.prompts.held(self.output, self.n, block_size)
    }
}

/// Prompts and how they were counted.
fn counted(prompt: Prompt) -> (Prompts, PromptCount) {
    match prompt {
        Prompt::Tokens(tokens) => (tokens.into(), PromptCount::Exact),
        Prompt::Several(prompts) => (prompts, PromptCount::Exact),
        Prompt::Counted { prompts, count, .. } => (prompts, count),
        Prompt::Text(text) => (text.at_most(text.hard().high), PromptCount::Bounded),
        Prompt::Bytes(bytes) => (Tokens(bytes).into(), PromptCount::Bounded),
    }
}

/// How the prompts were found, for the caller: what is assumed of a picture is no bound.
fn named(prompt: Prompt, count: PromptCount) -> PromptCount {
    let assumed = prompt.text().is_some_and(|text| text.assumed > Tokens::ZERO);
    if assumed && count == PromptCount::Bounded { PromptCount::Estimated } else { count }
}

/// Tokens of the longest prompt and how they were found; where only bounds are known, its lower bound.
pub(crate) fn longest_prompt(prompt: Prompt) -> (Tokens, PromptCount) {
    let (prompts, count) = counted(prompt);
    (at_least(prompt, prompts, count), count)
}

/// The longest prompt has at least this many tokens, however it was counted.
fn at_least(prompt: Prompt, prompts: Prompts, count: PromptCount) -> Tokens {
    let text = match prompt {
        Prompt::Bytes(bytes) => TextSize { bytes, ..TextSize::default() },
        Prompt::Text(text) => text,
        Prompt::Counted { text, .. } if count == PromptCount::Bounded => text,
        _ => return prompts.longest,
    };
    text.surely()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

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
    fn a_limit_of_the_operator_is_granted_as_far_as_the_window_goes() {
        let settings = Settings { max_tokens_limit: Some(Tokens(256)), ..Settings::default() };
        let need = Need::of(&request(4000), Some(Tokens(4096)), Tokens(1024), &settings).unwrap();
        assert_eq!((need.granted, need.output), (Some(Tokens(96)), Tokens(96)));
    }

    #[test]
    fn what_is_assumed_of_pictures_denies_nothing() {
        let pictures = TextSize { assumed: Tokens(9000), messages: 1, bytes: 40, ..TextSize::default() };
        let asked = Request { prompt: Prompt::Text(pictures), ..request(0) };
        let need = Need::of(&asked, Some(Tokens(4096)), Tokens(1024), &Settings::default()).unwrap();
        assert_eq!((need.prompts.total, need.shown), (Tokens(4095), PromptCount::Estimated));
    }

    #[test]
    fn an_exact_prompt_that_fills_the_window_never_fits_but_a_bound_may_still() {
        let settings = Settings::default();
        assert!(Need::of(&request(4096), Some(Tokens(4096)), Tokens(1024), &settings).is_err());
        let mut text = request(0);
        text.prompt = Prompt::Bytes(100_000);
        let need = Need::of(&text, Some(Tokens(4096)), Tokens(1024), &settings).unwrap();
        assert_eq!((need.prompts.total, need.count), (Tokens(4095), PromptCount::Bounded));
        assert_eq!(need.output, Tokens(1));
    }

    #[test]
    fn each_prompt_of_a_batch_has_the_window_to_itself() {
        let settings = Settings::default();
        let batch = |count, longest, total| {
            let prompts = Prompts { count, total: Tokens(total), longest: Tokens(longest) };
            Request { prompt: Prompt::Several(prompts), max_tokens: Some(Tokens(4000)), n: 2, ..request(0) }
        };
        let need = Need::of(&batch(10, 1000, 10_000), Some(Tokens(4096)), Tokens(1024), &settings).unwrap();
        // The window leaves 3,096 tokens to each.
        assert_eq!((need.output, need.granted, need.n), (Tokens(3096), Some(Tokens(3096)), 20));
        assert_eq!(need.tokens(), Tokens(10_000 + 20 * 3096));
        let one_too_long = batch(2, 4096, 4100);
        assert!(Need::of(&one_too_long, Some(Tokens(4096)), Tokens(1024), &settings).is_err());
    }

    #[test]
    fn what_generates_nothing_may_fill_the_window() {
        let settings = Settings::default();
        let embedding = |prompt| Request { max_tokens: Some(Tokens::ZERO), ..request(prompt) };
        let need = Need::of(&embedding(4096), Some(Tokens(4096)), Tokens(1024), &settings).unwrap();
        assert_eq!((need.output, need.granted, need.most), (Tokens::ZERO, Some(Tokens::ZERO), Tokens::ZERO));
        assert!(Need::of(&embedding(4097), Some(Tokens(4096)), Tokens(1024), &settings).is_err());
    }

    #[test]
    fn a_prompt_that_is_cut_to_the_window_fits_it() {
        let text = TextSize { known: Tokens(9000), cut: Some(TextSize::WINDOW), ..TextSize::default() };
        let counted = Prompt::Counted { text, prompts: Tokens(9000).into(), count: PromptCount::Exact };
        let asked = Request { prompt: counted, max_tokens: Some(Tokens(5)), ..request(0) };
        let need = Need::of(&asked, Some(Tokens(4096)), Tokens(1024), &Settings::default()).unwrap();
        assert_eq!((need.prompts.total, need.output), (Tokens(4095), Tokens(1)));
    }

    #[test]
    fn what_exceeds_the_window_by_its_words_alone_is_no_mere_bound() {
        let settings = Settings::default();
        let text = |words| Prompt::Text(TextSize { bytes: words * 6, words, ..TextSize::default() });
        let asked = |words| Request { prompt: text(words), max_tokens: Some(Tokens(9000)), ..request(0) };
        assert!(Need::of(&asked(4096), Some(Tokens(4096)), Tokens(1024), &settings).is_err());
        // What is granted is what the least prompt leaves.
        let need = Need::of(&asked(1000), Some(Tokens(4096)), Tokens(1024), &settings).unwrap();
        assert_eq!((need.count, need.granted), (PromptCount::Bounded, Some(Tokens(3096))));
    }

    #[test]
    fn the_operators_limit_is_imposed_also_where_the_client_set_none() {
        let settings = Settings { max_tokens_limit: Some(Tokens(256)), ..Settings::default() };
        let need = Need::of(&request(10), None, Tokens(1024), &settings).unwrap();
        assert_eq!((need.output, need.granted), (Tokens(256), Some(Tokens(256))));
    }
}
