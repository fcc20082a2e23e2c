//! Python's operators and lookups, each a filter that no template can name.

use minijinja::{Environment, Error, State, Value, value::Rest};

use super::{
    MAX_DEPTH, methods, too_long, unlike,
    value::{Kind, Namespace, Tuple, float, items, list, pairs, shown, text, text_of},
};

/// What `loop` has.
const LOOP: [&str; 11] = [
    "index",
    "index0",
    "revindex",
    "revindex0",
    "first",
    "last",
    "length",
    "depth",
    "depth0",
    "previtem",
    "nextitem",
];

pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("+", plus);
    environment.add_filter("~", |a: &Value, b: &Value| text(shown(a)? + &shown(b)?));
    for operator in ["-", "*", "/", "//", "%", "**"] {
        environment.add_filter(operator, move |a: &Value, b: &Value| calculated(operator, a, b));
    }
    environment.add_filter("==", |a: &Value, b: &Value| equal(a, b));
    environment.add_filter("!=", |a: &Value, b: &Value| equal(a, b).map(|equal| !equal));
    environment.add_filter("<", |a: &Value, b: &Value| less(a, b));
    environment.add_filter(">", |a: &Value, b: &Value| less(b, a));
    environment.add_filter("<=", |a: &Value, b: &Value| at_most(a, b));
    environment.add_filter(">=", |a: &Value, b: &Value| at_most(b, a));
    environment.add_filter("in", |a: &Value, b: &Value| contains(b, a));
    environment.add_filter("neg", |value: &Value| match Kind::of(value).number() {
        Some(_) => calculated("*", value, &Value::from(-1)),
        None => Err(unlike()),
    });
    environment.add_filter(".", |value: &Value, name: &str| attribute(value, name));
    environment.add_filter("[]", item);
    environment.add_filter("[:]", slice);
    environment.add_filter(
        "()",
        |state: &State<'_, '_>, value: &Value, name: &str, arguments: Rest<Value>| {
            methods::call(state, value, name, &arguments)
        },
    );
    environment
        .add_filter("tuple", |value: &Value| items(value).map(|items| Value::from_object(Tuple(items))));
    environment.add_filter("iter", |value: &Value| items(value).and_then(list));
    environment.add_filter("key", |value: &Value| text_of(value).map(|_| value.clone()));
    environment.add_filter("same", |value: &Value| value.clone());
    environment.add_filter("given", |value: &Value| match Kind::of(value) {
        // Jinja gives an argument its default only where it is missing, minijinja where it is undefined.
        Kind::Undefined => Err(unlike()),
        _ => Ok(value.clone()),
    });
    environment.add_filter("set", |namespace: &Value, name: &str, value: &Value| {
        let namespace = namespace.downcast_object_ref::<Namespace>().ok_or_else(unlike)?;
        namespace.set(name, value.clone());
        Ok::<_, Error>(Value::UNDEFINED)
    });
}

fn plus(a: &Value, b: &Value) -> Result<Value, Error> {
    match (Kind::of(a), Kind::of(b)) {
        (Kind::Text(a), Kind::Text(b)) => text([a, b].concat()),
        (Kind::List, Kind::List) => list([items(a)?, items(b)?].concat()),
        _ => calculated("+", a, b),
    }
}

fn calculated(operator: &str, a: &Value, b: &Value) -> Result<Value, Error> {
    let (a, b) = match (operator, Kind::of(a), Kind::of(b)) {
        ("*", Kind::Text(piece), times) | ("*", times, Kind::Text(piece)) => return repeated(piece, times),
        (_, a, b) => (a.number().ok_or_else(unlike)?, b.number().ok_or_else(unlike)?),
    };
    match (operator, a, b) {
        ("/", Kind::Int(a), Kind::Int(b)) => quotient(float(a)?, float(b)?),
        (_, Kind::Int(a), Kind::Int(b)) => whole(operator, a, b).map(Value::from).ok_or_else(unlike),
        (_, Kind::Int(a), Kind::Float(b)) => fraction(operator, float(a)?, b),
        (_, Kind::Float(a), Kind::Int(b)) => fraction(operator, a, float(b)?),
        (_, Kind::Float(a), Kind::Float(b)) => fraction(operator, a, b),
        _ => Err(unlike()),
    }
}

