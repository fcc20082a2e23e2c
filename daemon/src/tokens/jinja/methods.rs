//! Methods of Python's types.

use minijinja::{Error, State, Value};

use super::{
    operators, unlike,
    value::{Kind, Tuple, items, list, pairs, text, text_of},
};

const TEXT: &str = " capitalize casefold center count encode endswith expandtabs find format format_map index isalnum \
    isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower \
    lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split \
    splitlines startswith strip swapcase title translate upper zfill ";
const LIST: &str = " append clear copy count extend index insert pop remove reverse sort ";
const DICT: &str = " clear copy fromkeys get items keys pop popitem setdefault update values ";
const NUMBER: &str = " as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag is_integer \
    numerator real to_bytes ";

/// Whether `name` is an attribute of Python's own that a value of this kind has.
pub(super) fn is_attribute(kind: Kind<'_>, name: &str) -> bool {
    let names = match kind {
        Kind::Text(_) | Kind::Markup => TEXT,
        Kind::List | Kind::Tuple => LIST,
        Kind::Dict => DICT,
        Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) => NUMBER,
        _ => "",
    };
    name.starts_with("__") || names.contains(&format!(" {name} "))
}

/// `value.name(arguments)`.
pub(super) fn call(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match (Kind::of(value), name, arguments) {
        (Kind::Text(of), _, _) => of_text(of, name, arguments),
        (Kind::Dict, "items", []) => pairs(value).map(|pairs| view(pairs.into_iter().map(pair).collect())),
        (Kind::Dict, "keys", []) => items(value).map(view),
        (Kind::Dict, "values", []) => {
            pairs(value).map(|pairs| view(pairs.into_iter().map(|(_, value)| value).collect()))
        }
        (Kind::Dict, "get", [key, default @ ..]) if default.len() < 2 => {
            match value.get_item(&Value::from(text_of(key)?))? {
                found if found.is_undefined() => Ok(default.first().cloned().unwrap_or(Value::from(()))),
                found => Ok(found),
            }
        }
        (Kind::List | Kind::Tuple, "count", [of]) => {
            let equal = items(value)?.iter().try_fold(0_usize, |count, item| {
                Ok::<_, Error>(count.saturating_add(operators::equal(item, of)?.into()))
            });
            equal.map(Value::from)
        }
        (Kind::Other, "cycle", [_, ..]) => value.call_method(state, name, arguments),
        _ => Err(unlike()),
    }
}

/// A view of a dict: can be gone through again and has a length, but no items.
fn view(items: Vec<Value>) -> Value {
    Value::make_iterable(move || items.clone().into_iter())
}

/// An item of a dict.
pub(super) fn pair((key, value): (Value, Value)) -> Value {
    Value::from_object(Tuple(vec![key, value]))
}

fn of_text(of: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let flag = |flag: bool| Ok(Value::from(flag));
    let found = |at: Option<usize>| match at {
        Some(at) => Value::from(of.get(..at).unwrap_or_default().chars().count()),
        None => Value::from(-1),
    };
    match (name, arguments) {
        ("strip", chars) => stripped(of, chars, true, true),
        ("lstrip", chars) => stripped(of, chars, true, false),
        ("rstrip", chars) => stripped(of, chars, false, true),
        ("split", _) => split(of, arguments, false),
        ("rsplit", _) => split(of, arguments, true),
        ("splitlines", []) => lines(of).and_then(|lines| list(lines.into_iter().map(Value::from).collect())),
        ("startswith", [prefix]) => any(prefix, |prefix| of.starts_with(prefix)),
        ("endswith", [suffix]) => any(suffix, |suffix| of.ends_with(suffix)),
        ("replace", [from, to]) => replaced(of, text_of(from)?, text_of(to)?, None),
        ("replace", [from, to, count]) => replaced(of, text_of(from)?, text_of(to)?, Some(count)),
        ("removeprefix", [prefix]) => text(of.strip_prefix(text_of(prefix)?).unwrap_or(of)),
        ("removesuffix", [suffix]) => text(of.strip_suffix(text_of(suffix)?).unwrap_or(of)),
        ("find", [what]) => Ok(found(of.find(text_of(what)?))),
        ("rfind", [what]) => Ok(found(of.rfind(text_of(what)?))),
        ("count", [what]) if !text_of(what)?.is_empty() => {
            Ok(Value::from(of.matches(text_of(what)?).count()))
        }
        ("join", [parts]) => {
            let parts = items(parts)?;
            text(parts.iter().map(text_of).collect::<Result<Vec<_>, _>>()?.join(of))
        }
        // Beyond ASCII it depends on the version of Unicode.
        (_, []) if of.is_ascii() => match name {
            "lower" => text(of.to_ascii_lowercase()),
            "upper" => text(of.to_ascii_uppercase()),
            "capitalize" => text(capitalized(of)),
            "title" => {
                let mut words = String::new();
                for letter in of.chars() {
                    let within = words.ends_with(|last: char| last.is_ascii_alphabetic());
                    words.push(if within {
                        letter.to_ascii_lowercase()
                    } else {
                        letter.to_ascii_uppercase()
                    });
                }
                text(words)
            }
            "isdigit" | "isnumeric" | "isdecimal" => flag(every(of, |letter| letter.is_ascii_digit())),
            "isalpha" => flag(every(of, |letter| letter.is_ascii_alphabetic())),
            "isalnum" => flag(every(of, |letter| letter.is_ascii_alphanumeric())),
            "isspace" => flag(every(of, is_space)),
            "islower" => flag(is_lower(of)),
            "isupper" => flag(is_upper(of)),
            _ => Err(unlike()),
        },
        _ => Err(unlike()),
    }
}

