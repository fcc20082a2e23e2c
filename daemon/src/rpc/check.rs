//! Ranges of the fields of `gpuadmit.v1`, as its `.proto` files promise them. An error names the field, what is
//! wrong with it (never a text, only its length), and what is allowed.

use std::ops::RangeInclusive;

use gpuadmit_core::request::{MAX_NAME_BYTES, RequestError};

/// Checks a number.
pub(super) fn number<T: Into<u64> + Copy>(
    field: &'static str,
    value: T,
    range: RangeInclusive<u64>,
    allowed: &'static str,
) -> Result<T, RequestError> {
    if range.contains(&value.into()) {
        return Ok(value);
    }
    Err(RequestError::OutOfRange { field, value: value.into().to_string(), allowed })
}

/// Checks a number that may be absent.
pub(super) fn optional<T: Into<u64> + Copy>(
    field: &'static str,
    value: Option<T>,
    range: RangeInclusive<u64>,
    allowed: &'static str,
) -> Result<Option<T>, RequestError> {
    value.map(|value| number(field, value, range, allowed)).transpose()
}

/// Checks a name of `least` to [`MAX_NAME_BYTES`] bytes.
pub(super) fn name<'a>(
    field: &'static str,
    value: &'a str,
    least: usize,
    allowed: &'static str,
) -> Result<&'a str, RequestError> {
    RequestError::check_length(field, value, least..=MAX_NAME_BYTES, allowed)?;
    Ok(value)
}

/// A field that must be there is missing.
pub(super) fn absent(field: &'static str, allowed: &'static str) -> RequestError {
    RequestError::wrong(field, "missing", allowed)
}

/// What is allowed where one of `ids` must be named.
pub(super) fn one_of<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    let ids: Vec<String> = ids.map(|id| format!("{id:?}")).collect();
    if ids.is_empty() { "none is known".into() } else { format!("one of {}", ids.join(", ")) }
}
