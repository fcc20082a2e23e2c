//! Numbers and flags as pydantic reads them in its lax mode, which vLLM's protocol classes use: integral floats, and
//! numbers and flags written as strings (pydantic 2, conversion table).

use std::borrow::Cow;

use serde_json::value::RawValue;

/// A whole number; beyond 64 bits it saturates. `None`: it is none.
pub(super) fn integer(raw: &RawValue) -> Option<i64> {
    let text = raw.get();
    match text.as_bytes().first()? {
        b't' => Some(1),
        b'f' => Some(0),
        b'"' => of_text(&serde_json::from_str::<Cow<'_, str>>(text).ok()?),
        b'-' | b'0'..=b'9' if text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()) => {
            Some(saturated(text))
        }
        b'-' | b'0'..=b'9' => of_float(text.parse().ok()?),
        _ => None,
    }
}

/// A flag. `None`: it is none.
pub(super) fn flag(raw: &RawValue) -> Option<bool> {
    let text = raw.get();
    if !text.starts_with('"') {
        return match integer(raw)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
    }
    let text = serde_json::from_str::<Cow<'_, str>>(text).ok()?;
    match text.to_ascii_lowercase().as_str() {
        "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
        "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
        _ => None,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "it is whole and within 64 bits")]
fn of_float(number: f64) -> Option<i64> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    (number.fract() == 0.0 && number.abs() < LIMIT).then_some(number as i64)
}

/// Whether a string is a whole number.
pub(super) fn is_integer(text: &str) -> bool {
    of_text(text).is_some()
}

/// Blanks around, a sign, zeros behind a point, and an underscore between two digits are allowed.
fn of_text(text: &str) -> Option<i64> {
    let text = text.trim();
    let (whole, zeros) = text.split_once('.').unwrap_or((text, "0"));
    let digits = whole.strip_prefix(['+', '-']).unwrap_or(whole);
    let groups_are_digits =
        digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    let zeros_are_zeros = !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0');
    (groups_are_digits && zeros_are_zeros).then(|| saturated(&whole.replace('_', "")))
}

/// Digits, perhaps with a sign.
fn saturated(digits: &str) -> i64 {
    let beyond = if digits.starts_with('-') { i64::MIN } else { i64::MAX };
    digits.parse().unwrap_or(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    /// Expected: what pydantic 2.13 makes of the same value.
    #[test]
    fn whole_numbers_are_read_as_pydantic_reads_them() {
        for (json, number) in [
            ("256", 256),
            ("256.0", 256),
            ("2.56e2", 256),
            ("-1", -1),
            ("true", 1),
            ("false", 0),
            (r#""256""#, 256),
            (r#"" 256 ""#, 256),
            (r#""256.0""#, 256),
            (r#""1.00""#, 1),
            (r#""+5""#, 5),
            (r#""-5""#, -5),
            (r#""-0""#, 0),
            (r#""0005""#, 5),
            (r#""1_000""#, 1000),
            ("1000000000000000000000000000000", i64::MAX),
        ] {
            assert_eq!(integer(raw(json)), Some(number), "{json}");
        }
        for json in [
            "256.5",
            "1e20",
            "[]",
            "{}",
            r#""""#,
            r#""256.5""#,
            r#""0x10""#,
            r#""1e2""#,
            r#""1__0""#,
            r#""_1""#,
            r#""1_""#,
            r#""5.""#,
            r#"".0""#,
            r#""1.000_0""#,
            r#""inf""#,
            "\"\u{663}\"",
        ] {
            assert_eq!(integer(raw(json)), None, "{json}");
        }
    }

    /// Expected: what pydantic 2.13 makes of the same value.
    #[test]
    fn flags_are_read_as_pydantic_reads_them() {
        for json in ["true", "1", "1.0", r#""TRUE""#, r#""yes""#, r#""on""#, r#""1""#, r#""t""#, r#""Y""#] {
            assert_eq!(flag(raw(json)), Some(true), "{json}");
        }
        for json in ["false", "0", "0.0", r#""off""#, r#""0""#, r#""no""#] {
            assert_eq!(flag(raw(json)), Some(false), "{json}");
        }
        for json in ["2", "0.5", r#""""#, r#"" true ""#, "[]"] {
            assert_eq!(flag(raw(json)), None, "{json}");
        }
    }
}
