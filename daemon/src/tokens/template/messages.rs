//! Messages as vLLM hands them to a chat template (0.32, renderers/chat_utils.py and renderers/hf.py).

use serde_json::{Map, Value as Json, json};

use crate::tokens::message::{Content, Extra, Message, Part};

/// What a template wants its messages to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// It goes through the parts of a message itself; otherwise it wants one text.
    wants_parts: bool,
    /// It knows the role `developer`.
    knows_developer: bool,
}

impl Shape {
    /// The shape of a template that wants parts or one text.
    pub(super) fn of(source: &str, wants_parts: bool) -> Self {
        let knows_developer = source.contains("\"developer\"") || source.contains("'developer'");
        Self { wants_parts, knows_developer }
    }
}

/// The messages for a template of this shape.
pub(super) fn conversation(chat: &[Message<'_>], shape: &Shape) -> Vec<Json> {
    let messages: Vec<Json> = chat.iter().map(|one| message(one, shape)).collect();
    let has_developer = chat.iter().any(|message| message.role == "developer");
    if has_developer && !shape.knows_developer { with_one_system_message(messages) } else { messages }
}

/// The text of the last message.
pub(super) fn last_text(messages: &[Json]) -> Option<String> {
    let content = messages.last()?.get("content")?;
    let last_part = || content.as_array()?.last()?.get("text")?.as_str();
    content.as_str().or_else(last_part).map(Into::into)
}

fn message(from: &Message<'_>, shape: &Shape) -> Json {
    let mut to = Map::new();
    to.insert("role".into(), Json::from(&*from.role));
    // Most templates take a tool's answer for one text.
    let parts = shape.wants_parts && from.role != "tool";
    to.insert(
        "content".into(),
        if parts {
            in_parts(&from.content, &from.role)
        } else {
            Json::from(in_one(&from.content, &from.role))
        },
    );
    for (key, raw) in &from.extra {
        let Ok(value) = serde_json::from_str::<Json>(raw.get()) else { continue };
        match (key, &*from.role) {
            (Extra::ToolCalls, "assistant") if value.as_array().is_some_and(|calls| !calls.is_empty()) => {
                to.insert("tool_calls".into(), calls(value));
            }
            (Extra::Reasoning, "assistant") => {
                to.insert("reasoning".into(), value.clone());
                to.insert("reasoning_content".into(), value);
            }
            (Extra::ToolCallId, "tool") => _ = to.insert("tool_call_id".into(), value),
            (Extra::Name, _) if value.is_string() => _ = to.insert("name".into(), value),
            _ => {}
        }
    }
    Json::Object(to)
}

fn in_parts(content: &Content<'_>, role: &str) -> Json {
    let text = |text: &str| {
        let kept = without_billing(text, role);
        (kept == text || !kept.is_empty()).then(|| json!({ "type": "text", "text": kept }))
    };
    match content {
        Content::None => json!([]),
        Content::Text(one) => text(one).into_iter().collect(),
        Content::Parts(parts) => parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(one) => text(one),
                Part::Media => Some(json!({ "type": "image" })),
                Part::Other(raw) => Some(serde_json::from_str(raw.get()).unwrap_or(Json::Null)),
            })
            .collect(),
    }
}

/// Without the line that Claude Code puts before a system message (`_strip_claude_code_billing_header`).
fn without_billing<'m>(text: &'m str, role: &str) -> &'m str {
    if role == "system" && text.starts_with("x-anthropic-billing-header") {
        text.split_once('\n').map_or("", |(_, rest)| rest)
    } else {
        text
    }
}

fn in_one(content: &Content<'_>, role: &str) -> String {
    match content {
        Content::None => String::new(),
        Content::Text(text) => without_billing(text, role).to_owned(),
        Content::Parts(parts) => {
            let texts = parts.iter().filter_map(|part| match part {
                Part::Text(text) => Some(without_billing(text, role)),
                Part::Media => None,
                Part::Other(raw) => Some(raw.get()),
            });
            // Empty ones leave no line (`_parse_chat_message_content_parts`).
            texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
        }
    }
}

/// Arguments of calls come as text that holds JSON; templates want what it holds, an object.
fn calls(mut calls: Json) -> Json {
    for call in calls.as_array_mut().into_iter().flatten() {
        let Some(function) = call.get_mut("function").and_then(Json::as_object_mut) else { continue };
        let arguments = match function.get("arguments") {
            Some(Json::String(text)) => serde_json::from_str(text).unwrap_or(Json::Null),
            Some(other) => other.clone(),
            None => Json::Null,
        };
        let arguments = if arguments.is_object() { arguments } else { json!({}) };
        function.insert("arguments".into(), arguments);
    }
    calls
}

/// Developers' messages become the system's, and those of the system one, the first.
fn with_one_system_message(messages: Vec<Json>) -> Vec<Json> {
    let role = |message: &Json| message.get("role").and_then(Json::as_str).unwrap_or_default().to_owned();
    let is_system = |message: &Json| matches!(role(message).as_str(), "system" | "developer");
    let first_is_system = messages.first().is_some_and(is_system);
    let (mut system, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_system);
    if let ([only], true) = (system.as_mut_slice(), first_is_system) {
        if let Some(role) = only.get_mut("role") {
            *role = Json::from("system");
        }
        return system.into_iter().chain(others).collect();
    }
    let texts: Vec<String> = system.iter().filter_map(|message| text_of(message.get("content")?)).collect();
    let first = json!({ "role": "system", "content": texts.join("\n\n") });
    std::iter::once(first).chain(others).collect()
}

fn text_of(content: &Json) -> Option<String> {
    let part = |part: &Json| part.get("text").and_then(Json::as_str).map(str::to_owned);
    let text = match content {
        Json::Array(parts) => parts.iter().filter_map(part).collect::<Vec<_>>().join("\n"),
        other => other.as_str()?.to_owned(),
    };
    Some(text).filter(|text| !text.is_empty())
}
