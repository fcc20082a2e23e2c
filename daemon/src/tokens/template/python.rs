//! JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it.

use std::fmt::Write as _;

use minijinja::{Error, ErrorKind, Value, value::Kwargs};
use serde_json::Value as Json;

/// The filter `tojson`, with `indent`; other arguments of `json.dumps` change nothing that templates use.
#[expect(clippy::needless_pass_by_value, reason = "as minijinja hands it to a filter")]
pub(super) fn to_json(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get("indent")?,
    };
    let json = serde_json::to_value(value).map_err(|_| Error::new(ErrorKind::BadSerialization, "no JSON"))?;
    let mut text = String::new();
    write(&mut text, &json, indent, 0);
    Ok(Value::from_safe_string(text))
}

/// Recursion is as deep as the value, and that was read with a limit of 128.
fn write(text: &mut String, json: &Json, indent: Option<usize>, depth: usize) {
    let inner = depth.saturating_add(1);
    match json {
        Json::Array(items) if !items.is_empty() => {
            text.push('[');
            for (i, item) in items.iter().enumerate() {
                separate(text, i == 0, indent, inner);
                write(text, item, indent, inner);
            }
            end(text, indent, depth);
            text.push(']');
        }
        Json::Object(fields) if !fields.is_empty() => {
            text.push('{');
            for (i, (key, value)) in fields.iter().enumerate() {
                separate(text, i == 0, indent, inner);
                let _ = write!(text, "{}: ", Json::from(key.as_str()));
                write(text, value, indent, inner);
            }
            end(text, indent, depth);
            text.push('}');
        }
        plain => {
            let _ = write!(text, "{plain}");
        }
    }
}

fn separate(text: &mut String, first: bool, indent: Option<usize>, depth: usize) {
    match (indent, first) {
        (Some(_), _) => {
            if !first {
                text.push(',');
            }
            end(text, indent, depth);
        }
        (None, false) => text.push_str(", "),
        (None, true) => {}
    }
}

fn end(text: &mut String, indent: Option<usize>, depth: usize) {
    if let Some(indent) = indent {
        text.push('\n');
        text.extend(std::iter::repeat_n(' ', indent.min(16).saturating_mul(depth)));
    }
}
