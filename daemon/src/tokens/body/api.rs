//! Which API a body is for, and what vLLM 0.32 makes of it there: completions, chat completions, responses, messages (as
//! Anthropic has them), embeddings, classification and pooling.

use std::borrow::Cow;

use gpuadmit_core::{count::TextSize, units::Tokens};
use serde_json::value::RawValue;

use super::{
    super::message::{Content, Many, Message, Part},
    Body, BodyError, ChatOptions, Input,
    keys::Keys,
    list::List,
    wrong,
};

/// Output tokens of a completion that names no limit (openai/completion/protocol.py).
const COMPLETION_TOKENS: u64 = 16;
/// Keys of an Anthropic body that no chat completion has.
const ANTHROPIC: [&str; 4] = ["system", "stop_sequences", "thinking", "output_config"];
/// Keys of a body for embeddings, classification or pooling that no other has.
const POOLING: [&str; 6] =
    ["dimensions", "embed_dtype", "encoding_format", "endianness", "padding", "use_activation"];
/// Keys that it has and responses have not, though chats have.
const TOKENIZED: [&str; 4] = ["add_special_tokens", "task", "truncate_prompt_tokens", "truncation_side"];
/// Keys of a body that generates.
const GENERATED: [&str; 6] = ["max_completion_tokens", "max_tokens", "n", "stop", "stream", "temperature"];
/// Keys of a body for responses that none for embeddings has.
const RESPONSES: [&str; 8] =
    ["instructions", "max_output_tokens", "reasoning", "store", "stream", "temperature", "text", "tools"];

const PROMPT_TOKENS: &str = "ask with prompt_tokens";
const PROMPTS: &str = "a string, a list of strings, a list of token ids, or a list of those";
const MESSAGES: &str = "a list of messages";

/// What vLLM takes beside what is read here, and what makes of the body another prompt than it seems.
const NOT_UNDERSTOOD: [(&str, &str); 5] = [
    ("prompt_embeds", PROMPT_TOKENS),
    ("suffix", PROMPT_TOKENS),
    ("chat_template", "a template of the body's own is not rendered: ask with prompt_tokens"),
    ("previous_response_id", "only the engine knows what was said before: ask with prompt_tokens"),
    ("previous_input_messages", PROMPT_TOKENS),
];
/// Keys that name the prompt of APIs that are not read here.
const OTHER_APIS: [&str; 12] = [
    "queries",
    "query",
    "data_1",
    "text_1",
    "items",
    "documents",
    "texts",
    "images",
    "inputs",
    "data",
    "token_ids",
    "tokens",
];

pub(super) fn read<'a>(keys: &Keys<'a>) -> Result<Body<'a>, BodyError> {
    let given = ["messages", "prompt", "input"].map(|key| keys.get(key));
    let not_understood = |field, instead| Err(BodyError::NotUnderstood { field, instead });
    for (field, instead) in NOT_UNDERSTOOD {
        if keys.get(field).is_some_and(|value| value.get() != "[]") {
            return not_understood(field, instead);
        }
    }
    if keys.get("kv_transfer_params").is_some_and(|params| params.get().contains("\"prompt_token_ids\"")) {
        return not_understood("kv_transfer_params.prompt_token_ids", PROMPT_TOKENS);
    }
    let body = match given {
        [Some(messages), None, None] => chat(keys, messages)?,
        [None, Some(prompt), None] => completion(keys, prompt)?,
        [None, None, Some(input)] => of_input(keys, input)?,
        [None, None, None] => match keys.any(&OTHER_APIS) {
            Some(field) => return not_understood(field, "ask for each prompt with prompt_tokens"),
            None => Body::default(),
        },
        [Some(_), ..] => {
            return not_understood(
                "messages",
                "it came together with prompt or input; send only one of them",
            );
        }
        [None, ..] => return not_understood("prompt", "it came together with input; send only one of them"),
    };
    let stops = ["stop", "stop_sequences"].into_iter().filter_map(|key| keys.get(key));
    Ok(Body {
        model: keys.text("model")?,
        priority: keys.number("priority", i64::MIN, "a whole number")?,
        has_stop: stops.into_iter().any(|stop| !matches!(stop.get(), "\"\"" | "[]")),
        ..body
    })
}

