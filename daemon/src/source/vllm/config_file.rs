//! The file of `--config`: YAML, as PyYAML reads it, made into words of a command line (vLLM 0.32,
//! utils/argparse_utils.py, `load_config_file`).

use std::{collections::BTreeMap, io::Read as _, path::Path};

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Value};

use crate::regular;

/// Largest file read, bytes.
const MAX_BYTES: u64 = 256 * 1024;
/// Deepest nesting.
const MAX_DEPTH: usize = 32;
/// Most values, those that aliases repeat included.
const MAX_VALUES: usize = 10_000;

/// Why a file tells nothing. None of its text is in here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Another name: vLLM refuses it as well.
    #[error("its name ends neither in .yaml nor in .yml")]
    Name,
    /// It cannot be opened or read.
    #[error("{0}")]
    Unreadable(String),
    /// Too large.
    #[error("it has more than {MAX_BYTES} bytes")]
    Size,
    /// Not a table of options in YAML, or more than is read.
    #[error("it is no YAML table of options, or has more than {MAX_VALUES} values or {MAX_DEPTH} levels")]
    Form,
}

/// Words of the file at `path`, to be put in front of those of the command line.
///
/// # Errors
/// [`ConfigError`].
pub fn read(path: &Path) -> Result<Vec<String>, ConfigError> {
    if !path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
        return Err(ConfigError::Name);
    }
    let unreadable = |error: std::io::Error| ConfigError::Unreadable(error.to_string());
    let mut text = String::new();
    let file = regular::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        return Err(ConfigError::Size);
    }
    words(&text)
}

fn words(text: &str) -> Result<Vec<String>, ConfigError> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: BTreeMap::new(), values: 0 };
    let mut words = vec![];
    let Some(Value::Object(options)) = reader.document() else { return Err(ConfigError::Form) };
    for (key, value) in options {
        let option = format!("--{key}");
        match value {
            // Off is left out: `vllm serve` does not find the negation among the options of its main parser.
            Value::Bool(false) => {}
            Value::Bool(true) => words.push(option),
            Value::Array(items) if items.is_empty() => {}
            Value::Array(items) => {
                words.push(option);
                words.extend(items.iter().map(python_text));
            }
            other => words.extend([option, python_text(&other)]),
        }
    }
    Ok(words)
}

/// What Python's `str` makes of a scalar; a table as JSON.
fn python_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        other => other.to_string(),
    }
}

/// Builds values from a parser's events.
struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, Value>,
    values: usize,
}

impl<'a> Reader<'a> {
    /// The first document; `None` where it is no YAML, or breaks a bound.
    fn document(&mut self) -> Option<Value> {
        loop {
            match self.event()? {
                Event::StreamStart | Event::DocumentStart(_) => {}
                event => return self.value(event, 0),
            }
        }
    }

    fn event(&mut self) -> Option<Event<'a>> {
        Some(self.parser.next()?.ok()?.0)
    }

    /// The value that `event` begins.
    fn value(&mut self, event: Event<'a>, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        let (anchor, value) = match event {
            Event::Alias(anchor) => {
                // Counted before it is copied.
                self.count(size(self.anchors.get(&anchor)?))?;
                return self.anchors.get(&anchor).cloned();
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                (anchor, if plain { plain_scalar(&text) } else { Value::String(text.into_owned()) })
            }
            Event::SequenceStart(anchor, _) => (anchor, self.sequence(depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.mapping(depth)?),
            _ => return None,
        };
        // What it holds was counted already, but for the copy that its anchor keeps.
        self.count(if anchor > 0 { size(&value) } else { 1 })?;
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Some(value)
    }

    fn count(&mut self, values: usize) -> Option<()> {
        self.values = self.values.saturating_add(values);
        (self.values <= MAX_VALUES).then_some(())
    }

    fn sequence(&mut self, depth: usize) -> Option<Value> {
        let mut items = vec![];
        loop {
            match self.event()? {
                Event::SequenceEnd => return Some(Value::Array(items)),
                event => items.push(self.value(event, depth.saturating_add(1))?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Option<Value> {
        let mut entries = Map::new();
        loop {
            let key = match self.event()? {
                Event::MappingEnd => return Some(Value::Object(entries)),
                event => self.value(event, depth.saturating_add(1))?,
            };
            let event = self.event()?;
            entries.insert(python_text(&key), self.value(event, depth.saturating_add(1))?);
        }
    }
}

/// How many values a value holds, itself included.
fn size(value: &Value) -> usize {
    let held: usize = match value {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(entries) => entries.values().map(size).sum(),
        _ => 0,
    };
    held.saturating_add(1)
}

/// A scalar without quotes, by the rules of YAML 1.1 that PyYAML keeps to (resolver.py).
fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        _ => integer(text)
            .map(Value::from)
            .or_else(|| float(text).map(Value::from))
            .unwrap_or_else(|| Value::String(text.into())),
    }
}

/// `42`, `1_000`, `0x1F`, `0b11`, and octal with a leading zero.
fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (digits, base) = match digits.get(..2) {
        Some("0x") => (digits.get(2..)?, 16),
        Some("0b") => (digits.get(2..)?, 2),
        _ if digits.len() > 1 && digits.starts_with('0') => (digits.get(1..)?, 8),
        _ => (digits, 10),
    };
    if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), base).ok()
}

