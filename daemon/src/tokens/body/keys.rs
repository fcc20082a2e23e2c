//! The keys of a body that tell what it asks for. Each value is kept as it stands until it is known which API is meant.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{super::message::Text, BodyError, lax};

/// Keys that are read. All others are skipped.
const READ: [&str; 54] = [
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "data",
    "data_1",
    "dimensions",
    "documents",
    "embed_dtype",
    "encoding_format",
    "endianness",
    "images",
    "input",
    "inputs",
    "instructions",
    "items",
    "kv_transfer_params",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "messages",
    "model",
    "n",
    "output_config",
    "padding",
    "previous_input_messages",
    "previous_response_id",
    "priority",
    "prompt",
    "prompt_embeds",
    "queries",
    "query",
    "reasoning",
    "reasoning_effort",
    "stop",
    "stop_sequences",
    "store",
    "stream",
    "suffix",
    "system",
    "task",
    "temperature",
    "text",
    "text_1",
    "texts",
    "thinking",
    "token_ids",
    "tokens",
    "tools",
    "truncate_prompt_tokens",
    "truncation",
    "truncation_side",
    "use_activation",
];

/// Values by key. One that is null is absent, and of a key given twice the last counts, as in the engine's own reader.
pub(super) struct Keys<'a> {
    values: BTreeMap<&'static str, &'a RawValue>,
    /// `truncation` is there and null, which is not the same as absent.
    pub(super) truncation_is_null: bool,
}

impl<'a> Keys<'a> {
    pub(super) fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.values.get(key).copied()
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The first of `keys` that is there.
    pub(super) fn any(&self, keys: &[&'static str]) -> Option<&'static str> {
        keys.iter().find(|key| self.has(key)).copied()
    }

    /// A whole number of at least `least`.
    pub(super) fn number<T: TryFrom<i64>>(
        &self,
        field: &'static str,
        least: i64,
        allowed: &'static str,
    ) -> Result<Option<T>, BodyError> {
        let read = |raw| {
            let number = lax::integer(raw).filter(|number| *number >= least)?;
            T::try_from(number).ok()
        };
        let number = self.get(field).map(|raw| read(raw).ok_or(BodyError::Field { field, allowed }));
        number.transpose()
    }

    /// A limit of output tokens.
    pub(super) fn limit(&self, field: &'static str) -> Result<Option<u64>, BodyError> {
        self.number(field, 0, "a whole number of at least 0")
    }

    pub(super) fn flag(&self, field: &'static str) -> Result<Option<bool>, BodyError> {
        let wrong = BodyError::Field { field, allowed: "true or false" };
        self.get(field).map(|raw| lax::flag(raw).ok_or(wrong)).transpose()
    }

    pub(super) fn text(&self, field: &'static str) -> Result<Option<Cow<'a, str>>, BodyError> {
        let wrong = BodyError::Field { field, allowed: "a string" };
        let text = |raw: &'a RawValue| serde_json::from_str::<Text<'a>>(raw.get()).map(|text| text.0);
        self.get(field).map(|raw| text(raw).map_err(|_| wrong)).transpose()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Keys<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Keys<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys<'de>, A::Error> {
                let mut keys = Keys { values: BTreeMap::new(), truncation_is_null: false };
                while let Some(Text(key)) = map.next_key()? {
                    let Some(key) = READ.into_iter().find(|known| *known == key) else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    let value: &RawValue = map.next_value()?;
                    let null = value.get() == "null";
                    if key == "truncation" {
                        keys.truncation_is_null = null;
                    }
                    if null {
                        keys.values.remove(key);
                    } else {
                        keys.values.insert(key, value);
                    }
                }
                Ok(keys)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}