/// What completions and chat completions have in common.
fn generated<'a>(keys: &Keys<'a>, input: Input<'a>, max_tokens: Option<u64>) -> Result<Body<'a>, BodyError> {
    let n = keys.number("n", 1, "a whole number of at least 1")?;
    Ok(Body { n, max_tokens, ..tokenized(keys, input)? })
}

/// How a prompt becomes tokens, in all but responses.
fn tokenized<'a>(keys: &Keys<'a>, input: Input<'a>) -> Result<Body<'a>, BodyError> {
    let add_special_tokens = keys.flag("add_special_tokens")?;
    Ok(Body { input, add_special_tokens, cut: cut(keys)?, ..Body::default() })
}

fn completion<'a>(keys: &Keys<'a>, prompt: &'a RawValue) -> Result<Body<'a>, BodyError> {
    let max_tokens = keys.limit("max_tokens")?.or(Some(COMPLETION_TOKENS));
    generated(keys, prompts("prompt", list("prompt", prompt)?)?, max_tokens)
}

fn chat<'a>(keys: &Keys<'a>, messages: &'a RawValue) -> Result<Body<'a>, BodyError> {
    let mut input = chats("messages", list("messages", messages)?)?;
    let mut chat = chat_options(keys)?;
    let tools = chat.tools.map_or("", RawValue::get);
    if keys.any(&ANTHROPIC).is_some() || tools.contains("\"input_schema\"") {
        chat.foreign = keys.any(&["tools", "thinking", "output_config"]).is_some();
        if let (Some(system), Input::Chat(messages)) = (keys.get("system"), &mut input) {
            messages.splice(0..0, self::system(system)?);
        }
    }
    let pooling = keys.any(&POOLING).is_some() && keys.any(&GENERATED).is_none();
    let limit = keys.limit("max_completion_tokens")?;
    let limit = if limit.is_some() { limit } else { keys.limit("max_tokens")? };
    let body = Body { chat, ..generated(keys, input, limit)? };
    if pooling { pooled(keys, body) } else { Ok(body) }
}

/// `input` is that of responses or of embeddings; a text, or messages, may be either.
fn of_input<'a>(keys: &Keys<'a>, input: &'a RawValue) -> Result<Body<'a>, BodyError> {
    let ambiguous = keys.any(&RESPONSES).is_none();
    let pooling = ambiguous && keys.any(&POOLING).or(keys.any(&TOKENIZED)).is_some();
    let body = match list("input", input)? {
        List::Texts(texts) if !pooling && input.get().starts_with('"') => {
            let user = texts.into_iter().map(|text| Message::new("user", Content::Text(text)));
            return responses(keys, user.collect(), ambiguous);
        }
        List::Objects(items) if !pooling => {
            return responses(keys, items.into_iter().map(item).collect(), ambiguous);
        }
        list @ (List::Objects(_) | List::Chats(_)) => {
            Body { chat: chat_options(keys)?, ..tokenized(keys, chats("input", list)?)? }
        }
        list => tokenized(keys, prompts("input", list)?)?,
    };
    pooled(keys, body)
}

/// Of embeddings, classes and what else a pooler makes nothing is generated.
fn pooled<'a>(keys: &Keys<'a>, body: Body<'a>) -> Result<Body<'a>, BodyError> {
    if keys.get("padding").is_some_and(|padding| padding.get() != "\"do_not_pad\"") {
        let instead = "each prompt is as long as the window: ask with prompt_tokens";
        return Err(BodyError::NotUnderstood { field: "padding", instead });
    }
    let chat = ChatOptions {
        tools: None,
        documents: None,
        reasoning_effort: None,
        add_generation_prompt: Some(body.chat.add_generation_prompt.unwrap_or(false)),
        ..body.chat
    };
    Ok(Body { n: None, max_tokens: Some(0), chat, ..body })
}