fn repeated(piece: &str, times: Kind<'_>) -> Result<Value, Error> {
    let Some(Kind::Int(times)) = times.number() else { return Err(unlike()) };
    let times = usize::try_from(times.max(0)).map_err(|_| too_long())?;
    match piece.len().checked_mul(times) {
        Some(length) if length <= super::MAX_BYTES => text(piece.repeat(times)),
        _ => Err(too_long()),
    }
}

/// Rounds down, and gives the remainder the sign of `b`, as Python does.
fn whole(operator: &str, a: i128, b: i128) -> Option<i128> {
    let uneven = |remainder: i128| remainder != 0 && (remainder < 0) != (b < 0);
    match operator {
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "//" => a.checked_div(b)?.checked_sub(uneven(a.checked_rem(b)?).into()),
        "%" => a
            .checked_rem(b)
            .map(|remainder| if uneven(remainder) { remainder.saturating_add(b) } else { remainder }),
        "**" => a.checked_pow(u32::try_from(b).ok()?),
        _ => None,
    }
}

fn fraction(operator: &str, a: f64, b: f64) -> Result<Value, Error> {
    match operator {
        "+" => Ok(Value::from(a + b)),
        "-" => Ok(Value::from(a - b)),
        "*" => Ok(Value::from(a * b)),
        "/" => quotient(a, b),
        _ => Err(unlike()),
    }
}

fn quotient(a: f64, b: f64) -> Result<Value, Error> {
    if b == 0.0 { Err(unlike()) } else { Ok(Value::from(a / b)) }
}

pub(super) fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    equal_within(a, b, 0)
}

fn equal_within(a: &Value, b: &Value, depth: usize) -> Result<bool, Error> {
    if depth > MAX_DEPTH {
        return Err(too_long());
    }
    let inner = depth.saturating_add(1);
    let (left, right) = (Kind::of(a), Kind::of(b));
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return Ok(match (left, right) {
            (Kind::Int(int), Kind::Float(number)) | (Kind::Float(number), Kind::Int(int)) => {
                float(int)? == number
            }
            _ => left == right,
        });
    }
    match (left, right) {
        (Kind::Markup | Kind::Iterator | Kind::Namespace | Kind::Other, _)
        | (_, Kind::Markup | Kind::Iterator | Kind::Namespace | Kind::Other) => Err(unlike()),
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            let (left, right) = (items(a)?, items(b)?);
            if left.len() != right.len() {
                return Ok(false);
            }
            all(left.iter().zip(&right).map(|(a, b)| equal_within(a, b, inner)))
        }
        (Kind::Dict, Kind::Dict) => {
            let (left, right) = (pairs(a)?, pairs(b)?);
            if left.len() != right.len() {
                return Ok(false);
            }
            all(left.iter().map(|(key, value)| match b.get_item(key)? {
                other if other.is_undefined() => Ok(false),
                other => equal_within(value, &other, inner),
            }))
        }
        _ => Ok(left == right),
    }
}

fn all(mut results: impl Iterator<Item = Result<bool, Error>>) -> Result<bool, Error> {
    results.try_fold(true, |all, one| Ok(all && one?))
}

pub(super) fn less(a: &Value, b: &Value) -> Result<bool, Error> {
    match (Kind::of(a), Kind::of(b)) {
        (Kind::Text(a), Kind::Text(b)) => Ok(a < b),
        (a, b) => match (a.number().ok_or_else(unlike)?, b.number().ok_or_else(unlike)?) {
            (Kind::Int(a), Kind::Int(b)) => Ok(a < b),
            (Kind::Int(a), Kind::Float(b)) => Ok(float(a)? < b),
            (Kind::Float(a), Kind::Int(b)) => Ok(a < float(b)?),
            (Kind::Float(a), Kind::Float(b)) => Ok(a < b),
            _ => Err(unlike()),
        },
    }
}

