//! Numbers for human eyes.

/// What stands where nothing is known; never a zero.
pub(crate) const UNKNOWN: &str = "unknown";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// `value` through `write`, or `unknown`.
pub(crate) fn or_unknown<T>(value: Option<T>, write: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), write)
}

/// `value` through `write`, or `?` where there is no room for a word.
pub(crate) fn or_unknown_short<T>(value: Option<T>, write: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "?".to_owned(), write)
}

/// With thousands separators: `1,234,567`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `counted(1, "orphan")` is `1 orphan`; of any other number, `orphans`.
pub(crate) fn counted(value: u64, noun: &str) -> String {
    let plural = if value == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(value))
}

/// Bytes in the largest binary unit of which there is at least one: `16.9 GiB`.
pub(crate) fn bytes(value: u64) -> String {
    match value {
        GIB.. => format!("{} GiB", tenths(value, GIB)),
        MIB.. => format!("{} MiB", tenths(value, MIB)),
        KIB.. => format!("{} KiB", tenths(value, KIB)),
        _ => format!("{value} B"),
    }
}

/// Milliseconds in the two units that matter: `420 ms`, `3.2 s`, `12 min`, `3 h 5 min`, `2 d 4 h`.
pub(crate) fn duration(ms: u64) -> String {
    match ms {
        DAY_MS.. => format!("{} d {} h", count(ms / DAY_MS), ms % DAY_MS / HOUR_MS),
        HOUR_MS.. => format!("{} h {} min", ms / HOUR_MS, ms % HOUR_MS / MINUTE_MS),
        MINUTE_MS.. => format!("{} min {} s", ms / MINUTE_MS, ms % MINUTE_MS / SECOND_MS),
        SECOND_MS.. => format!("{} s", tenths(ms, SECOND_MS)),
        _ => format!("{ms} ms"),
    }
}

/// Age of a figure: `0.4 s old`, or that it is unknown.
pub(crate) fn age(ms: Option<u64>) -> String {
    ms.map_or_else(|| "age unknown".to_owned(), |ms| format!("{} old", duration(ms)))
}

/// `part` of `whole` in whole percent: `31 %`; unknown for a part of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let scaled = u128::from(part) * 100 + u128::from(whole) / 2;
    or_unknown(scaled.checked_div(u128::from(whole)), |value| format!("{value} %"))
}

/// A share of one as percent with one decimal: `0.8 %`.
pub(crate) fn share(value: f64) -> String {
    or_unknown(Some(value * 100.0).filter(|value| value.is_finite()), |value| format!("{value:.1} %"))
}

/// A rate with one decimal.
pub(crate) fn rate(value: f64) -> String {
    or_unknown(Some(value).filter(|value| value.is_finite()), |value| format!("{value:.1}"))
}

/// Time of day, UTC: `02:31:19Z`.
pub(crate) fn time_of_day(unix_ms: u64) -> String {
    let seconds = unix_ms / SECOND_MS;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// Date and time, UTC: `2026-11-30 02:31:19Z`.
pub(crate) fn date_and_time(unix_ms: u64) -> String {
    let (year, month, day) = civil_date(unix_ms / DAY_MS);
    format!("{year:04}-{month:02}-{day:02} {}", time_of_day(unix_ms))
}

/// Year, month, day of the `days`-th day after 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", civil_from_days, for days not before 1970).
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days.saturating_add(719_468);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// `value` in units of `unit` with one decimal, rounded down.
fn tenths(value: u64, unit: u64) -> String {
    format!("{}.{}", count(value / unit), u128::from(value % unit) * 10 / u128::from(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn bytes_take_the_largest_unit_that_fits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1_023), "1023 B");
        assert_eq!(bytes(1_536), "1.5 KiB");
        assert_eq!(bytes(80 * GIB), "80.0 GiB");
        assert_eq!(bytes(u64::MAX), "17,179,869,183.9 GiB");
    }

    #[test]
    fn durations_show_two_units() {
        assert_eq!(duration(0), "0 ms");
        assert_eq!(duration(3_250), "3.2 s");
        assert_eq!(duration(90_000), "1 min 30 s");
        assert_eq!(duration(3 * HOUR_MS + 5 * MINUTE_MS), "3 h 5 min");
        assert_eq!(duration(52 * HOUR_MS), "2 d 4 h");
    }

    #[test]
    fn a_share_of_nothing_is_unknown() {
        assert_eq!(percent(1, 3), "33 %");
        assert_eq!(percent(2, 3), "67 %");
        assert_eq!(percent(0, 0), UNKNOWN);
        assert_eq!(share(f64::NAN), UNKNOWN);
    }

    /// Expected values from `date -u -d @SECONDS`.
    #[test]
    fn dates_agree_with_the_calendar() {
        assert_eq!(date_and_time(0), "1970-01-01 00:00:00Z");
        assert_eq!(date_and_time(951_782_399_000), "2000-02-28 23:59:59Z");
        assert_eq!(date_and_time(951_782_400_000), "2000-02-29 00:00:00Z");
        assert_eq!(date_and_time(1_796_005_879_123), "2026-11-30 02:31:19Z");
        assert_eq!(date_and_time(4_107_542_400_000), "2100-03-01 00:00:00Z");
    }
}
