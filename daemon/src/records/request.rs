//! Requests in a line: all that a decision rests on, and of the prompt its size alone.

use std::time::Duration;

use gpuadmit_core::{
    count::TextSize,
    prompts::Prompts,
    request::{self, Class, PromptCount, SessionId},
    units::Tokens,
};
use serde::{Deserialize, Serialize};

use super::wire::{PlainPrompts, PlainText, Wire, is_default};

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    model: String,
    #[serde(default, skip_serializing_if = "is_default")]
    engine: Option<String>,
    prompt: Prompt,
    #[serde(default, skip_serializing_if = "is_default")]
    max_tokens: Option<u64>,
    n: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    has_stop: bool,
    class: Priority,
    #[serde(default, skip_serializing_if = "is_default")]
    tenant: String,
    #[serde(default, skip_serializing_if = "is_default")]
    session_key: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    ttft_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pace_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    wait_ns: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    request_id: Option<String>,
    peer_uid: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    session: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    forwards_rank: bool,
}

/// The size of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Prompt {
    Tokens(u64),
    Several(PlainPrompts),
    Bytes(u64),
    Text(PlainText),
    Counted {
        text: PlainText,
        tokens: u64,
        /// Of several prompts.
        #[serde(default, skip_serializing_if = "is_default")]
        longest: Option<u64>,
        count: Count,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Count {
    Exact,
    Estimated,
    Bounded,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Priority {
    Interactive,
    Standard,
    Batch,
}

impl From<&request::Request<'_>> for Request {
    fn from(from: &request::Request<'_>) -> Self {
        let owned = |name: Option<&str>| name.map(str::to_owned);
        Self {
            model: from.model.into(),
            engine: owned(from.engine),
            prompt: from.prompt.into(),
            max_tokens: from.max_tokens.to_plain(),
            n: from.n,
            has_stop: from.has_stop,
            class: match from.class {
                Class::Interactive => Priority::Interactive,
                Class::Standard => Priority::Standard,
                Class::Batch => Priority::Batch,
            },
            tenant: from.tenant.into(),
            session_key: owned(from.session_key),
            ttft_ns: from.ttft_objective.to_plain(),
            pace_ns: from.pace_objective.to_plain(),
            wait_ns: from.wait.to_plain(),
            request_id: owned(from.request_id),
            peer_uid: from.peer_uid,
            session: from.session.map(|session| session.0),
            forwards_rank: from.forwards_rank,
        }
    }
}

impl Request {
    /// As the node takes it.
    pub(crate) fn borrow(&self) -> request::Request<'_> {
        request::Request {
            model: &self.model,
            engine: self.engine.as_deref(),
            prompt: (&self.prompt).into(),
            max_tokens: self.max_tokens.map(Tokens),
            n: self.n,
            has_stop: self.has_stop,
            class: match self.class {
                Priority::Interactive => Class::Interactive,
                Priority::Standard => Class::Standard,
                Priority::Batch => Class::Batch,
            },
            tenant: &self.tenant,
            session_key: self.session_key.as_deref(),
            ttft_objective: self.ttft_ns.map(Duration::from_nanos),
            pace_objective: self.pace_ns.map(Duration::from_nanos),
            wait: Duration::from_nanos(self.wait_ns),
            request_id: self.request_id.as_deref(),
            peer_uid: self.peer_uid,
            session: self.session.map(SessionId),
            forwards_rank: self.forwards_rank,
        }
    }
}

impl From<request::Prompt> for Prompt {
    fn from(from: request::Prompt) -> Self {
        match from {
            request::Prompt::Tokens(tokens) => Self::Tokens(tokens.0),
            request::Prompt::Several(prompts) => Self::Several(prompts.to_plain()),
            request::Prompt::Bytes(bytes) => Self::Bytes(bytes),
            request::Prompt::Text(text) => Self::Text(text.to_plain()),
            request::Prompt::Counted { text, prompts, count } => {
                let count = match count {
                    PromptCount::Exact => Count::Exact,
                    PromptCount::Estimated => Count::Estimated,
                    PromptCount::Bounded => Count::Bounded,
                };
                let longest = (prompts.count > 1).then_some(prompts.longest.0);
                Self::Counted { text: text.to_plain(), tokens: prompts.total.0, longest, count }
            }
        }
    }
}

impl From<&Prompt> for request::Prompt {
    fn from(from: &Prompt) -> Self {
        match from {
            Prompt::Tokens(tokens) => Self::Tokens(Tokens(*tokens)),
            Prompt::Several(prompts) => Self::Several(Prompts::from_plain(prompts.clone())),
            Prompt::Bytes(bytes) => Self::Bytes(*bytes),
            Prompt::Text(text) => Self::Text(TextSize::from_plain(text.clone())),
            Prompt::Counted { text, tokens, longest, count } => Self::Counted {
                text: TextSize::from_plain(text.clone()),
                prompts: Prompts {
                    count: TextSize::from_plain(text.clone()).prompts.max(1),
                    total: Tokens(*tokens),
                    longest: Tokens(longest.unwrap_or(*tokens)),
                },
                count: match count {
                    Count::Exact => PromptCount::Exact,
                    Count::Estimated => PromptCount::Estimated,
                    Count::Bounded => PromptCount::Bounded,
                },
            },
        }
    }
}
