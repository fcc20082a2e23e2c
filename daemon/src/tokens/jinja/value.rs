//! Values as Python has them.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use minijinja::{
    Error, Value,
    value::{Enumerator, Kwargs, Object, ObjectRepr, ValueKind},
};

use super::{MAX_BYTES, MAX_DEPTH, MAX_ITEMS, too_long, unlike};

/// The type of dicts; `loop` and macros look like maps too.
static DICT: LazyLock<&str> = LazyLock::new(|| {
    let empty = Value::from_serialize(BTreeMap::<&str, ()>::new());
    empty.as_object().map_or("", |object| object.type_name())
});

/// What a value is in Python.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'a str),
    /// A text that the template called safe: it escapes what is added to it.
    Markup,
    List,
    Tuple,
    Dict,
    /// A generator, a range, or a view of a dict.
    Iterator,
    Namespace,
    /// `loop`, a macro, a function.
    Other,
}

impl<'a> Kind<'a> {
    pub(super) fn of(value: &'a Value) -> Self {
        match value.kind() {
            ValueKind::Undefined => Self::Undefined,
            ValueKind::None => Self::None,
            ValueKind::Bool => Self::Bool(value.is_true()),
            ValueKind::Number if value.is_integer() => {
                i128::try_from(value.clone()).map_or(Self::Other, Self::Int)
            }
            ValueKind::Number => f64::try_from(value.clone()).map_or(Self::Other, Self::Float),
            ValueKind::String if value.is_safe() => Self::Markup,
            ValueKind::String => value.as_str().map_or(Self::Other, Self::Text),
            ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => Self::Tuple,
            ValueKind::Seq => Self::List,
            ValueKind::Map if value.as_object().is_some_and(|object| object.type_name() == *DICT) => {
                Self::Dict
            }
            ValueKind::Iterable => Self::Iterator,
            ValueKind::Plain if value.downcast_object_ref::<Namespace>().is_some() => Self::Namespace,
            _ => Self::Other,
        }
    }

    /// A number; booleans are numbers.
    pub(super) fn number(self) -> Option<Self> {
        match self {
            Self::Bool(value) => Some(Self::Int(value.into())),
            Self::Int(_) | Self::Float(_) => Some(self),
            _ => None,
        }
    }
}

/// An integer as a float, where nothing is lost.
pub(super) fn float(int: i128) -> Result<f64, Error> {
    match i32::try_from(int) {
        Ok(int) => Ok(int.into()),
        Err(_) => Err(unlike()),
    }
}

/// A text as a value.
pub(super) fn text(text: impl Into<String>) -> Result<Value, Error> {
    let text = text.into();
    if text.len() > MAX_BYTES { Err(too_long()) } else { Ok(Value::from(text)) }
}

/// A list as a value.
pub(super) fn list(items: Vec<Value>) -> Result<Value, Error> {
    if items.len() > MAX_ITEMS { Err(too_long()) } else { Ok(Value::from_object(items)) }
}

/// A call's arguments, by position or by name.
pub(super) fn arguments<const N: usize>(
    given: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let (positional, named) = match given.split_last() {
        Some((last, positional)) if last.is_kwargs() => (positional, Some(Kwargs::try_from(last.clone())?)),
        _ => (given, None),
    };
    let mut arguments = [const { None }; N];
    for (i, (argument, name)) in arguments.iter_mut().zip(names).enumerate() {
        let named = named.as_ref().filter(|named| named.has(name));
        *argument = match (positional.get(i), named) {
            (Some(_), Some(_)) => return Err(unlike()),
            (Some(argument), None) => Some(argument.clone()),
            (None, named) => named.map(|named| named.get(name)).transpose()?,
        };
    }
    named.as_ref().map_or(Ok(()), Kwargs::assert_all_used)?;
    if positional.len() > N { Err(unlike()) } else { Ok(arguments) }
}

/// The text of a value that must be one.
pub(super) fn text_of(value: &Value) -> Result<&str, Error> {
    match Kind::of(value) {
        Kind::Text(text) => Ok(text),
        _ => Err(unlike()),
    }
}

/// What Python iterates over.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    match Kind::of(value) {
        Kind::Undefined => Ok(Vec::new()),
        Kind::Text(text) => Ok(text.chars().map(Value::from).collect()),
        Kind::List | Kind::Tuple | Kind::Dict | Kind::Iterator => Ok(value.try_iter()?.collect()),
        _ => Err(unlike()),
    }
}

/// The pairs of a dict.
pub(super) fn pairs(dict: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let keys = dict.try_iter()?;
    keys.map(|key| dict.get_item(&key).map(|value| (key, value))).collect()
}

