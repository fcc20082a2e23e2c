//! Values of the options of `gpuadmit plan`.

/// What --max-model-len asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// The longest that fits, at most the model's own.
    Auto,
    /// A number of tokens.
    Tokens(u64),
}

/// `80GiB`, `24GB`, `512MiB`, `1073741824B`. A number without a unit is refused: 80 may mean bytes or GiB.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let unit = text.get(digits.len()..).unwrap_or_default().trim();
    let allowed = "a size with its unit, such as 80GiB, 24GB, 512MiB or 1073741824B, at most 2^50 bytes";
    let factor: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" => 1 << 40,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "" if !digits.is_empty() => return Err(format!("it has no unit; give {allowed}")),
        _ => return Err(allowed.into()),
    };
    // Thousandths, so that 23.5GiB is exact enough.
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    let thousandths = format!("{whole}{part}").parse::<u64>().map_err(|_| allowed.to_owned())?;
    let bytes = u128::from(thousandths) * u128::from(factor) / 1000;
    u64::try_from(bytes).ok().filter(|bytes| (1..=1 << 50).contains(bytes)).ok_or_else(|| allowed.into())
}

/// `32768`, `32k` (thousands), `32K` (1,024 each), `auto`, `-1`, as vLLM reads them (utils/argparse_utils.py).
pub(super) fn window(text: &str) -> Result<Window, String> {
    if text == "-1" || text.eq_ignore_ascii_case("auto") {
        return Ok(Window::Auto);
    }
    let (digits, factor) = match text.char_indices().next_back() {
        Some((end, 'k')) => (&text[..end], 1_000),
        Some((end, 'K')) => (&text[..end], 1 << 10),
        Some((end, 'm')) => (&text[..end], 1_000_000),
        Some((end, 'M')) => (&text[..end], 1 << 20),
        _ => (text, 1),
    };
    let tokens = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    let tokens = tokens.filter(|tokens| (1..=1 << 32).contains(tokens)).map(Window::Tokens);
    tokens.ok_or_else(|| "a number of 1 to 4294967296 tokens, such as 32768, 32k or 32K, or auto".into())
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    let share: Option<f64> = text.parse().ok();
    share.filter(|share| *share > 0.0 && *share <= 1.0).ok_or_else(|| "more than 0, at most 1".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(size("80GiB"), Ok(80 << 30));
        assert_eq!(size("23.5 GiB"), Ok(25_232_932_864));
        assert_eq!(size("24GB"), Ok(24_000_000_000));
        assert_eq!(size("1073741824B"), Ok(1 << 30));
        for bare in ["80", "1073741824", "23.5"] {
            assert!(
                size(bare).unwrap_err().starts_with("it has no unit; give a size with its unit"),
                "{bare}"
            );
        }
        for wrong in ["", "GiB", "-1GiB", "1EiB", "1.x GiB", "99999999999999999999", "0", "5000TiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn windows_are_read_as_vllm_reads_them() {
        for (text, tokens) in [("4096", 4096), ("32k", 32_000), ("32K", 32_768), ("1M", 1 << 20)] {
            assert_eq!(window(text), Ok(Window::Tokens(tokens)));
        }
        assert_eq!((window("auto"), window("-1")), (Ok(Window::Auto), Ok(Window::Auto)));
        for wrong in ["", "0", "-2", "k", "1.5K", "99999999999999999999k"] {
            assert!(window(wrong).is_err(), "{wrong}");
        }
    }
}
