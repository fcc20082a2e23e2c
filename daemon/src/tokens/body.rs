//! A request body for vLLM as far as admission goes: what it asks for, and its text.
//!
//! The body does not say which API it is for; its keys do (see [`api`]). What vLLM 0.32 accepts is read as it reads it
//! (`vllm/entrypoints`), or refused by the name of what is not understood.
//!
//! Bounds: a body is no longer than the server's message limit; what is not needed is skipped without recursion and
//! without being kept, whatever its depth; lists have a most. Errors name a field or a place, never what stands there.

mod api;
mod keys;
mod lax;
mod list;

use std::borrow::Cow;

use gpuadmit_core::units::Tokens;
use serde_json::value::RawValue;

pub use super::message::MAX_ITEMS;
use super::message::{Message, TOO_MANY};
use keys::Keys;

/// A body.
#[derive(Default)]
pub struct Body<'a> {
    /// `model`.
    pub model: Option<Cow<'a, str>>,
    /// Most output tokens per sequence; `None`: as many as the context window leaves.
    pub max_tokens: Option<u64>,
    /// `n`, per prompt.
    pub n: Option<u32>,
    /// Whether stop sequences are set.
    pub has_stop: bool,
    /// `priority`: lower is earlier.
    pub priority: Option<i64>,
    /// What is to be answered.
    pub input: Input<'a>,
    /// How a chat is rendered.
    pub chat: ChatOptions<'a>,
    /// `add_special_tokens`.
    pub add_special_tokens: Option<bool>,
    /// The engine keeps at most this many tokens of each prompt, as
    /// [`TextSize::cut`](gpuadmit_core::count::TextSize::cut).
    pub cut: Option<Tokens>,
    /// More than one API takes it, and they make different prompts of it.
    pub ambiguous: bool,
}

/// What is to be answered.
#[derive(Default)]
pub enum Input<'a> {
    /// Nothing.
    #[default]
    Nothing,
    /// Prompts.
    Texts(Vec<Cow<'a, str>>),
    /// Prompts given as token ids: the length of each.
    Ids(Vec<u64>),
    /// Messages of a chat.
    Chat(Vec<Message<'a>>),
    /// Chats, each a prompt.
    Chats(Vec<Vec<Message<'a>>>),
}

/// What else goes into the chat template.
#[derive(Default)]
pub struct ChatOptions<'a> {
    /// `tools`.
    pub tools: Option<&'a RawValue>,
    /// `documents`.
    pub documents: Option<&'a RawValue>,
    /// `chat_template_kwargs`.
    pub kwargs: Option<&'a RawValue>,
    /// `add_generation_prompt`.
    pub add_generation_prompt: Option<bool>,
    /// `continue_final_message`.
    pub continue_final_message: bool,
    /// `reasoning_effort`.
    pub reasoning_effort: Option<&'a RawValue>,
    /// vLLM makes messages of its own of it: it is not rendered here, only its size counts.
    pub foreign: bool,
}

/// Why a body is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is no JSON object.
    #[error("line {line}, column {column}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// A value has the wrong type, or is out of its range.
    #[error("{field} is not allowed; {allowed}")]
    Field {
        /// Key.
        field: &'static str,
        /// What is.
        allowed: &'static str,
    },
    /// vLLM may take it; how many tokens it has is not known here.
    #[error("`{field}` is not understood; {instead}")]
    NotUnderstood {
        /// Key.
        field: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// A list is longer than is read.
    #[error("a list is longer than {MAX_ITEMS} items")]
    TooMany,
}

impl<'a> Body<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// [`BodyError`].
    pub fn read(text: &'a [u8]) -> Result<Self, BodyError> {
        // Python's reader takes a byte order mark.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let keys: Keys<'a> = serde_json::from_slice(text)
            .map_err(|error| BodyError::Json { line: error.line(), column: error.column() })?;
        api::read(&keys)
    }
}

/// An error in the value of `field`. Its own message quotes what it found: it must go no further.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn wrong(error: serde_json::Error, field: &'static str, allowed: &'static str) -> BodyError {
    match error.to_string().contains(TOO_MANY) {
        true => BodyError::TooMany,
        false => BodyError::Field { field, allowed },
    }
}

#[cfg(test)]
mod tests;
