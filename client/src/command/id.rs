//! Ids and numbers of events on the command line: decimal, or hexadecimal behind `0x`.

/// Reads an id.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` takes a sign as well.
    let id = u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'));
    id.ok_or_else(|| "a number up to 2^64 - 1 is expected: decimal, or hexadecimal behind 0x".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_decimal_and_hexadecimal_only_behind_0x() {
        assert_eq!(parse("10"), Ok(10));
        assert_eq!(parse("0010"), Ok(10));
        assert_eq!(parse("0x10"), Ok(16));
        assert_eq!(parse("0x00ffffff00000001"), Ok(72_057_589_742_960_641));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
        for text in ["", "0x", "abc", "00ffffff00000001", "+1", "0x+1", "-1", "1_0", "18446744073709551616"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