/// `0.9`, `.9`, `1.5e+3`; without a point, `1e3` is a text.
fn float(text: &str) -> Option<f64> {
    let (whole, rest) = text.trim_start_matches(['-', '+']).split_once('.')?;
    let exponent_has_sign =
        rest.split_once(['e', 'E']).is_none_or(|(_, power)| power.starts_with(['-', '+']));
    let begins = whole.is_empty() || whole.starts_with(|first: char| first.is_ascii_digit());
    (begins && exponent_has_sign).then(|| text.replace('_', "").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        words(text).unwrap().join("|")
    }

    #[test]
    fn a_file_becomes_the_words_that_vllm_makes_of_it() {
        for (text, expected) in [
            ("model: org/m\nport: 9001\n", "--model|org/m|--port|9001"),
            ("enable-lora: yes\nheadless: off\n", "--enable-lora"),
            ("enable-lora: 'yes'\n", "--enable-lora|yes"),
            ("served_model_name: [a, 1.0, 2]\nempty: []\n", "--served_model_name|a|1.0|2"),
            ("served-model-name:\n- a\n- &x b\n- *x\n", "--served-model-name|a|b|b"),
            ("port: 0x1F40\nmax-num-seqs: 1_000\nseed: 010\n", "--port|8000|--max-num-seqs|1000|--seed|8"),
            ("gpu-memory-utilization: .90\nhost: ~\n", "--gpu-memory-utilization|0.9|--host|None"),
            ("host: \"::\"\nuds: !!str 8\n", "--host|::|--uds|8"),
            (
                "kv-transfer-config: {a: {b: true}, c: [1]}\n",
                r#"--kv-transfer-config|{"a":{"b":true},"c":[1]}"#,
            ),
            ("# nothing but\n---\nport: 1e3\n", "--port|1e3"),
            ("max-model-len: 8k # context\n", "--max-model-len|8k"),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_table_or_too_much_is_refused() {
        let nested = format!("a: {}{}", "[".repeat(40), "]".repeat(40));
        let laughs = (1..12).fold("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, n| {
            let before = format!("*a{}", n - 1);
            format!("{text}a{n}: &a{n} [{}]\n", vec![before; 10].join(","))
        });
        for text in ["", "- a", "text", "a: [", "a: *none", "\t", &nested, &laughs, "a: \"\u{0}"] {
            assert_eq!(words(text), Err(ConfigError::Form), "{text:.40}");
        }
    }

    #[test]
    fn only_a_small_regular_yaml_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        assert_eq!(read(&file("a.yml", "port: 1")), Ok(vec!["--port".into(), "1".into()]));
        assert_eq!(read(&file("a.json", "port: 1")), Err(ConfigError::Name));
        let long = format!("a: {}", "x".repeat(usize::try_from(MAX_BYTES).unwrap()));
        assert_eq!(read(&file("b.yaml", &long)), Err(ConfigError::Size));
        assert!(matches!(read(&folder.path().join("none.yaml")), Err(ConfigError::Unreadable(_))));
        let pipe = folder.path().join("pipe.yaml");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(read(&pipe), Err(ConfigError::Unreadable(_))));
    }
}
