//! A Hugging Face `config.json`, read with bounds: anybody may have written its numbers. Keys are asked for by one name;
//! the model's family says how that family spells them.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{PlanError, families::Family};

/// Largest JSON file read, bytes.
const MAX_BYTES: u64 = 4 << 20;
/// Largest number taken from one: products of a few of them stay far within 128 bits.
pub(crate) const MAX_NUMBER: u64 = 1 << 32;
/// Where models of several kinds of input keep the configuration of their language model.
const LANGUAGE_MODEL: [&str; 4] = ["text_config", "llm_config", "language_config", "thinker_config"];
/// Keys of parts beside the language model.
const OTHER_PARTS: [&str; 2] = ["vision_config", "audio_config"];

/// The configuration of a language model.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    map: Map<String, Value>,
    /// What stands outside the language model's own part, such as the quantization.
    outer: Map<String, Value>,
    /// Whether the model has parts beside the language model.
    other_parts: bool,
    family: &'static Family,
}

impl Config {
    /// Reads `path`, or `config.json` in it.
    pub(crate) fn read(path: &Path) -> Result<Self, PlanError> {
        let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let Value::Object(outer) = json(&file)? else {
            return Err(PlanError::Malformed { path: file, why: "it is no JSON object".into() });
        };
        Self::of(outer)
    }

    /// From the keys of a config.json. Its model must be of a family that is known.
    pub(crate) fn of(outer: Map<String, Value>) -> Result<Self, PlanError> {
        let mut map = outer.clone();
        let mut nested = false;
        // Qwen-Omni has its language model two levels down.
        for _ in 0..2 {
            let inner = LANGUAGE_MODEL.iter().find_map(|key| map.get(*key)?.as_object().cloned());
            nested |= inner.is_some();
            map = inner.unwrap_or(map);
        }
        let family = Family::of(&map, &outer, nested)?;
        let other_parts = nested || OTHER_PARTS.iter().any(|key| outer.contains_key(*key));
        Ok(Self { map, outer, other_parts, family })
    }

    /// The family of the model.
    pub(crate) const fn family(&self) -> &'static Family {
        self.family
    }

    /// Whether the model has parts beside the language model.
    pub(crate) const fn has_other_parts(&self) -> bool {
        self.other_parts
    }

    /// What stands under `key`, or under the family's name for it. `a.b` is `b` in the table `a`. Null is absent.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        let own = self.family.spelled.iter().find(|(known, _)| *known == key);
        let found = own.and_then(|(_, own)| at(&self.map, own)).or_else(|| at(&self.map, key));
        found.filter(|value| !value.is_null())
    }

    /// A count, up to [`MAX_NUMBER`]; where the key is absent, what vLLM takes for this family. Null and zero are none.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>, PlanError> {
        let Some(value) = self.value(key) else {
            let is_null = at(&self.map, key).is_some();
            let default = self.family.defaults.iter().find(|(known, _)| *known == key);
            return Ok(default.filter(|_| !is_null).map(|(_, number)| *number));
        };
        match value.as_u64() {
            Some(0) => Ok(None),
            Some(number) if number <= MAX_NUMBER => Ok(Some(number)),
            _ => Err(wrong(self.name(key), value, "a whole number of 0 to 4294967296")),
        }
    }

    /// A count that must be there.
    pub(crate) fn needed(&self, key: &'static str, needed_for: &'static str) -> Result<u64, PlanError> {
        self.count(key)?.ok_or(PlanError::Absent { key: self.name(key).to_owned(), needed_for })
    }

    /// A count, or the largest of a list of them.
    pub(crate) fn largest(&self, key: &str) -> Result<Option<u64>, PlanError> {
        let Some(list) = self.list(key) else { return self.count(key) };
        Ok(list.iter().filter_map(Value::as_u64).max().filter(|number| (1..=MAX_NUMBER).contains(number)))
    }

    /// A truth value; where the key is absent, what vLLM takes for this family (1 is true).
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        let default = || self.family.defaults.iter().find(|(known, _)| *known == key);
        self.value(key).map_or_else(|| default().map(|(_, number)| *number == 1), Value::as_bool)
    }

    /// A word, also from outside the language model's part; empty where it is absent.
    pub(crate) fn word(&self, key: &str) -> &str {
        let outside = || at(&self.outer, key);
        self.value(key).or_else(outside).and_then(Value::as_str).unwrap_or_default()
    }

    /// A list; `None` where it is absent or empty.
    pub(crate) fn list(&self, key: &str) -> Option<&[Value]> {
        self.value(key)?.as_array().map(Vec::as_slice).filter(|list| !list.is_empty())
    }

    /// The family's name for a key.
    pub(crate) fn name<'a>(&'a self, key: &'a str) -> &'a str {
        let own = self.family.spelled.iter().find(|(known, _)| *known == key);
        own.filter(|_| at(&self.map, key).is_none()).map_or(key, |(_, own)| own)
    }

    /// The table that says how the weights are quantized.
    pub(crate) fn quantization(&self) -> Option<&Map<String, Value>> {
        let table = |map: &'_ Map<String, Value>| map.contains_key("quantization_config");
        let map = if table(&self.map) { &self.map } else { &self.outer };
        map.get("quantization_config")?.as_object()
    }
}

