//! Numbers as Python and vLLM read them.

/// Python's `int`: spaces around it, a sign, and single underscores between digits.
pub(super) fn int(text: &str) -> Option<i64> {
    without_underscores(text.trim())?.parse().ok()
}

/// Python's `float`.
pub(super) fn float(text: &str) -> Option<f64> {
    without_underscores(text.trim())?.parse().ok()
}

/// A count as vLLM takes it (utils/argparse_utils.py, `human_readable_int`): `4096`, `4k` = 4,000, `4K` = 4,096, `1.5k`.
pub(super) fn human_readable(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let exponent = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => return int(text),
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return None,
    };
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if text.ends_with(|unit: char| unit.is_ascii_uppercase()) {
        return is_digits(digits)
            .then(|| digits.parse::<i64>().ok()?.checked_mul(1_i64.checked_shl(10 * exponent)?))
            .flatten();
    }
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    if !is_digits(whole) || !is_digits(part) {
        return None;
    }
    // In floating point, as vLLM reckons: 32.3k is 32,299.
    let product = digits.parse::<f64>().ok()? * f64::from(1000_u16).powi(i32::try_from(exponent).ok()?);
    format!("{:.0}", product.trunc()).parse().ok()
}

/// The text without underscores, where each is between two digits.
fn without_underscores(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split('_').collect();
    let joined = parts.iter().zip(parts.iter().skip(1)).all(|(left, right)| {
        left.ends_with(|c: char| c.is_ascii_digit()) && right.starts_with(|c: char| c.is_ascii_digit())
    });
    joined.then(|| parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_vllm_reads_them() {
        for (text, expected) in [
            ("16", Some(16)),
            (" 1_000 ", Some(1000)),
            ("1k", Some(1000)),
            ("1K", Some(1024)),
            ("2T", Some(2 << 40)),
            ("25.6k", Some(25_600)),
            ("32.3k", Some(32_299)),
            ("1.5K", None),
            ("1kk", None),
            ("-1", Some(-1)),
            ("-1k", None),
            ("k", None),
            ("", None),
            ("1__0", None),
            ("_1", None),
            ("9223372036854775807K", None),
            ("é", None),
        ] {
            assert_eq!(human_readable(text), expected, "{text}");
        }
        assert_eq!((float(" .9"), float("1e-1"), float("0_1.5")), (Some(0.9), Some(0.1), Some(1.5)));
    }
}
