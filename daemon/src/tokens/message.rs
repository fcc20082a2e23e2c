//! A message of a chat: its role, its text, and what a chat template may also show of it.

use std::borrow::Cow;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::body::{Many, Text};

/// A message.
pub struct Message<'a> {
    /// `role`; empty where there is none.
    pub role: Cow<'a, str>,
    /// `content`.
    pub content: Content<'a>,
    /// Other keys that templates show, as they stand in the body.
    pub extra: Vec<(Extra, &'a RawValue)>,
}

/// A key that templates show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Calls that the model made.
    ToolCalls,
    /// Which of them a message answers.
    ToolCallId,
    /// Who speaks.
    Name,
    /// What the model thought.
    Reasoning,
}

impl Extra {
    fn of(key: &str) -> Option<Self> {
        Some(match key {
            "tool_calls" => Self::ToolCalls,
            "tool_call_id" => Self::ToolCallId,
            "name" => Self::Name,
            "reasoning" | "reasoning_content" => Self::Reasoning,
            _ => return None,
        })
    }
}

/// What a message says.
#[derive(Default)]
pub enum Content<'a> {
    /// Nothing.
    #[default]
    None,
    /// A text.
    Text(Cow<'a, str>),
    /// Several parts.
    Parts(Vec<Part<'a>>),
}

/// Types of parts whose data is no text.
const MEDIA: [&str; 10] = [
    "image_url",
    "input_image",
    "image",
    "image_pil",
    "image_embeds",
    "input_audio",
    "audio_url",
    "video_url",
    "input_file",
    "file",
];

/// A part of a message.
pub enum Part<'a> {
    /// Text.
    Text(Cow<'a, str>),
    /// An image, a sound, a film: its data is no text.
    Media,
    /// Anything else, as it stands in the body.
    Other(&'a RawValue),
}

impl<'a> Message<'a> {
    /// A message without anything else.
    pub fn new(role: &'static str, content: Content<'a>) -> Self {
        Self { role: Cow::Borrowed(role), content, extra: Vec::new() }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Message<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Message<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message<'de>, A::Error> {
                let mut message = Message::new("", Content::None);
                while let Some(Text(key)) = map.next_key()? {
                    match (&*key, Extra::of(&key)) {
                        ("role", _) => message.role = map.next_value::<Text<'de>>()?.0,
                        // The latter two: a tool's call and answer in the responses API.
                        ("content" | "output" | "arguments", _) => message.content = map.next_value()?,
                        (_, Some(extra)) => {
                            let value: &RawValue = map.next_value()?;
                            message.extra.retain(|(known, _)| *known != extra);
                            if value.get() != "null" {
                                message.extra.push((extra, value));
                            }
                        }
                        (_, None) => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(message)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text or parts")
            }

            fn visit_unit<E>(self) -> Result<Content<'de>, E> {
                Ok(Content::None)
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Content<'de>, E> {
                Ok(Content::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Content<'de>, E> {
                Ok(Content::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Content<'de>, A::Error> {
                let Many(parts) = Many::deserialize(serde::de::value::SeqAccessDeserializer::new(items))?;
                Ok(Content::Parts(parts))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Part<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The keys of a part that matter.
        #[derive(Default)]
        struct Keys<'b> {
            kind: Option<Text<'b>>,
            text: Option<Text<'b>>,
        }
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Keys<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a part of a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys<'de>, A::Error> {
                let mut keys = Keys::default();
                while let Some(Text(key)) = map.next_key()? {
                    match &*key {
                        "type" => keys.kind = map.next_value()?,
                        "text" | "refusal" | "thinking" => keys.text = map.next_value()?,
                        _ => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(keys)
            }
        }
        let raw = <&'a RawValue>::deserialize(deserializer)?;
        // A part may be a bare text.
        if raw.get().starts_with('"') {
            let text: Option<Text<'a>> = serde_json::from_str(raw.get()).ok();
            return Ok(text.map_or(Self::Other(raw), |text| Self::Text(text.0)));
        }
        let mut reader = serde_json::Deserializer::from_str(raw.get());
        let Ok(keys) = reader.deserialize_map(Reader) else { return Ok(Self::Other(raw)) };
        let kind = keys.kind.as_ref().map_or("", |kind| &*kind.0);
        Ok(match (kind, keys.text) {
            (_, Some(text)) => Self::Text(text.0),
            (kind, None) if MEDIA.contains(&kind) => Self::Media,
            _ => Self::Other(raw),
        })
    }
}
