//! An OpenAI request body as far as admission goes: what it asks for, and its text.
//!
//! Bounds: a body is no longer than the server's message limit; what is not needed is skipped without recursion and
//! without being kept, whatever its depth; lists have a most. Of a key given twice the last counts, as in the engine's
//! own reader. Errors name a field or a place, never what stands there.

use std::borrow::Cow;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::message::{Content, Message};

/// Most messages of a chat, prompts of a batch, or parts of a message.
pub const MAX_ITEMS: usize = 4096;
/// What the reader says of a list that is longer.
const TOO_MANY: &str = "too many items";

/// A body.
#[derive(Default)]
pub struct Body<'a> {
    /// `model`.
    pub model: Option<Cow<'a, str>>,
    /// `max_completion_tokens`, else `max_tokens` or `max_output_tokens`.
    pub max_tokens: Option<u64>,
    /// `n`.
    pub n: Option<u32>,
    /// Whether stop sequences are set.
    pub has_stop: bool,
    /// `stream`.
    pub stream: bool,
    /// `priority`: lower is earlier.
    pub priority: Option<i64>,
    /// `user`.
    pub user: Option<Cow<'a, str>>,
    /// What is to be answered.
    pub input: Input<'a>,
    /// How a chat is rendered.
    pub chat: ChatOptions<'a>,
    /// `add_special_tokens`.
    pub add_special_tokens: Option<bool>,
    /// `truncate_prompt_tokens`; at most so many tokens of the prompt are kept.
    pub truncate: Option<u64>,
}

/// What is to be answered.
#[derive(Default)]
pub enum Input<'a> {
    /// Nothing that is understood.
    #[default]
    Nothing,
    /// Prompts of a completion, each with as many sequences as are asked for.
    Texts(Vec<Cow<'a, str>>),
    /// Prompts given as token ids: how many prompts, and tokens of all together.
    Ids {
        /// Prompts.
        prompts: u64,
        /// Tokens.
        tokens: u64,
    },
    /// Messages of a chat.
    Chat(Vec<Message<'a>>),
    /// Items of the responses API, as messages: the engine makes its own of them.
    Responses(Vec<Message<'a>>),
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
    /// Whether the body brings a template of its own.
    pub own_template: bool,
}

/// Why a body is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is no JSON object, or something in it has the wrong type.
    #[error("line {line}, column {column}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// A number is none, or out of its range.
    #[error("{field} is not allowed; {allowed}")]
    Field {
        /// Key.
        field: &'static str,
        /// What is.
        allowed: &'static str,
    },
    /// A list is longer than is read.
    #[error("a list is longer than {MAX_ITEMS} items")]
    TooMany,
}

impl<'a> Body<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// [`BodyError`]; [`BodyError::TooMany`] is no mistake of the caller, only beyond what is read.
    pub fn read(text: &'a [u8]) -> Result<Self, BodyError> {
        let Fields(fields) = serde_json::from_slice(text).map_err(|error| {
            // The message quotes what it found: it must go no further.
            match error.to_string().contains(TOO_MANY) {
                true => BodyError::TooMany,
                false => BodyError::Json { line: error.line(), column: error.column() },
            }
        })?;
        fields.try_into()
    }
}

/// The fields as they stand in the body.
#[derive(Default)]
struct Raw<'a> {
    body: Body<'a>,
    max_tokens: Option<&'a RawValue>,
    max_completion_tokens: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    stop: Option<&'a RawValue>,
    priority: Option<&'a RawValue>,
    truncate: Option<&'a RawValue>,
    prompt: Option<Prompts<'a>>,
    messages: Option<Vec<Message<'a>>>,
    input: Option<Items<'a>>,
    instructions: Option<Cow<'a, str>>,
}

struct Fields<'a>(Raw<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Raw<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<'de>, A::Error> {
                let mut raw = Raw::default();
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    field(&mut raw, &key.0, &mut map)?;
                }
                Ok(raw)
            }
        }
        deserializer.deserialize_map(Reader).map(Self)
    }
}

