//! Jinja's filters, those that chat templates use.

use minijinja::{
    Environment, Error, State, Value,
    value::{Kwargs, Rest},
};

use super::{
    MAX_ITEMS, json, methods, operators, too_long, unlike,
    value::{Generator, Kind, arguments, generator, items, list, pairs, shown, text, text_of},
};

pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", json::to_json);
    for name in ["default", "d"] {
        environment.add_filter(name, default);
    }
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    for name in ["lower", "upper", "capitalize"] {
        environment.add_filter(name, move |state: &State<'_, '_>, value: &Value| {
            methods::call(state, &text(plain(value)?)?, name, &[])
        });
    }
    environment.add_filter("trim", |value: &Value, chars: Rest<Value>| {
        methods::stripped(&plain(value)?, &chars, true, true)
    });
    environment.add_filter("replace", |value: &Value, from: &Value, to: &Value, count: Option<&Value>| {
        methods::replaced(&plain(value)?, &plain(from)?, &plain(to)?, count)
    });
    environment.add_filter("indent", indent);
    environment.add_filter("string", |value: &Value| match Kind::of(value) {
        Kind::Markup => Ok(value.clone()),
        _ => text(shown(value)?),
    });
    environment.add_filter("safe", |value: &Value| shown(value).map(Value::from_safe_string));
    environment.add_filter("int", int);
    environment.add_filter("abs", |value: &Value| match Kind::of(value) {
        Kind::Int(int) => int.checked_abs().map(Value::from).ok_or_else(unlike),
        Kind::Float(float) => Ok(Value::from(float.abs())),
        _ => Err(unlike()),
    });
    environment.add_filter("list", |value: &Value| items(value).and_then(list));
    environment.add_filter("first", |value: &Value| {
        Ok::<_, Error>(items(value)?.into_iter().next().unwrap_or_default())
    });
    environment.add_filter("last", |value: &Value| match Kind::of(value) {
        Kind::Iterator | Kind::Undefined => Err(unlike()),
        _ => Ok(items(value)?.pop().unwrap_or_default()),
    });
    environment.add_filter("join", join);
    environment.add_filter("reverse", |value: &Value| match Kind::of(value) {
        Kind::Text(of) => text(of.chars().rev().collect::<String>()),
        Kind::List | Kind::Tuple => Ok(generator(items(value)?.into_iter().rev().collect())),
        _ => Err(unlike()),
    });
    environment.add_filter("items", |value: &Value| match Kind::of(value) {
        Kind::Undefined => Ok(generator(Vec::new())),
        Kind::Dict => Ok(generator(pairs(value)?.into_iter().map(methods::pair).collect())),
        _ => Err(unlike()),
    });
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("map", map);
    for (name, by_attribute, wanted) in [
        ("select", false, true),
        ("reject", false, false),
        ("selectattr", true, true),
        ("rejectattr", true, false),
    ] {
        environment.add_filter(name, move |state: &State<'_, '_>, value: &Value, arguments: Rest<Value>| {
            chosen(state, value, &arguments, by_attribute, wanted)
        });
    }
}

/// `str(value)`, where it is no text that is safe.
fn plain(value: &Value) -> Result<String, Error> {
    if Kind::of(value) == Kind::Markup { Err(unlike()) } else { shown(value) }
}

