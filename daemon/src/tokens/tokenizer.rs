//! A model's tokenizer, loaded: counts exactly what the engine will make of a body.

use gpuadmit_core::{count::TextSize, prompts::Prompts, units::Tokens};
use tokenizers::{ModelWrapper, Tokenizer};

use super::{
    body::{Body, Input},
    files::Files,
    message::{Content, Message, Part},
    template::Template,
};

/// Texts beyond this are not counted exactly, bytes: it would take longer than any caller waits.
pub(super) const MOST_BYTES: usize = 2 << 20;

/// A tokenizer and the chat template of its model.
pub(super) struct Counter {
    tokenizer: Tokenizer,
    template: Option<Template>,
}

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The prompts.
    pub prompts: Prompts,
    /// Whether the engine will count the same; otherwise it has parts that are assumed.
    pub exact: bool,
}

/// Why a text is not counted. Nothing of it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Uncounted {
    /// It is too long.
    #[error("the text is too long to be counted")]
    TooLong,
    /// A chat, and no template that can be rendered.
    #[error("the chat template is not there, or does not render")]
    Template,
    /// The tokenizer failed.
    #[error("the tokenizer failed")]
    Tokenizer,
    /// The body is not understood.
    #[error("the body is not understood")]
    Body,
}

impl Counter {
    /// Loads what was read.
    pub(super) fn load(files: Files) -> Result<Self, String> {
        // Its error would quote the file, which may be any that a link of that name points to.
        let wrong = |_| "its tokenizer.json is none that this program understands".to_owned();
        let mut tokenizer = Tokenizer::from_bytes(&files.tokenizer).map_err(wrong)?;
        drop(files.tokenizer);
        // Both are for training; engines set neither.
        tokenizer.with_truncation(None).map_err(wrong)?.with_padding(None);
        let tokenizer = forgetful(tokenizer);
        // A template that this program cannot compile is none: chats then go by their bounds.
        let template = files.chat.and_then(|chat| Template::new(chat).ok());
        Ok(Self { tokenizer, template })
    }

    /// Whether it has a chat template.
    pub(super) const fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Tokens of a plain text, with what the tokenizer puts before and behind it.
    pub(super) fn text(&self, text: &str) -> Result<Counted, Uncounted> {
        Ok(Counted { prompts: self.tokens(text, true)?.into(), exact: true })
    }

    /// Tokens of a body, where a picture or another medium is taken for `media_tokens`.
    pub(super) fn body(&self, body: &Body<'_>, media_tokens: u64) -> Result<Counted, Uncounted> {
        let cut = |tokens: Tokens| tokens.min(body.cut.unwrap_or(TextSize::WINDOW));
        let mut exact = !body.ambiguous;
        let prompts: Result<Prompts, Uncounted> = match &body.input {
            Input::Nothing => return Err(Uncounted::Body),
            Input::Ids(lengths) => Ok(lengths.iter().map(|length| cut(Tokens(*length))).collect()),
            Input::Texts(texts) => {
                let special = body.add_special_tokens.unwrap_or(true);
                texts.iter().map(|text| Ok(cut(self.tokens(text, special)?))).collect()
            }
            Input::Chat(messages) => Ok(cut(self.chat(messages, body, media_tokens, &mut exact)?).into()),
            Input::Chats(chats) => {
                let counts = chats.iter().map(|chat| self.chat(chat, body, media_tokens, &mut exact));
                counts.map(|count| Ok(cut(count?))).collect()
            }
        };
        Ok(Counted { prompts: prompts?, exact })
    }

    fn chat(
        &self,
        messages: &[Message<'_>],
        body: &Body<'_>,
        media_tokens: u64,
        exact: &mut bool,
    ) -> Result<Tokens, Uncounted> {
        if body.chat.foreign || messages.iter().any(Message::is_foreign) {
            return Err(Uncounted::Template);
        }
        let template = self.template.as_ref().ok_or(Uncounted::Template)?;
        let rendered = template.render(messages, &body.chat).map_err(|_| Uncounted::Template)?;
        let text = self.tokens(&rendered, body.add_special_tokens.unwrap_or(false))?;
        let media = messages.iter().map(media).fold(0, u64::saturating_add);
        *exact &= media == 0 && !body.chat.continue_final_message;
        Ok(text + Tokens(media.saturating_mul(media_tokens)))
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Tokens, Uncounted> {
        if text.len() > MOST_BYTES {
            return Err(Uncounted::TooLong);
        }
        let encoding = self.tokenizer.encode_fast(text, special).map_err(|_| Uncounted::Tokenizer)?;
        Ok(Tokens(u64::try_from(encoding.len()).unwrap_or(u64::MAX)))
    }
}

/// Media in a message.
fn media(message: &Message<'_>) -> u64 {
    let Content::Parts(parts) = &message.content else { return 0 };
    parts.iter().fold(0, |media, part| media.saturating_add(u64::from(matches!(part, Part::Media))))
}

/// Without a cache of words already seen: they would be pieces of earlier prompts. That of BPE belongs to the thread,
/// and ends with it: every count has a thread of its own.
fn forgetful(mut tokenizer: Tokenizer) -> Tokenizer {
    if let ModelWrapper::Unigram(unigram) = tokenizer.get_model() {
        let mut unigram = unigram.clone();
        unigram.resize_cache(0);
        tokenizer.with_model(ModelWrapper::Unigram(unigram));
    }
    tokenizer
}

#[cfg(test)]
mod tests {
    use gpuadmit_core::observation::ModelSource;

    use super::*;
    use crate::tokens::files;

    /// Expected: the count of transformers for the same body with `chat_template_kwargs` of its own
    /// (tests/data/tokenizer/cases.jsonl).
    #[test]
    fn the_engines_default_chat_template_kwargs_are_counted_or_the_chat_is_not() {
        let counted = |template_kwargs: Option<&str>| {
            let source = ModelSource {
                name: concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/tokenizer").into(),
                folder: None,
                caches: Vec::new(),
                revision: None,
                chat_template: None,
                template_kwargs: template_kwargs.map(Into::into),
                content_format: None,
                root: None,
            };
            let counter = Counter::load(files::read(&source).unwrap()).unwrap();
            let body = Body::read(br#"{"messages":[{"role":"user","content":"weather?"}]}"#).unwrap();
            counter.body(&body, 0)
        };
        let exact = |tokens| Ok(Counted { prompts: Tokens(tokens).into(), exact: true });
        assert_eq!(counted(Some(r#"{"enable_thinking":false}"#)), exact(69));
        assert_eq!(counted(None), counted(Some("{}")));
        assert_ne!(counted(None), exact(69));
        assert_eq!(counted(Some("not known")), Err(Uncounted::Template));
    }
}
