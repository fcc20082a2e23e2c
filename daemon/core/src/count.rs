//! How many tokens a text has, as far as its size tells: bounds learned per model and kind of text from what was counted
//! exactly and from completions that told their prompt's tokens. A decision that comes out alike at both bounds needs
//! no exact count.

use std::collections::BTreeMap;

use crate::{
    node::Node,
    prompts::Prompts,
    request::{Prompt, PromptCount, Request},
    units::{Mono, Tokens, count_up, real},
};

/// Most models learned; beyond it new ones are bounded by what holds for every model.
const MAX_MODELS: usize = 64;
/// What a chat template adds, in bytes of text that would give as many tokens: once, and per message.
const CHAT_BYTES: u64 = 64;
const MESSAGE_BYTES: u64 = 16;
/// What it adds at most as long as nothing is learned, tokens: once (a system prompt of its own), and per message.
const CHAT_TOKENS: u64 = 256;
const MESSAGE_TOKENS: u64 = 32;
/// Tokens that a tokenizer puts before and behind a text, at most.
const SPECIAL_TOKENS: u64 = 4;
/// Bytes of the longest token: vocabularies have runs of 128 blanks.
const LONGEST_TOKEN_BYTES: u64 = 128;
/// Bounds are kept this far away from the extremes seen, share of them: once many texts were seen, and in addition at
/// the first, less with every further one.
const MARGIN: f64 = 0.15;
const FIRST_MARGIN: f64 = 0.6;
/// And by so many tokens, which matter for short texts.
const SLACK: f64 = 8.0;

/// The size of a prompt's text, and what tells its kind. No text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextSize {
    /// Bytes of UTF-8.
    pub bytes: u64,
    /// Of those, in characters other than ASCII.
    pub wide_bytes: u64,
    /// ASCII digits and punctuation.
    pub symbol_bytes: u64,
    /// ASCII blanks, tabs and line ends.
    pub space_bytes: u64,
    /// Of the bytes, those that a chat template may leave out: what the model said, tools, documents.
    pub optional_bytes: u64,
    /// Words: runs of bytes between blanks. Of optional text they do not count.
    pub words: u64,
    /// Messages of a chat; 0: plain text.
    pub messages: u64,
    /// Tokens known beside the text: token ids.
    pub known: Tokens,
    /// Tokens assumed beside the text: images and other media.
    pub assumed: Tokens,
    /// Prompts, where there are several; 0: one.
    pub prompts: u32,
    /// Of several prompts, the longest has at most this many tokens.
    pub longest: Tokens,
    /// And at least this many.
    pub longest_least: Tokens,
    /// The engine keeps at most this many tokens of each prompt; [`TextSize::WINDOW`]: as many as leave room for output.
    pub cut: Option<Tokens>,
}

/// A text has at least `low` and at most `high` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At least.
    pub low: Tokens,
    /// At most.
    pub high: Tokens,
}

/// Texts of one kind have about as many tokens per byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    chat: bool,
    /// Bytes, to a factor of two up to 1 KiB and of four up to 16 KiB.
    size: u32,
    wide: u8,
    symbols: u8,
    spaces: u8,
    word_length: u8,
}

/// Tokens per byte.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    least: f64,
    most: f64,
    seen: u32,
}

impl FromIterator<TextSize> for TextSize {
    /// Several prompts. What is learned of single texts says nothing of them.
    fn from_iter<I: IntoIterator<Item = Self>>(sizes: I) -> Self {
        sizes.into_iter().fold(Self::default(), |sum, one| Self {
            bytes: sum.bytes.saturating_add(one.bytes),
            wide_bytes: sum.wide_bytes.saturating_add(one.wide_bytes),
            symbol_bytes: sum.symbol_bytes.saturating_add(one.symbol_bytes),
            space_bytes: sum.space_bytes.saturating_add(one.space_bytes),
            optional_bytes: sum.optional_bytes.saturating_add(one.optional_bytes),
            words: sum.words.saturating_add(one.words),
            messages: sum.messages.saturating_add(one.messages),
            known: sum.known + one.known,
            assumed: sum.assumed + one.assumed,
            prompts: sum.prompts.saturating_add(1),
            longest: sum.longest.max(one.hard().high),
            longest_least: sum.longest_least.max(one.surely()),
            cut: one.cut,
        })
    }
}

