//! Durations on the command line: `500ms`, `30s`, `10m`, `2h`, `1d`.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Longest wait for room that the API takes.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_mins(10);

/// Reads a duration: a whole number and a unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits).unwrap_or_default();
    let (_, factor) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or("a whole number with a unit is expected: ms, s, m, h or d, such as 10m")?;
    let number: u64 = digits.parse().map_err(|_| "a whole number is expected before the unit".to_owned())?;
    number.checked_mul(*factor).map(Duration::from_millis).ok_or_else(|| "too long".to_owned())
}

/// Reads a duration of `least` to `most`.
pub(crate) fn between(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| match parse(text)? {
        duration if (least..=most).contains(&duration) => Ok(duration),
        _ => Err(format!("{} to {} are allowed", written(least), written(most))),
    }
}

/// As it is read, in the largest unit in which it is a whole number.
pub(crate) fn written(duration: Duration) -> String {
    let ms = millis(duration);
    let unit = UNITS.iter().rev().find(|(_, factor)| ms > 0 && ms.is_multiple_of(*factor));
    let (name, factor) = unit.unwrap_or(&("s", 1_000));
    format!("{}{name}", ms / factor)
}

/// Whole milliseconds of `duration`; saturates.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds of `duration` in 32 bits; saturates, and the daemon then names the range it allows.
pub(crate) fn millis_u32(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse("2h"), Ok(Duration::from_secs(7_200)));
        assert_eq!(parse("1d"), Ok(Duration::from_secs(86_400)));
    }

    #[test]
    fn a_range_is_kept_and_named_as_it_is_read() {
        let read = between(Duration::from_millis(10), Duration::from_hours(1));
        assert_eq!(read("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(read("1h"), Ok(Duration::from_hours(1)));
        for text in ["9ms", "0s", "61m"] {
            assert_eq!(read(text), Err("10ms to 1h are allowed".to_owned()), "{text}");
        }
        let all = [0, 250, 1_000, 90_000, 7_200_000, 86_400_000].map(Duration::from_millis);
        assert_eq!(all.map(written), ["0s", "250ms", "1s", "90s", "2h", "1d"]);
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in
            ["", "10", "m", "-1s", "1.5s", "1 s", "1w", "99999999999999999999s", "18446744073709551615d"]
        {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
