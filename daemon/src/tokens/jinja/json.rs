//! The filter `tojson` of transformers: `json.dumps`.

use minijinja::{Error, Value, value::Rest};

use super::{
    MAX_BYTES, MAX_DEPTH, too_long, unlike,
    value::{Kind, arguments, items, pairs, shown_float, text, text_of},
};

/// How JSON is laid out.
struct Layout {
    ascii: bool,
    indent: Option<usize>,
    between_items: String,
    after_key: String,
    sorted: bool,
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[expect(clippy::needless_pass_by_value, reason = "as minijinja hands it to a filter")]
pub(super) fn to_json(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [ascii, indent, separators, sorted] =
        arguments(&given, ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent.as_ref().map_or(Kind::None, Kind::of) {
        Kind::None => None,
        Kind::Int(indent @ 0..=1000) => usize::try_from(indent).ok(),
        _ => return Err(unlike()),
    };
    let separators = separators.filter(|separators| !separators.is_none()).as_ref().map(items).transpose()?;
    let (between_items, after_key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => (text_of(item)?.to_owned(), text_of(key)?.to_owned()),
        Some(_) => return Err(unlike()),
    };
    let is_true = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let layout = Layout { ascii: is_true(ascii), indent, between_items, after_key, sorted: is_true(sorted) };
    let mut to = String::new();
    layout.write(&mut to, value, 0)?;
    text(to)
}

impl Layout {
    fn write(&self, to: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH || to.len() > MAX_BYTES {
            return Err(too_long());
        }
        let inner = depth.saturating_add(1);
        match Kind::of(value) {
            Kind::None => to.push_str("null"),
            Kind::Bool(value) => to.push_str(if value { "true" } else { "false" }),
            Kind::Int(int) => to.push_str(&int.to_string()),
            Kind::Float(float) => to.push_str(&shown_float(float)?),
            Kind::Text(text) => self.quote(to, text),
            Kind::List | Kind::Tuple => {
                let items = items(value)?;
                to.push('[');
                for (i, item) in items.iter().enumerate() {
                    self.separate(to, i == 0, inner);
                    self.write(to, item, inner)?;
                }
                self.close(to, items.is_empty(), depth, ']');
            }
            Kind::Dict => {
                let mut pairs = pairs(value)?;
                if self.sorted {
                    pairs.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
                }
                to.push('{');
                for (i, (key, value)) in pairs.iter().enumerate() {
                    self.separate(to, i == 0, inner);
                    self.quote(to, text_of(key)?);
                    to.push_str(&self.after_key);
                    self.write(to, value, inner)?;
                }
                self.close(to, pairs.is_empty(), depth, '}');
            }
            _ => return Err(unlike()),
        }
        Ok(())
    }

    fn separate(&self, to: &mut String, first: bool, depth: usize) {
        to.push_str(if first { "" } else { &self.between_items });
        self.new_line(to, depth);
    }

    fn close(&self, to: &mut String, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.new_line(to, depth);
        }
        to.push(bracket);
    }

    fn new_line(&self, to: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            to.push('\n');
            to.extend(std::iter::repeat_n(' ', indent.saturating_mul(depth)));
        }
    }

    fn quote(&self, to: &mut String, text: &str) {
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ascii {
            return to.push_str(&quoted);
        }
        for letter in quoted.chars() {
            if matches!(letter, ' '..='~') {
                to.push(letter);
            } else {
                letter
                    .encode_utf16(&mut [0; 2])
                    .iter()
                    .for_each(|unit| to.push_str(&format!("\\u{unit:04x}")));
            }
        }
    }
}
