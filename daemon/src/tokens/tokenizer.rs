//! A model's tokenizer, loaded: counts exactly what the engine will make of a body.

use gpuadmit_core::units::Tokens;
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
    /// Tokens.
    pub tokens: Tokens,
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
        Ok(Counted { tokens: self.tokens(text, true)?, exact: true })
    }

    /// Tokens of a body, where a picture or another medium is taken for `media_tokens`.
    pub(super) fn body(&self, body: &Body<'_>, media_tokens: u64) -> Result<Counted, Uncounted> {
        let mut counted = match &body.input {
            Input::Nothing => return Err(Uncounted::Body),
            Input::Ids { tokens, .. } => Counted { tokens: Tokens(*tokens), exact: true },
            Input::Texts(texts) => {
                let special = body.add_special_tokens.unwrap_or(true);
                let counts = texts.iter().map(|text| self.tokens(text, special));
                Counted { tokens: counts.sum::<Result<_, _>>()?, exact: true }
            }
            Input::Chat(messages) => self.chat(messages, body, media_tokens)?,
            // The engine makes messages of its own of them.
            Input::Responses(messages) => {
                Counted { exact: false, ..self.chat(messages, body, media_tokens)? }
            }
        };
        if let Some(most) = body.truncate {
            counted.tokens = counted.tokens.min(Tokens(most));
        }
        Ok(counted)
    }

    fn chat(
        &self,
        messages: &[Message<'_>],
        body: &Body<'_>,
        media_tokens: u64,
    ) -> Result<Counted, Uncounted> {
        let template =
            self.template.as_ref().filter(|_| !body.chat.own_template).ok_or(Uncounted::Template)?;
        let rendered = template.render(messages, &body.chat).map_err(|_| Uncounted::Template)?;
        let text = self.tokens(&rendered, body.add_special_tokens.unwrap_or(false))?;
        let (media, others) = messages
            .iter()
            .map(beside_text)
            .fold((0, 0), |sum: (u64, u64), one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)));
        let tokens = text + Tokens(media.saturating_mul(media_tokens));
        Ok(Counted { tokens, exact: media == 0 && others == 0 && !body.chat.continue_final_message })
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Tokens, Uncounted> {
        if text.len() > MOST_BYTES {
            return Err(Uncounted::TooLong);
        }
        let encoding = self.tokenizer.encode_fast(text, special).map_err(|_| Uncounted::Tokenizer)?;
        Ok(Tokens(u64::try_from(encoding.len()).unwrap_or(u64::MAX)))
    }
}

/// Media and parts of unknown kind in a message.
fn beside_text(message: &Message<'_>) -> (u64, u64) {
    let Content::Parts(parts) = &message.content else { return (0, 0) };
    parts.iter().fold((0, 0), |(media, others): (u64, u64), part| match part {
        Part::Text(_) => (media, others),
        Part::Media => (media.saturating_add(1), others),
        Part::Other(_) => (media, others.saturating_add(1)),
    })
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
        let exact = |tokens| Ok(Counted { tokens: Tokens(tokens), exact: true });
        assert_eq!(counted(Some(r#"{"enable_thinking":false}"#)), exact(69));
        assert_eq!(counted(None), counted(Some("{}")));
        assert_ne!(counted(None), exact(69));
        assert_eq!(counted(Some("not known")), Err(Uncounted::Template));
    }
}