impl TextSize {
    /// Cut to what the context window holds.
    pub const WINDOW: Tokens = Tokens(u64::MAX);

    fn count(&self) -> u64 {
        self.prompts.max(1).into()
    }

    /// The prompts, where all together have at most `total` tokens.
    #[must_use]
    pub fn at_most(&self, total: Tokens) -> Prompts {
        match self.prompts {
            0 | 1 => total.into(),
            count => {
                let longest = self.longest.min(self.cut.unwrap_or(Self::WINDOW)).min(total);
                Prompts { count, total, longest }
            }
        }
    }

    /// The prompts, where all together have at least `total` tokens.
    fn at_least(&self, total: Tokens) -> Prompts {
        let longest = Tokens(total.0.div_ceil(self.count())).max(self.longest_least);
        Prompts { longest, ..self.at_most(total) }
    }

    /// The longest prompt has at least this many tokens: a word has one of its own, for tokenizers split text at blanks
    /// before they look for tokens. Those that do not (SuperBPE) are rare; where one is at hand, the text is counted.
    pub(crate) fn surely(&self) -> Tokens {
        if self.prompts > 0 {
            return self.longest_least.min(self.cut.unwrap_or(Self::WINDOW));
        }
        let words = self.known + Tokens(self.words);
        self.hard().low.max(self.kept(words))
    }

    /// Of `total` tokens, what the engine keeps at most.
    fn kept(&self, total: Tokens) -> Tokens {
        self.cut.map_or(total, |most| total.min(most.times(self.count())))
    }

    /// What a chat template adds, in bytes.
    fn template_bytes(&self) -> u64 {
        let chat = if self.messages > 0 { CHAT_BYTES } else { 0 };
        self.messages.saturating_mul(MESSAGE_BYTES).saturating_add(chat)
    }

    /// Bytes, with that.
    fn all_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.template_bytes())
    }

    fn beside(&self) -> Tokens {
        self.known + self.assumed
    }

    fn kind(&self) -> Kind {
        let narrow = self.bytes.saturating_sub(self.wide_bytes);
        Kind {
            chat: self.messages > 0,
            size: match self.all_bytes().max(16).ilog2() {
                small @ ..10 => small,
                large => 10 + ((large - 10) / 2).min(2),
            },
            wide: step(self.wide_bytes, self.bytes, &[2, 10, 25, 40, 60, 80]),
            symbols: step(self.symbol_bytes, narrow, &[8, 18, 40]),
            spaces: step(self.space_bytes, narrow, &[8, 30]),
            // In hundredths of a letter.
            word_length: step(narrow.saturating_sub(self.space_bytes), self.words, &[800, 1600]),
        }
    }

    /// What holds for every tokenizer: a token is at least one byte, and none is longer than the longest.
    pub(crate) fn hard(&self) -> Bounds {
        let chat = if self.messages > 0 { CHAT_TOKENS } else { 0 };
        let once = (chat + SPECIAL_TOKENS).saturating_mul(self.count());
        let added = self.messages.saturating_mul(MESSAGE_TOKENS).saturating_add(once);
        let certain = self.bytes.saturating_sub(self.optional_bytes);
        // What is assumed of pictures is no lower bound.
        let low = self.known + Tokens(certain / LONGEST_TOKEN_BYTES);
        let high = self.beside() + Tokens(self.bytes.saturating_add(added));
        Bounds { low: self.kept(low), high: self.kept(high) }
    }
}

/// How many of `limits`, in percent, `part` of `whole` reaches.
fn step(part: u64, whole: u64, limits: &[u64]) -> u8 {
    let percent = part.saturating_mul(100).checked_div(whole).unwrap_or(0);
    u8::try_from(limits.iter().filter(|limit| percent >= **limit).count()).unwrap_or(u8::MAX)
}