/// `str(value)`.
pub(super) fn shown(value: &Value) -> Result<String, Error> {
    match Kind::of(value) {
        Kind::Undefined => Ok(String::new()),
        Kind::Text(text) => Ok(text.to_owned()),
        Kind::Markup => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => {
            let mut text = String::new();
            write_repr(&mut text, value, 0)?;
            Ok(text)
        }
    }
}

/// `repr(value)`.
fn write_repr(to: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH || to.len() > MAX_BYTES {
        return Err(too_long());
    }
    match Kind::of(value) {
        Kind::None => to.push_str("None"),
        Kind::Bool(value) => to.push_str(if value { "True" } else { "False" }),
        Kind::Int(int) => to.push_str(&int.to_string()),
        Kind::Float(float) => to.push_str(&shown_float(float)?),
        Kind::Text(text) => write_quoted(to, text)?,
        kind @ (Kind::List | Kind::Tuple) => {
            let items = items(value)?;
            let alone = kind == Kind::Tuple && items.len() == 1;
            to.push(if kind == Kind::List { '[' } else { '(' });
            for (i, item) in items.iter().enumerate() {
                to.push_str(if i == 0 { "" } else { ", " });
                write_repr(to, item, depth.saturating_add(1))?;
            }
            to.push_str(if kind == Kind::List {
                "]"
            } else if alone {
                ",)"
            } else {
                ")"
            });
        }
        Kind::Dict => {
            to.push('{');
            for (i, (key, value)) in pairs(value)?.iter().enumerate() {
                to.push_str(if i == 0 { "" } else { ", " });
                write_repr(to, key, depth.saturating_add(1))?;
                to.push_str(": ");
                write_repr(to, value, depth.saturating_add(1))?;
            }
            to.push('}');
        }
        _ => return Err(unlike()),
    }
    Ok(())
}

/// Letters beyond ASCII that Python shows as they are, whatever its version of Unicode: Latin, Cyrillic, punctuation,
/// kana, the older Han, Hangul.
const SHOWN: [(char, char); 8] = [
    ('\u{a1}', '\u{ac}'),
    ('\u{ae}', '\u{24f}'),
    ('\u{400}', '\u{52f}'),
    ('\u{2010}', '\u{2027}'),
    ('\u{3041}', '\u{3096}'),
    ('\u{30a1}', '\u{30fa}'),
    ('\u{4e00}', '\u{9fa5}'),
    ('\u{ac00}', '\u{d7a3}'),
];

fn write_quoted(to: &mut String, text: &str) -> Result<(), Error> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    to.push(quote);
    for letter in text.chars() {
        match letter {
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            '\\' => to.push_str("\\\\"),
            _ if letter == quote => to.extend(['\\', quote]),
            ' '..='~' => to.push(letter),
            _ if letter.is_ascii() => _ = write!(to, "\\x{:02x}", u32::from(letter)),
            _ if SHOWN.iter().any(|(first, last)| (first..=last).contains(&&letter)) => to.push(letter),
            _ => return Err(unlike()),
        }
    }
    to.push(quote);
    Ok(())
}

/// `repr(float)`: the shortest digits, with an exponent below 1e-4 and from 1e16.
pub(super) fn shown_float(float: f64) -> Result<String, Error> {
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').ok_or_else(unlike)?;
    let exponent: i32 = exponent.parse().map_err(|_| unlike())?;
    Ok(if (-4..16).contains(&exponent) {
        format!("{float:?}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
    })
}

/// A tuple.
#[derive(Debug)]
pub(super) struct Tuple(pub(super) Vec<Value>);

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

/// A generator: true even where it is empty, and empty once it has been gone through.
#[derive(Debug)]
pub(super) struct Generator(Mutex<Vec<Value>>);

/// A generator of these.
pub(super) fn generator(items: Vec<Value>) -> Value {
    Value::from_object(Generator(Mutex::new(items)))
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let mut items = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Enumerator::Values(std::mem::take(&mut items))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// What `namespace` makes: its attributes can be set from any scope.
#[derive(Debug, Default)]
pub(super) struct Namespace(Mutex<BTreeMap<String, Value>>);

impl Namespace {
    pub(super) fn get(&self, name: &str) -> Value {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned().unwrap_or_default()
    }

    pub(super) fn set(&self, name: &str, value: Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), value);
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// The function `namespace`, with attributes by name.
#[expect(clippy::needless_pass_by_value, reason = "as minijinja hands it to a function")]
pub(super) fn namespace(attributes: Kwargs) -> Result<Value, Error> {
    let namespace = Namespace::default();
    for name in attributes.args() {
        namespace.set(name, attributes.peek(name)?);
    }
    Ok(Value::from_object(namespace))
}