pub(super) fn capitalized(of: &str) -> String {
    let mut letters = of.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters.map(|letter| letter.to_ascii_lowercase())).collect()
}

fn every(of: &str, is: impl Fn(char) -> bool) -> bool {
    !of.is_empty() && of.chars().all(is)
}

pub(super) fn is_lower(of: &str) -> bool {
    of.contains(|letter: char| letter.is_ascii_lowercase())
        && !of.contains(|letter: char| letter.is_ascii_uppercase())
}

pub(super) fn is_upper(of: &str) -> bool {
    of.contains(|letter: char| letter.is_ascii_uppercase())
        && !of.contains(|letter: char| letter.is_ascii_lowercase())
}

/// `str.isspace` of one letter.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

pub(super) fn stripped(of: &str, chars: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let chars = match chars {
        [] => None,
        [chars] if chars.is_none() => None,
        [chars] => Some(text_of(chars)?),
        _ => return Err(unlike()),
    };
    let strips = |letter: char| chars.map_or_else(|| is_space(letter), |chars| chars.contains(letter));
    let of = if start { of.trim_start_matches(strips) } else { of };
    text(if end { of.trim_end_matches(strips) } else { of })
}

fn split(of: &str, arguments: &[Value], from_end: bool) -> Result<Value, Error> {
    let (separator, most) = match arguments {
        [] => (None, None),
        [separator] => (Some(separator), None),
        [separator, most] => match Kind::of(most) {
            Kind::Int(most) => (Some(separator), usize::try_from(most).ok()),
            _ => return Err(unlike()),
        },
        _ => return Err(unlike()),
    };
    let parts: Vec<&str> = match separator.filter(|separator| !separator.is_none()) {
        None if most.is_none() => of.split(is_space).filter(|part| !part.is_empty()).collect(),
        None => return Err(unlike()),
        Some(separator) => match (text_of(separator)?, most.map(|most| most.saturating_add(1))) {
            ("", _) => return Err(unlike()),
            (separator, None) => of.split(separator).collect(),
            (separator, Some(parts)) if from_end => {
                let mut parts: Vec<&str> = of.rsplitn(parts, separator).collect();
                parts.reverse();
                parts
            }
            (separator, Some(parts)) => of.splitn(parts, separator).collect(),
        },
    };
    list(parts.into_iter().map(Value::from).collect())
}

/// `str.splitlines`.
pub(super) fn lines(of: &str) -> Result<Vec<&str>, Error> {
    let others = ['\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}', '\r'];
    if of.contains(others) { Err(unlike()) } else { Ok(of.split_terminator('\n').collect()) }
}

/// A text, or any of a tuple of texts.
fn any(texts: &Value, matches: impl Fn(&str) -> bool) -> Result<Value, Error> {
    match Kind::of(texts) {
        Kind::Text(text) => Ok(Value::from(matches(text))),
        Kind::Tuple => {
            let any = items(texts)?
                .iter()
                .try_fold(false, |any, text| Ok::<_, Error>(any || matches(text_of(text)?)));
            any.map(Value::from)
        }
        _ => Err(unlike()),
    }
}

pub(super) fn replaced(of: &str, from: &str, to: &str, count: Option<&Value>) -> Result<Value, Error> {
    let most = match count.map(Kind::of) {
        None | Some(Kind::None) => None,
        Some(Kind::Int(count)) if !from.is_empty() => usize::try_from(count).ok(),
        _ => return Err(unlike()),
    };
    let times = if from.is_empty() { of.len().saturating_add(1) } else { of.matches(from).count() };
    if times.saturating_mul(to.len()) > super::MAX_BYTES {
        return Err(super::too_long());
    }
    text(most.map_or_else(|| of.replace(from, to), |most| of.replacen(from, to, most)))
}