/// What was learned of all models.
#[derive(Clone, Debug, Default)]
pub(crate) struct Texts {
    models: BTreeMap<Box<str>, BTreeMap<Kind, Ratio>>,
}

impl Texts {
    /// Bounds for a text sent to `model`.
    pub(crate) fn bounds(&self, model: &str, text: &TextSize) -> Bounds {
        let hard = text.hard();
        let learned = self.models.get(model).and_then(|kinds| kinds.get(&text.kind()));
        let Some(ratio) = learned.filter(|_| text.prompts <= 1) else { return hard };
        let bytes = real(text.all_bytes());
        // What the template adds may be more or less than is taken for it, and was another share of those seen.
        let template = real(text.template_bytes()) / bytes.max(1.0);
        let margin = MARGIN + FIRST_MARGIN / f64::from(ratio.seen.max(1)) + template;
        let low = (ratio.least * (1.0 - margin)).max(0.0) * bytes - SLACK;
        let high = ratio.most * (1.0 + margin) * bytes + SLACK;
        Bounds {
            low: text.kept(text.beside() + Tokens(count_up(low))).max(hard.low),
            high: (text.beside() + Tokens(count_up(high))).min(hard.high),
        }
    }

    /// A text had `tokens` tokens.
    pub(crate) fn take(&mut self, model: &str, text: &TextSize, tokens: Tokens) {
        let bytes = text.all_bytes();
        let new = !self.models.contains_key(model);
        // What is assumed beside a text would be taken for its own, and what was cut off would be missing.
        let whole = text.assumed == Tokens::ZERO && text.cut.is_none() && text.prompts <= 1;
        if bytes == 0 || !whole || (new && self.models.len() >= MAX_MODELS) {
            return;
        }
        let ratio = real(tokens.saturating_sub(text.known).0) / real(bytes);
        let kinds = self.models.entry(model.into()).or_default();
        let of_kind = kinds.entry(text.kind()).or_insert(Ratio { least: ratio, most: ratio, seen: 0 });
        of_kind.least = of_kind.least.min(ratio);
        of_kind.most = of_kind.most.max(ratio);
        of_kind.seen = of_kind.seen.saturating_add(1);
    }
}

impl Node {
    /// What a request's prompt counts as: its text by the bound at which the decision is certain. Other prompts are
    /// what they are.
    ///
    /// # Errors
    /// The bounds, where the decision depends on how many tokens there really are: count them first, then ask with
    /// [`Prompt::Counted`].
    pub fn settle_count(&mut self, now: Mono, request: &Request<'_>) -> Result<Prompt, Bounds> {
        let Prompt::Text(text) = request.prompt else { return Ok(request.prompt) };
        let bounds = self.texts.bounds(request.model, &text);
        // Counted as exactly so many, so that the context window is held against it as well.
        let at = |prompts| {
            let prompt = Prompt::Counted { text, prompts, count: PromptCount::Estimated };
            self.foretell(now, &Request { prompt, ..*request })
        };
        // A text that surely exceeds the window is denied for that, whatever else it lacks.
        let least = if text.prompts > 1 { bounds.low } else { bounds.low.max(text.surely()) };
        let (low, high) = (text.at_least(least), text.at_most(bounds.high.max(least)));
        let most = at(high);
        // The grant may be less than what is asked because the window is full; at the other bound it would not be.
        if most.is_ok_and(|granted| granted == request.max_tokens) || most.is_ok() && most == at(low) {
            return Ok(Prompt::Counted { text, prompts: high, count: PromptCount::Bounded });
        }
        match at(low) {
            // Room that is waited for is room for what there really is.
            Err(reason) if reason.http_status() != 429 || request.wait.is_zero() => {
                Ok(Prompt::Counted { text, prompts: low, count: PromptCount::Estimated })
            }
            _ => Err(bounds),
        }
    }

