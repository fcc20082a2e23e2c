//! `prompt`, `input` or `messages`: a text, or a list whose items say what it is.
//!
//! vLLM takes a list of strings for texts even where each is a number; beside a number, such strings are token ids, as
//! pydantic's smart unions have it.

use std::borrow::Cow;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    super::message::{Many, Message, TOO_MANY, Text},
    lax,
};
use crate::tokens::message::MAX_ITEMS;

/// What a list holds.
pub(super) enum List<'a> {
    /// Prompts.
    Texts(Vec<Cow<'a, str>>),
    /// Prompts as token ids: the length of each.
    Ids(Vec<u64>),
    /// Objects: the messages of a chat, or items.
    Objects(Vec<&'a RawValue>),
    /// Chats.
    Chats(Vec<Vec<Message<'a>>>),
    /// Nothing.
    Empty,
}

/// One item.
enum Item<'a> {
    Text(Cow<'a, str>),
    Id,
    Ids(u64),
    Object(&'a RawValue),
    Chat(Vec<Message<'a>>),
}

impl<'a> List<'a> {
    /// Of a single text.
    pub(super) fn one(text: Cow<'a, str>) -> Self {
        Self::Texts(vec![text])
    }

    /// Adds an item. `None`: it does not go with those before.
    fn with(self, item: Item<'a>) -> Option<Self> {
        Some(match (self, item) {
            (Self::Empty, Item::Text(text)) => Self::one(text),
            (Self::Texts(mut texts), Item::Text(text)) => {
                texts.push(text);
                Self::Texts(texts)
            }
            (Self::Empty, Item::Ids(length)) => Self::Ids(vec![length]),
            (Self::Ids(mut lengths), Item::Ids(length)) => {
                lengths.push(length);
                Self::Ids(lengths)
            }
            (Self::Empty, Item::Object(raw)) => Self::Objects(vec![raw]),
            (Self::Objects(mut objects), Item::Object(raw)) => {
                objects.push(raw);
                Self::Objects(objects)
            }
            (Self::Empty, Item::Chat(messages)) => Self::Chats(vec![messages]),
            (Self::Chats(mut chats), Item::Chat(messages)) => {
                chats.push(messages);
                Self::Chats(chats)
            }
            _ => return None,
        })
    }

    fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Ids(lengths) => lengths.len(),
            Self::Objects(objects) => objects.len(),
            Self::Chats(chats) => chats.len(),
            Self::Empty => 0,
        }
    }
}

impl<'a> Item<'a> {
    fn read<E: serde::de::Error>(raw: &'a RawValue) -> Result<Self, E> {
        let wrong = |error: serde_json::Error| {
            E::custom(if error.to_string().contains(TOO_MANY) { TOO_MANY } else { "an item" })
        };
        let text = raw.get();
        Ok(match text.as_bytes().first() {
            Some(b'"') => Self::Text(serde_json::from_str::<Text<'a>>(text).map_err(wrong)?.0),
            Some(b'{') => Self::Object(raw),
            Some(b'[') if text.get(1..).is_some_and(|rest| rest.trim_start().starts_with('{')) => {
                Self::Chat(serde_json::from_str::<Many<Message<'a>>>(text).map_err(wrong)?.0)
            }
            Some(b'[') => Self::Ids(serde_json::from_str::<Ids>(text).map_err(wrong)?.0),
            _ if lax::integer(raw).is_some() => Self::Id,
            _ => return Err(E::custom("an item")),
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for List<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = List<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text, texts, token ids, or messages")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<List<'de>, E> {
                Ok(List::one(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<List<'de>, E> {
                Ok(List::one(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<List<'de>, A::Error> {
                let (mut list, mut ids) = (List::Empty, 0_u64);
                while let Some(raw) = items.next_element::<&RawValue>()? {
                    // A string may be a token id, when another item says so.
                    if ids > 0 && lax::integer(raw).is_some() {
                        ids += 1;
                        continue;
                    }
                    list = match Item::read(raw)? {
                        Item::Id => {
                            ids = 1 + ids_in(list).ok_or_else(|| A::Error::custom("an item"))?;
                            List::Empty
                        }
                        _ if ids > 0 => return Err(A::Error::custom("an item")),
                        _ if list.len() >= MAX_ITEMS => return Err(A::Error::custom(TOO_MANY)),
                        item => list.with(item).ok_or_else(|| A::Error::custom("an item"))?,
                    };
                }
                Ok(if ids > 0 { List::Ids(vec![ids]) } else { list })
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// How many token ids a list of strings is.
fn ids_in(list: List<'_>) -> Option<u64> {
    match list {
        List::Empty => Some(0),
        List::Texts(texts) if texts.iter().all(|text| lax::is_integer(text)) => {
            u64::try_from(texts.len()).ok()
        }
        _ => None,
    }
}

/// The length of a list of token ids.
struct Ids(u64);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = u64;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("token ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<u64, A::Error> {
                let mut ids = 0;
                while let Some(raw) = items.next_element::<&RawValue>()? {
                    lax::integer(raw).ok_or_else(|| A::Error::custom("a token id"))?;
                    ids += 1;
                }
                Ok(ids)
            }
        }
        deserializer.deserialize_seq(Reader).map(Self)
    }
}