/// A JSON file of at most [`MAX_BYTES`].
pub(crate) fn json(file: &Path) -> Result<Value, PlanError> {
    let read = |source| PlanError::Read { path: file.to_owned(), source };
    let malformed = |why| PlanError::Malformed { path: PathBuf::from(file), why };
    let mut text = Vec::new();
    File::open(file).map_err(read)?.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(read)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(malformed(format!("it is larger than {MAX_BYTES} bytes")));
    }
    serde_json::from_slice(&without_numbers_of_python(&text)).map_err(|error| malformed(error.to_string()))
}

/// `text` with null for `NaN` and `Infinity`, which Python's json reads and writes: Mamba 2 checkpoints have them.
fn without_numbers_of_python(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut quoted) = (Vec::with_capacity(text.len()), text, false);
    while let Some((&byte, after)) = rest.split_first() {
        let word = [&b"-Infinity"[..], b"Infinity", b"NaN"].into_iter().find(|word| rest.starts_with(word));
        match word.filter(|_| !quoted) {
            Some(word) => {
                out.extend(b"null");
                rest = rest.get(word.len()..).unwrap_or_default();
                continue;
            }
            None if quoted && byte == b'\\' => {
                out.push(byte);
                out.extend(after.first());
                rest = after.get(1..).unwrap_or_default();
                continue;
            }
            None => quoted ^= byte == b'"',
        }
        out.push(byte);
        rest = after;
    }
    out
}

fn at<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        Some((table, rest)) => at(map.get(table)?.as_object()?, rest),
        None => map.get(key),
    }
}

/// A value that a key cannot have.
pub(crate) fn wrong(key: &str, value: &Value, allowed: &'static str) -> PlanError {
    let text: String = value.to_string().chars().take(40).collect();
    PlanError::OutOfRange { key: key.into(), value: text, allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::of(serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn numbers_that_only_python_writes_are_read_as_null() {
        let text = br#"{"a":[0.0, Infinity],"b":-Infinity,"c":NaN,"d":"NaN \" Infinity"}"#;
        let json: Value = serde_json::from_slice(&without_numbers_of_python(text)).unwrap();
        assert_eq!(json.to_string(), r#"{"a":[0.0,null],"b":null,"c":null,"d":"NaN \" Infinity"}"#);
    }

    #[test]
    fn the_language_model_of_a_multimodal_one_counts() {
        let text = r#"{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","num_hidden_layers":34},
            "vision_config":{"num_hidden_layers":27}}"#;
        assert_eq!(config(text).count("num_hidden_layers").unwrap(), Some(34));
    }

    #[test]
    fn absurd_numbers_are_refused_by_name() {
        for value in ["-1", "1.5", "\"8\"", "18446744073709551615", "[]"] {
            let config = config(&format!("{{\"model_type\":\"llama\",\"head_dim\":{value}}}"));
            let error = config.count("head_dim").unwrap_err().to_string();
            assert!(error.starts_with("config.json: head_dim: "), "{error}");
        }
    }

    #[test]
    fn a_default_holds_where_a_key_is_absent_and_not_where_it_is_null() {
        let window = |text: &str| config(text).count("sliding_window").unwrap();
        assert_eq!(window(r#"{"model_type":"mistral"}"#), Some(4096));
        assert_eq!(window(r#"{"model_type":"mistral","sliding_window":null}"#), None);
    }

    #[test]
    fn a_family_spells_keys_in_its_own_way() {
        let gpt2 = config(r#"{"model_type":"gpt2","n_head":12}"#);
        assert_eq!(gpt2.count("num_attention_heads").unwrap(), Some(12));
        let dbrx = config(r#"{"model_type":"dbrx","attn_config":{"kv_n_heads":8}}"#);
        assert_eq!(dbrx.count("num_key_value_heads").unwrap(), Some(8));
        let error = dbrx.needed("num_hidden_layers", "anything").unwrap_err().to_string();
        assert!(error.contains("n_layers is absent"), "{error}");
    }
}