/// Takes in one field of a body.
fn field<'de, A: MapAccess<'de>>(raw: &mut Raw<'de>, key: &str, map: &mut A) -> Result<(), A::Error> {
    let body = &mut raw.body;
    match key {
        "model" => body.model = text(map)?,
        "user" => body.user = text(map)?,
        "max_tokens" | "max_output_tokens" => raw.max_tokens = map.next_value()?,
        "max_completion_tokens" => raw.max_completion_tokens = map.next_value()?,
        "n" => raw.n = map.next_value()?,
        "stop" => raw.stop = map.next_value()?,
        "priority" => raw.priority = map.next_value()?,
        "truncate_prompt_tokens" => raw.truncate = map.next_value()?,
        "stream" => body.stream = map.next_value::<Option<bool>>()?.unwrap_or(false),
        "prompt" => raw.prompt = map.next_value()?,
        "messages" => raw.messages = map.next_value::<Option<Many<Message<'_>>>>()?.map(|many| many.0),
        "input" => raw.input = map.next_value()?,
        "instructions" => raw.instructions = text(map)?,
        "tools" => body.chat.tools = map.next_value()?,
        "documents" => body.chat.documents = map.next_value()?,
        "chat_template_kwargs" => body.chat.kwargs = map.next_value()?,
        "add_generation_prompt" => body.chat.add_generation_prompt = map.next_value()?,
        "continue_final_message" => {
            body.chat.continue_final_message = map.next_value::<Option<bool>>()?.unwrap_or(false);
        }
        "reasoning_effort" => body.chat.reasoning_effort = map.next_value()?,
        "chat_template" => body.chat.own_template = map.next_value::<Option<IgnoredAny>>()?.is_some(),
        "add_special_tokens" => body.add_special_tokens = map.next_value()?,
        _ => _ = map.next_value::<IgnoredAny>()?,
    }
    Ok(())
}

fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Cow<'de, str>>, A::Error> {
    Ok(map.next_value::<Option<Text<'de>>>()?.map(|text| text.0))
}

impl<'a> TryFrom<Raw<'a>> for Body<'a> {
    type Error = BodyError;

    fn try_from(raw: Raw<'a>) -> Result<Self, BodyError> {
        let mut body = raw.body;
        let asked =
            number("max_completion_tokens", raw.max_completion_tokens, "a whole number of at least 1")?;
        let older = number("max_tokens", raw.max_tokens, "a whole number of at least 1")?;
        body.max_tokens = asked.or(older);
        body.n = number("n", raw.n, "a whole number")?;
        body.priority = number("priority", raw.priority, "a whole number")?;
        // -1: as many as the context window has.
        let truncate: Option<i64> =
            number("truncate_prompt_tokens", raw.truncate, "a whole number of at least -1")?;
        body.truncate = truncate.and_then(|most| u64::try_from(most).ok());
        body.has_stop = raw.stop.is_some_and(|stop| !matches!(stop.get(), "null" | "\"\"" | "[]"));
        body.input = match (raw.messages, raw.prompt, raw.input) {
            (Some(messages), ..) => Input::Chat(messages),
            (None, Some(prompts), _) => prompts.0,
            (None, None, Some(Items(items))) => {
                let instructions = raw.instructions.map(|text| Message::new("system", Content::Text(text)));
                Input::Responses(instructions.into_iter().chain(items).collect())
            }
            (None, None, None) => Input::Nothing,
        };
        Ok(body)
    }
}

fn number<'a, T: Deserialize<'a>>(
    field: &'static str,
    raw: Option<&'a RawValue>,
    allowed: &'static str,
) -> Result<Option<T>, BodyError> {
    let parsed = raw.map(|raw| serde_json::from_str::<Option<T>>(raw.get())).transpose();
    parsed.map(Option::flatten).map_err(|_| BodyError::Field { field, allowed })
}

/// A string, borrowed where it has no escapes.
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Borrowing<'b>(#[serde(borrow)] Cow<'b, str>);
        Borrowing::deserialize(deserializer).map(|Borrowing(text)| Self(text))
    }
}

/// A list of at most [`MAX_ITEMS`].
pub(super) struct Many<T>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
                let mut many = Vec::new();
                while let Some(item) = items.next_element()? {
                    if many.len() >= MAX_ITEMS {
                        return Err(A::Error::custom(TOO_MANY));
                    }
                    many.push(item);
                }
                Ok(many)
            }
        }
        deserializer.deserialize_seq(Reader(std::marker::PhantomData)).map(Self)
    }
}