#[expect(clippy::needless_pass_by_value, reason = "as minijinja hands it to a filter")]
fn default(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [default, falsy] = arguments(&given, ["default_value", "boolean"])?;
    let replaced = value.is_undefined() || falsy.is_some_and(|falsy| falsy.is_true()) && !value.is_true();
    Ok(if replaced { default.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

fn length(value: &Value) -> Result<usize, Error> {
    match Kind::of(value) {
        Kind::Iterator if value.downcast_object_ref::<Generator>().is_some() => Err(unlike()),
        _ => Ok(items(value)?.len()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as minijinja hands it to a filter")]
fn indent(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [width, first, blank] = arguments(&given, ["width", "first", "blank"])?;
    let [first, blank] = [first, blank].map(|flag| flag.is_some_and(|flag| flag.is_true()));
    let width = match width.as_ref().map_or(Kind::Int(4), Kind::of) {
        Kind::Int(width) => usize::try_from(width.max(0)).map_err(|_| too_long())?,
        _ => return Err(unlike()),
    };
    let mut of = text_of(value)?.to_owned();
    of.push('\n');
    let lines = methods::lines(&of)?;
    if width.saturating_mul(lines.len()) > MAX_ITEMS {
        return Err(too_long());
    }
    let by = " ".repeat(width);
    let mut indented = String::new();
    for (i, line) in lines.iter().enumerate() {
        let starts = if i == 0 { first } else { blank || !line.is_empty() };
        indented.push_str(if i == 0 { "" } else { "\n" });
        indented.push_str(if starts { &by } else { "" });
        indented.push_str(line);
    }
    text(indented)
}

fn int(value: &Value) -> Result<Value, Error> {
    match Kind::of(value) {
        Kind::Bool(value) => Ok(Value::from(i64::from(value))),
        Kind::Int(_) => Ok(value.clone()),
        Kind::Text(digits) if digits.len() < 19 && digits.bytes().all(|digit| digit.is_ascii_digit()) => {
            digits.parse::<i64>().map(Value::from).map_err(|_| unlike())
        }
        _ => Err(unlike()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as minijinja hands it to a filter")]
fn join(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let [between, by] = arguments(&given, ["d", "attribute"])?;
    let between = between.as_ref().map_or(Ok(""), text_of)?;
    let parts = items(value)?.into_iter().map(|item| match &by {
        Some(by) => plain(&looked_up(item, by)?),
        None => plain(&item),
    });
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    text(parts.join(between))
}

/// The items of a dict by key, the case of which does not count.
fn dictsort(value: &Value) -> Result<Value, Error> {
    if Kind::of(value) != Kind::Dict {
        return Err(unlike());
    }
    let mut sorted = pairs(value)?;
    if sorted.iter().any(|(key, _)| key.as_str().is_none_or(|key| !key.is_ascii())) {
        return Err(unlike());
    }
    sorted.sort_by_cached_key(|(key, _)| key.as_str().map(str::to_ascii_lowercase));
    list(sorted.into_iter().map(methods::pair).collect())
}

/// What is at `path` in `item`: names and numbers between dots.
fn looked_up(item: Value, path: &Value) -> Result<Value, Error> {
    text_of(path)?.split('.').try_fold(item, |item, part| {
        let is_number = !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_digit());
        let key = if is_number {
            Value::from(part.parse::<i64>().map_err(|_| unlike())?)
        } else {
            Value::from(part)
        };
        operators::item(&item, &key)
    })
}

#[expect(clippy::needless_pass_by_value, reason = "as minijinja hands it to a filter")]
fn map(state: &State<'_, '_>, value: &Value, arguments: Rest<Value>) -> Result<Value, Error> {
    let items = items(value)?.into_iter();
    let mapped: Result<Vec<Value>, Error> = match arguments.as_slice() {
        [named] if named.is_kwargs() => {
            let named = Kwargs::try_from(named.clone())?;
            let path: Value = named.get("attribute")?;
            named.assert_all_used()?;
            items.map(|item| looked_up(item, &path)).collect()
        }
        [name, arguments @ ..] => {
            let name = text_of(name)?;
            items.map(|item| state.apply_filter(name, &[&[item], arguments].concat())).collect()
        }
        [] => Err(unlike()),
    };
    mapped.map(generator)
}

fn chosen(
    state: &State<'_, '_>,
    value: &Value,
    arguments: &[Value],
    by_attribute: bool,
    wanted: bool,
) -> Result<Value, Error> {
    let (path, test) = match arguments {
        [path, test @ ..] if by_attribute => (Some(path), test),
        test if !by_attribute => (None, test),
        _ => return Err(unlike()),
    };
    let mut chosen = Vec::new();
    for item in items(value)? {
        let tested = match path {
            Some(path) => looked_up(item.clone(), path)?,
            None => item.clone(),
        };
        let passes = match test {
            [] => tested.is_true(),
            [name, arguments @ ..] => state.perform_test(text_of(name)?, &[&[tested], arguments].concat())?,
        };
        if passes == wanted {
            chosen.push(item);
        }
    }
    Ok(generator(chosen))
}
