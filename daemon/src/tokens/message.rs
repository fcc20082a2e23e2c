//! A message of a chat: its role, its text, and what a chat template may also show of it.

use std::borrow::Cow;

use gpuadmit_core::request::MAX_PROMPTS;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// Most messages of a chat, prompts of a request, or parts of a message.
pub const MAX_ITEMS: usize = MAX_PROMPTS as usize;
/// What the reader says of a list that is longer.
pub(super) const TOO_MANY: &str = "too many items";

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
    /// What vLLM hands on and few templates show; it is not rendered here.
    Other,
}

impl Extra {
    fn of(key: &str) -> Option<Self> {
        Some(match key {
            "tool_calls" => Self::ToolCalls,
            "tool_call_id" => Self::ToolCallId,
            "name" => Self::Name,
            "reasoning" | "reasoning_content" => Self::Reasoning,
            "tools" | "task" => Self::Other,
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

/// Types of parts that are a text.
const TEXTS: [&str; 4] = ["text", "input_text", "output_text", "refusal"];

/// Types of parts whose data is no text. A part without a type may have one of them as a key.
const MEDIA: [&str; 12] = [
    "image_url",
    "input_image",
    "image",
    "image_pil",
    "image_embeds",
    "input_audio",
    "audio_url",
    "audio_embeds",
    "video_url",
    "video_embeds",
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

    /// Whether something in it is not known to be shown as it stands here.
    pub fn is_foreign(&self) -> bool {
        let foreign = |part: &Part<'_>| matches!(part, Part::Other(_));
        matches!(&self.content, Content::Parts(parts) if parts.iter().any(foreign))
            || self.extra.iter().any(|(key, _)| *key == Extra::Other)
    }
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
                        ("content", _) => message.content = map.next_value()?,
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
            media: bool,
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
                        "text" | "refusal" => keys.text = map.next_value()?,
                        other => {
                            keys.media |= MEDIA.contains(&other);
                            map.next_value::<IgnoredAny>()?;
                        }
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
        let media = keys.kind.as_ref().map_or(keys.media, |kind| MEDIA.contains(&&*kind.0));
        let texts = keys.kind.as_ref().is_none_or(|kind| TEXTS.contains(&&*kind.0));
        Ok(match keys.text {
            _ if media => Self::Media,
            Some(text) if texts => Self::Text(text.0),
            _ => Self::Other(raw),
        })
    }
}
