//! A Hugging Face `config.json`, read with bounds. Numbers come from a file that anybody may have written.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::PlanError;

/// Largest config.json read.
const MAX_BYTES: u64 = 4 << 20;
/// Largest number taken from one: products of a few of them stay far within 128 bits.
pub(crate) const MAX_NUMBER: u64 = 1 << 32;
/// Where models of several kinds of input keep the configuration of their language model.
const LANGUAGE_MODEL: [&str; 4] = ["text_config", "llm_config", "language_config", "thinker_config"];

/// The configuration of a language model.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    map: Map<String, Value>,
    /// What stands outside the language model's own part, such as the quantization.
    outer: Map<String, Value>,
}

impl Config {
    /// Reads `path`, or `config.json` in it.
    pub(crate) fn read(path: &Path) -> Result<Self, PlanError> {
        let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let read = |source| PlanError::Read { path: file.clone(), source };
        let mut text = Vec::new();
        File::open(&file).map_err(read)?.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(read)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(malformed(&file, format!("it is larger than {MAX_BYTES} bytes")));
        }
        Self::parse(&text).map_err(|why| malformed(&file, why))
    }

    /// From the text of a config.json; what is wrong with it otherwise.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let Value::Object(outer) = value else { return Err("it is no JSON object".into()) };
        let mut map = outer.clone();
        // Qwen-Omni has its language model two levels down.
        for _ in 0..2 {
            let inner = LANGUAGE_MODEL.iter().find_map(|key| map.get(*key)?.as_object().cloned());
            map = inner.unwrap_or(map);
        }
        Ok(Self { map, outer })
    }

    /// A count, 1 to [`MAX_NUMBER`]. Absent, null and zero are none.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>, PlanError> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(0) => Ok(None),
                Some(number) if number <= MAX_NUMBER => Ok(Some(number)),
                _ => Err(wrong(key, value, "a whole number of 0 to 4294967296")),
            },
        }
    }

    /// The first of several spellings of a count that is there.
    pub(crate) fn any_count(&self, keys: &[&str]) -> Result<Option<u64>, PlanError> {
        keys.iter().find_map(|key| self.count(key).transpose()).transpose()
    }

    /// A count that must be there, in any of its spellings.
    pub(crate) fn needed(&self, keys: &[&'static str], needed_for: &'static str) -> Result<u64, PlanError> {
        let key = keys.first().copied().unwrap_or_default();
        self.any_count(keys)?.ok_or(PlanError::Absent { key, needed_for })
    }

    /// A truth value; `None` where it is absent.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.map.get(key)?.as_bool()
    }

    /// A word, also from outside the language model's part; empty where it is absent.
    pub(crate) fn word(&self, key: &str) -> &str {
        let find = |map: &'_ Map<String, Value>| map.get(key).and_then(Value::as_str).map(str::len);
        let map = if find(&self.map).is_some() { &self.map } else { &self.outer };
        map.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// A list; `None` where it is absent or empty.
    pub(crate) fn list(&self, key: &str) -> Option<&[Value]> {
        self.map.get(key)?.as_array().map(Vec::as_slice).filter(|list| !list.is_empty())
    }

    /// The table that says how the weights are quantized.
    pub(crate) fn quantization(&self) -> Option<&Map<String, Value>> {
        let find = |map: &'_ Map<String, Value>| map.contains_key("quantization_config");
        let map = if find(&self.map) { &self.map } else { &self.outer };
        map.get("quantization_config")?.as_object()
    }
}

/// A value that a key cannot have.
pub(crate) fn wrong(key: &str, value: &Value, allowed: &'static str) -> PlanError {
    let text: String = value.to_string().chars().take(40).collect();
    PlanError::OutOfRange { key: key.into(), value: text, allowed }
}

fn malformed(path: &Path, why: String) -> PlanError {
    PlanError::Malformed { path: PathBuf::from(path), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_model_of_a_multimodal_one_counts() {
        let text = br#"{"model_type":"gemma3","text_config":{"num_hidden_layers":34},"vision_config":{"num_hidden_layers":27}}"#;
        let config = Config::parse(text).unwrap();
        assert_eq!(config.count("num_hidden_layers").unwrap(), Some(34));
    }

    #[test]
    fn absurd_numbers_are_refused_by_name() {
        for value in ["-1", "1.5", "\"8\"", "18446744073709551615", "[]"] {
            let config = Config::parse(format!("{{\"head_dim\":{value}}}").as_bytes()).unwrap();
            let error = config.count("head_dim").unwrap_err().to_string();
            assert!(error.starts_with("config.json: head_dim: "), "{error}");
        }
        assert!(Config::parse(b"[]").is_err());
        assert!(Config::parse(b"{").is_err());
    }

    #[test]
    fn null_and_absent_are_alike() {
        let config = Config::parse(br#"{"sliding_window":null}"#).unwrap();
        assert_eq!(config.count("sliding_window").unwrap(), None);
        assert!(config.needed(&["num_hidden_layers"], "anything").is_err());
    }
}