fn responses<'a>(keys: &Keys<'a>, input: Vec<Message<'a>>, ambiguous: bool) -> Result<Body<'a>, BodyError> {
    let instructions = keys.text("instructions")?.filter(|text| !text.is_empty());
    let instructions = instructions.map(|text| Message::new("system", Content::Text(text)));
    let chat = ChatOptions {
        tools: keys.get("tools"),
        kwargs: keys.get("chat_template_kwargs"),
        foreign: keys.any(&["tools", "reasoning"]).is_some(),
        ..ChatOptions::default()
    };
    let keeps_all = !keys.truncation_is_null
        && keys.get("truncation").is_none_or(|truncation| truncation.get() == "\"disabled\"");
    Ok(Body {
        input: Input::Chat(instructions.into_iter().chain(input).collect()),
        max_tokens: keys.limit("max_output_tokens")?,
        chat,
        // Unlike a chat completion's, its rendered text gets special tokens (`TokenizeParams`).
        add_special_tokens: Some(true),
        cut: (!keeps_all).then_some(TextSize::WINDOW),
        ambiguous,
        ..Body::default()
    })
}

fn chat_options<'a>(keys: &Keys<'a>) -> Result<ChatOptions<'a>, BodyError> {
    Ok(ChatOptions {
        tools: keys.get("tools"),
        documents: keys.get("documents"),
        kwargs: keys.get("chat_template_kwargs"),
        add_generation_prompt: keys.flag("add_generation_prompt")?,
        continue_final_message: keys.flag("continue_final_message")?.unwrap_or(false),
        reasoning_effort: keys.get("reasoning_effort"),
        foreign: false,
    })
}

/// `truncate_prompt_tokens`.
fn cut(keys: &Keys<'_>) -> Result<Option<Tokens>, BodyError> {
    let most: Option<i64> = keys.number("truncate_prompt_tokens", -1, "a whole number of at least -1")?;
    Ok(most.map(|most| u64::try_from(most).map_or(TextSize::WINDOW, Tokens)))
}

fn list<'a>(field: &'static str, raw: &'a RawValue) -> Result<List<'a>, BodyError> {
    let allowed = if field == "messages" { MESSAGES } else { PROMPTS };
    serde_json::from_str(raw.get()).map_err(|error| wrong(error, field, allowed))
}

fn prompts<'a>(field: &'static str, list: List<'a>) -> Result<Input<'a>, BodyError> {
    match list {
        List::Texts(texts) => Ok(Input::Texts(texts)),
        List::Ids(lengths) => Ok(Input::Ids(lengths)),
        List::Empty => Err(BodyError::NotUnderstood { field, instead: "there is no prompt in it" }),
        List::Objects(_) | List::Chats(_) => Err(BodyError::Field { field, allowed: PROMPTS }),
    }
}

fn chats<'a>(field: &'static str, list: List<'a>) -> Result<Input<'a>, BodyError> {
    match list {
        List::Objects(messages) => {
            let messages = messages.into_iter().map(|raw| serde_json::from_str(raw.get()));
            let messages: Result<_, _> = messages.collect();
            messages.map(Input::Chat).map_err(|error| wrong(error, field, MESSAGES))
        }
        List::Chats(chats) => Ok(Input::Chats(chats)),
        List::Empty => Ok(Input::Chat(Vec::new())),
        List::Texts(_) | List::Ids(_) => Err(BodyError::Field { field, allowed: MESSAGES }),
    }
}

/// An item of responses. What is not a message with a role, vLLM makes messages of its own of.
fn item(raw: &RawValue) -> Message<'_> {
    let message = serde_json::from_str::<Message<'_>>(raw.get()).ok();
    let message = message.filter(|message| !message.role.is_empty());
    message.unwrap_or_else(|| Message::new("", Content::Parts(vec![Part::Other(raw)])))
}

/// The system prompt of an Anthropic body: the texts of its blocks, put together (anthropic/serving.py).
fn system(raw: &RawValue) -> Result<Option<Message<'_>>, BodyError> {
    let wrong = |error| wrong(error, "system", "a string or a list of text blocks");
    let text = match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str::<Cow<'_, str>>(raw.get()).map_err(wrong)?,
        _ => {
            let Many(blocks) = serde_json::from_str::<Many<Part<'_>>>(raw.get()).map_err(wrong)?;
            let texts = blocks.iter().filter_map(|block| match block {
                Part::Text(text) if !text.starts_with(BILLING) => Some(&**text),
                _ => None,
            });
            Cow::Owned(texts.collect())
        }
    };
    Ok((!text.is_empty()).then(|| Message::new("system", Content::Text(text))))
}

/// Blocks that vLLM leaves out.
const BILLING: &str = "x-anthropic-billing-header";