    /// How many tokens a text sent to `model` has at least and at most, by what is known now.
    #[must_use]
    pub fn text_bounds(&self, model: &str, text: &TextSize) -> Bounds {
        self.texts.bounds(model, text)
    }

    /// A text sent to `model` was counted: it has `tokens` tokens.
    pub fn counted(&mut self, model: &str, text: &TextSize, tokens: Tokens) {
        self.texts.take(model, text, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prose(bytes: u64) -> TextSize {
        TextSize {
            bytes,
            symbol_bytes: bytes / 30,
            space_bytes: bytes / 6,
            words: bytes / 6,
            ..TextSize::default()
        }
    }

    #[test]
    fn before_anything_is_learned_only_what_is_always_true_counts() {
        let bounds = Texts::default().bounds("m", &prose(6400));
        assert_eq!(bounds, Bounds { low: Tokens(50), high: Tokens(6404) });
        let chat = TextSize { messages: 2, known: Tokens(1000), ..prose(640) };
        assert_eq!(Texts::default().bounds("m", &chat), Bounds { low: Tokens(1005), high: Tokens(1964) });
    }

    #[test]
    fn bounds_close_in_on_what_was_counted() {
        let mut texts = Texts::default();
        for bytes in 5000..5100 {
            texts.take("m", &prose(bytes), Tokens(bytes / 4));
        }
        let Bounds { low, high } = texts.bounds("m", &prose(8000));
        // 2,000 tokens less and more 15.6 %, and 8.
        assert!((1675..=1682).contains(&low.0) && (2319..=2322).contains(&high.0), "{low} {high}");
        // Another model, another size and another kind of text are not known by that.
        let code = TextSize { symbol_bytes: 2000, ..prose(8000) };
        for bounds in
            [texts.bounds("n", &prose(8000)), texts.bounds("m", &prose(100)), texts.bounds("m", &code)]
        {
            assert!(bounds.high.0 >= 104, "{bounds:?}");
        }
        assert_eq!(texts.bounds("m", &code).high, Tokens(8004));
    }

    /// Emoji of a byte a token in a template of 20 tokens, as in a real vLLM: a short text tells little of a longer one.
    #[test]
    fn a_short_chat_bounds_a_longer_one() {
        let chat =
            |bytes| TextSize { bytes, wide_bytes: bytes, words: 1, messages: 2, ..TextSize::default() };
        let mut texts = Texts::default();
        for bytes in 32..48 {
            texts.take("m", &chat(bytes), Tokens(20 + bytes));
        }
        for bytes in 32..160 {
            let Bounds { low, high } = texts.bounds("m", &chat(bytes));
            assert!((low.0..=high.0).contains(&(20 + bytes)), "{bytes}: {low} {high}");
        }
    }

    #[test]
    fn one_text_alone_is_not_trusted_far() {
        let mut texts = Texts::default();
        texts.take("m", &prose(8000), Tokens(2000));
        let Bounds { low, high } = texts.bounds("m", &prose(8000));
        assert_eq!((low, high), (Tokens(492), Tokens(3508)));
    }

    #[test]
    fn absurd_sizes_neither_overflow_nor_divide_by_nothing() {
        let huge =
            TextSize { bytes: u64::MAX, messages: u64::MAX, known: Tokens(u64::MAX), ..TextSize::default() };
        let mut texts = Texts::default();
        texts.take("m", &huge, Tokens(u64::MAX));
        texts.take("m", &TextSize::default(), Tokens(3));
        for text in [huge, TextSize::default()] {
            let Bounds { low, high } = texts.bounds("m", &text);
            assert!(low <= high, "{low} {high}");
        }
    }

    #[test]
    fn models_beyond_the_bound_are_not_learned() {
        let mut texts = Texts::default();
        for model in 0..=MAX_MODELS {
            texts.take(&model.to_string(), &prose(8000), Tokens(2000));
        }
        assert_eq!(texts.models.len(), MAX_MODELS);
    }
}
