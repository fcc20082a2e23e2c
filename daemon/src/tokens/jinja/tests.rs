//! Jinja's tests.

use minijinja::{Environment, Error, Value};

use super::{
    methods, operators, unlike,
    value::{Kind, text_of},
};

type Is = fn(Kind<'_>) -> bool;
type Compared = fn(&Value, &Value) -> Result<bool, Error>;

pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_test("defined", |value: &Value| !value.is_undefined());
    environment.add_test("undefined", |value: &Value| value.is_undefined());
    add_kinds(environment);
    let comparisons: [(&[&'static str], Compared); 8] = [
        (&["eq", "equalto", "=="], operators::equal),
        (&["ne", "!="], |a, b| operators::equal(a, b).map(|equal| !equal)),
        (&["lt", "lessthan", "<"], operators::less),
        (&["gt", "greaterthan", ">"], |a, b| operators::less(b, a)),
        (&["le", "<="], operators::at_most),
        (&["ge", ">="], |a, b| operators::at_most(b, a)),
        (&["in"], |value, container| operators::contains(container, value)),
        (&["sameas"], |a, b| match (Kind::of(a), Kind::of(b)) {
            // Which other values are the same object is up to Python.
            (a @ (Kind::None | Kind::Bool(_)), b) | (b, a @ (Kind::None | Kind::Bool(_))) => Ok(a == b),
            _ => Err(unlike()),
        }),
    ];
    for (names, compared) in comparisons {
        names.iter().for_each(|name| environment.add_test(*name, move |a: &Value, b: &Value| compared(a, b)));
    }
    environment
        .add_test("divisibleby", |value: &Value, by: &Value| remainder(value, by).map(|rest| rest == 0));
    environment.add_test("odd", |value: &Value| remainder(value, &Value::from(2)).map(|rest| rest == 1));
    environment.add_test("even", |value: &Value| remainder(value, &Value::from(2)).map(|rest| rest == 0));
    environment.add_test("lower", |value: &Value| ascii(value).map(methods::is_lower));
    environment.add_test("upper", |value: &Value| ascii(value).map(methods::is_upper));
}

fn add_kinds(environment: &mut Environment<'_>) {
    let kinds: [(&str, Is); 11] = [
        ("none", |kind| kind == Kind::None),
        ("boolean", |kind| matches!(kind, Kind::Bool(_))),
        ("true", |kind| kind == Kind::Bool(true)),
        ("false", |kind| kind == Kind::Bool(false)),
        ("integer", |kind| matches!(kind, Kind::Int(_))),
        ("float", |kind| matches!(kind, Kind::Float(_))),
        ("number", |kind| kind.number().is_some()),
        ("string", |kind| matches!(kind, Kind::Text(_) | Kind::Markup)),
        ("mapping", |kind| kind == Kind::Dict),
        // What has a length and a way to its items; a text and the undefined do.
        ("sequence", |kind| {
            matches!(
                kind,
                Kind::Undefined | Kind::Text(_) | Kind::Markup | Kind::List | Kind::Tuple | Kind::Dict
            )
        }),
        ("iterable", |kind| {
            matches!(
                kind,
                Kind::Undefined
                    | Kind::Text(_)
                    | Kind::Markup
                    | Kind::List
                    | Kind::Tuple
                    | Kind::Dict
                    | Kind::Iterator
            )
        }),
    ];
    for (name, is) in kinds {
        environment.add_test(name, move |value: &Value| match (Kind::of(value), name) {
            // Among them are ranges, which are sequences, and views, which are not.
            (Kind::Iterator, "sequence") | (Kind::Other, _) => Err(unlike()),
            (kind, _) => Ok(is(kind)),
        });
    }
}

fn remainder(value: &Value, by: &Value) -> Result<i128, Error> {
    match (Kind::of(value), Kind::of(by)) {
        (Kind::Int(value), Kind::Int(by)) if by > 0 => value.checked_rem_euclid(by).ok_or_else(unlike),
        _ => Err(unlike()),
    }
}

fn ascii(value: &Value) -> Result<&str, Error> {
    text_of(value).and_then(|text| if text.is_ascii() { Ok(text) } else { Err(unlike()) })
}