/// `prompt`: a text, texts, token ids, or lists of token ids.
struct Prompts<'a>(Input<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Prompts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Input<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text, texts, or token ids")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Input<'de>, E> {
                Ok(Input::Texts(vec![Cow::Borrowed(text)]))
            }

            fn visit_str<E>(self, text: &str) -> Result<Input<'de>, E> {
                Ok(Input::Texts(vec![Cow::Owned(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Input<'de>, A::Error> {
                let (mut texts, mut single, mut prompts, mut tokens) = (vec![], 0u64, 0u64, 0u64);
                while let Some(item) = items.next_element::<Prompt<'de>>()? {
                    match item {
                        Prompt::Id => single += 1,
                        Prompt::Ids(ids) => {
                            prompts += 1;
                            tokens += ids;
                        }
                        Prompt::Text(text) if texts.len() < MAX_ITEMS => texts.push(text),
                        Prompt::Text(_) => return Err(A::Error::custom(TOO_MANY)),
                    }
                }
                Ok(match (texts.is_empty(), single) {
                    (false, _) => Input::Texts(texts),
                    (true, 0) => Input::Ids { prompts, tokens },
                    (true, _) => Input::Ids { prompts: prompts + 1, tokens: tokens + single },
                })
            }
        }
        deserializer.deserialize_any(Reader).map(Self)
    }
}

/// One item of a list of prompts.
enum Prompt<'a> {
    Text(Cow<'a, str>),
    Id,
    Ids(u64),
}