pub(super) fn at_most(a: &Value, b: &Value) -> Result<bool, Error> {
    Ok(less(a, b)? || equal(a, b)?)
}

/// `value in container`.
pub(super) fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    match Kind::of(container) {
        Kind::Undefined => Ok(false),
        Kind::Text(text) => Ok(text.contains(text_of(value)?)),
        Kind::List | Kind::Tuple => {
            items(container)?.iter().try_fold(false, |any, item| Ok(any || equal(item, value)?))
        }
        Kind::Dict => Ok(!container.get_item(&Value::from(text_of(value)?))?.is_undefined()),
        _ => Err(unlike()),
    }
}

/// `value.name`: attributes of Python's types come first, then keys of a dict.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    let kind = Kind::of(value);
    if methods::is_attribute(kind, name) {
        return Err(unlike());
    }
    match kind {
        Kind::Dict => value.get_item(&Value::from(name)),
        Kind::Namespace => Ok(value.downcast_object_ref::<Namespace>().ok_or_else(unlike)?.get(name)),
        Kind::Other if LOOP.contains(&name) => value.get_attr(name),
        Kind::Undefined | Kind::Markup | Kind::Iterator | Kind::Other => Err(unlike()),
        _ => Ok(Value::UNDEFINED),
    }
}

/// `value[key]`: items come first, then attributes.
pub(super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    match (Kind::of(value), Kind::of(key)) {
        (Kind::Dict, Kind::Text(name)) => match value.get_item(key)? {
            found if found.is_undefined() => attribute(value, name),
            found => Ok(found),
        },
        (Kind::List | Kind::Tuple | Kind::Text(_), Kind::Int(index)) => {
            let items = items(value)?;
            let length = i128::try_from(items.len()).map_err(|_| unlike())?;
            let index = if index < 0 { index.saturating_add(length) } else { index };
            Ok(usize::try_from(index).ok().and_then(|index| items.get(index)).cloned().unwrap_or_default())
        }
        (_, Kind::Text(name)) => attribute(value, name),
        _ => Err(unlike()),
    }
}

/// `value[start:stop:step]`.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let all = match Kind::of(value) {
        Kind::List | Kind::Tuple | Kind::Text(_) => items(value)?,
        _ => return Err(unlike()),
    };
    let bound = |value: &Value| match Kind::of(value) {
        Kind::None => Ok(None),
        Kind::Int(int) => Ok(Some(int.clamp(-(1 << 40), 1 << 40))),
        _ => Err(unlike()),
    };
    let length = i128::try_from(all.len()).map_err(|_| unlike())?;
    let step = bound(step)?.unwrap_or(1);
    let (least, most) = if step < 0 { (-1, length.saturating_sub(1)) } else { (0, length) };
    let within =
        |bound: i128| if bound < 0 { bound.saturating_add(length) } else { bound }.clamp(least, most);
    let (first, end) = if step < 0 { (most, least) } else { (least, most) };
    let mut at = bound(start)?.map_or(first, within);
    let end = bound(stop)?.map_or(end, within);
    if step == 0 {
        return Err(unlike());
    }
    let mut taken = Vec::new();
    while if step < 0 { at > end } else { at < end } {
        taken.extend(usize::try_from(at).ok().and_then(|at| all.get(at)).cloned());
        at = at.saturating_add(step);
    }
    match Kind::of(value) {
        Kind::Text(_) => text(taken.iter().filter_map(Value::as_str).collect::<String>()),
        Kind::Tuple => Ok(Value::from_object(Tuple(taken))),
        _ => list(taken),
    }
}