impl<'de: 'a, 'a> Deserialize<'de> for Prompt<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Prompt<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text, a token id, or token ids")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Prompt<'de>, E> {
                Ok(Prompt::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Prompt<'de>, E> {
                Ok(Prompt::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Prompt<'de>, E> {
                Ok(Prompt::Id)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompt<'de>, A::Error> {
                let mut ids = 0;
                while items.next_element::<u32>()?.is_some() {
                    ids += 1;
                }
                Ok(Prompt::Ids(ids))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// `input` of the responses API: a text, or items.
struct Items<'a>(Vec<Message<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        let wrong = |error: serde_json::Error| {
            D::Error::custom(if error.to_string().contains(TOO_MANY) { TOO_MANY } else { "input" })
        };
        if raw.get().starts_with('"') {
            let text: Text<'_> = serde_json::from_str(raw.get()).map_err(wrong)?;
            return Ok(Self(vec![Message::new("user", Content::Text(text.0))]));
        }
        let Many(items) = serde_json::from_str(raw.get()).map_err(wrong)?;
        Ok(Self(items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Body<'_> {
        Body::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn what_admission_needs_is_taken_and_all_else_skipped() {
        let body = read(
            r#"{"model":"m","prompt":"Hi\n\u00e9","max_tokens":7,"n":2,"stop":["\n"],"stream":true,"priority":-3,
            "user":"u","logit_bias":{"50256":-100},"nested":[[[{"a":[1,2,{"b":null}]}]]],"temperature":0.7}"#,
        );
        assert_eq!((body.model.as_deref(), body.max_tokens, body.n), (Some("m"), Some(7), Some(2)));
        assert_eq!(
            (body.has_stop, body.stream, body.priority, body.user.as_deref()),
            (true, true, Some(-3), Some("u"))
        );
        let Input::Texts(texts) = body.input else { panic!() };
        assert_eq!(texts, ["Hi\n\u{e9}"]);
    }

    #[test]
    fn of_two_spellings_the_newer_and_of_two_keys_the_last_counts() {
        assert_eq!(read(r#"{"max_completion_tokens":5,"max_tokens":9}"#).max_tokens, Some(5));
        assert_eq!(read(r#"{"max_completion_tokens":null,"max_tokens":9}"#).max_tokens, Some(9));
        assert_eq!(read(r#"{"max_tokens":9,"max_tokens":4}"#).max_tokens, Some(4));
        let Input::Texts(texts) = read(r#"{"prompt":"a","prompt":"b"}"#).input else { panic!() };
        assert_eq!(texts, ["b"]);
        for empty in [r#"{"stop":[]}"#, r#"{"stop":null}"#, r#"{"stop":""}"#, "{}"] {
            assert!(!read(empty).has_stop, "{empty}");
        }
    }

    #[test]
    fn prompts_come_as_texts_or_token_ids() {
        let ids = |json: &str| match read(json).input {
            Input::Ids { prompts, tokens } => (prompts, tokens),
            _ => panic!("{json}"),
        };
        assert_eq!(ids(r#"{"prompt":[1,2,3]}"#), (1, 3));
        assert_eq!(ids(r#"{"prompt":[[1,2],[3],[]]}"#), (3, 3));
        let Input::Texts(texts) = read(r#"{"prompt":["a","b"]}"#).input else { panic!() };
        assert_eq!(texts, ["a", "b"]);
        assert!(matches!(read(r#"{"prompt":null}"#).input, Input::Nothing));
    }

    #[test]
    fn messages_have_text_parts_media_and_calls() {
        let body = read(
            r#"{"messages":[{"role":"system","content":null},
            {"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}},"b",{"odd":1}]},
            {"role":"assistant","content":"","tool_calls":[{"id":"1"}],"refusal":null}],"tools":[{"type":"function"}]}"#,
        );
        let Input::Chat(messages) = &body.input else { panic!() };
        assert_eq!(messages.len(), 3);
        let Some(Content::Parts(parts)) = messages.get(1).map(|message| &message.content) else { panic!() };
        use super::super::message::Part;
        assert!(
            matches!(&parts[..], [Part::Text(a), Part::Media, Part::Text(b), Part::Other(_)] if a == "a" && b == "b")
        );
        assert_eq!(messages.last().map(|message| message.extra.len()), Some(1));
        assert_eq!(body.chat.tools.map(RawValue::get), Some(r#"[{"type":"function"}]"#));
    }

    #[test]
    fn the_responses_api_has_input_and_instructions() {
        let body = read(r#"{"input":"Hi","instructions":"Be brief.","max_output_tokens":8}"#);
        let Input::Responses(messages) = &body.input else { panic!() };
        assert_eq!((messages.len(), body.max_tokens), (2, Some(8)));
        let items = r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},
            {"type":"function_call_output","call_id":"1","output":"{}"}]}"#;
        assert!(matches!(read(items).input, Input::Responses(messages) if messages.len() == 2));
    }

    #[test]
    fn errors_tell_the_place_or_the_field_and_quote_nothing() {
        for (json, says) in [
            (r#"{"prompt":"secret""#, "line 1, column 18"),
            (r#"{"messages":"secret"}"#, "line 1, column 20"),
            (r#"{"stream":"secret"}"#, "line 1, column 18"),
            (r#"{"max_tokens":"secret"}"#, "max_tokens is not allowed; a whole number"),
            (r#"{"n":-1}"#, "n is not allowed; a whole number"),
            (r#"["secret"]"#, "line 1, column"),
            ("\u{0}", "line 1, column 1"),
            (r#"{"prompt":"\ud800"}"#, "line 1, column"),
        ] {
            let error = Body::read(json.as_bytes()).err().unwrap().to_string();
            assert!(error.contains(says) && !error.contains("secret"), "{says}: {error}");
        }
        assert!(Body::read(b"{\"prompt\":\"\xff\"}").is_err());
    }

    #[test]
    fn depth_costs_no_stack_and_length_has_a_bound() {
        let deep = format!("{{\"x\":{}{},\"prompt\":\"a\"}}", "[".repeat(500_000), "]".repeat(500_000));
        assert!(matches!(read(&deep).input, Input::Texts(_)));
        let deep_tools = format!("{{\"tools\":{}{}}}", "[".repeat(500_000), "]".repeat(500_000));
        assert!(read(&deep_tools).chat.tools.is_some());
        let deep_parts =
            format!("{{\"messages\":[{{\"content\":[{}{}]}}]}}", "[".repeat(500_000), "]".repeat(500_000));
        let _ = Body::read(deep_parts.as_bytes());
        let many = format!("{{\"messages\":[{}{{}}]}}", "{},".repeat(MAX_ITEMS));
        assert_eq!(Body::read(many.as_bytes()).err(), Some(BodyError::TooMany));
    }
}
