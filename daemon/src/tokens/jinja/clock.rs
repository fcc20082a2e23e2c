//! `strftime_now`: today's date, in UTC, as templates put it into a system prompt.

use std::time::SystemTime;

const DAY: u64 = 86_400;
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The present time by `format` of strftime(3). `None`: it has what is not known here.
pub(super) fn now(format: &str) -> Option<String> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    at(format, since.as_secs())
}

fn at(format: &str, seconds: u64) -> Option<String> {
    let (year, month, day) = date(seconds / DAY);
    let month_name =
        usize::try_from(month.saturating_sub(1)).ok().and_then(|at| MONTHS.get(at)).unwrap_or(&"");
    let weekday = usize::try_from(seconds / DAY % 7).ok().and_then(|at| WEEKDAYS.get(at)).unwrap_or(&"");
    let short = |name: &str| name.chars().take(3).collect::<String>();
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => text += &format!("{year:04}"),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('B') => text += month_name,
            Some('b') => text += &short(month_name),
            Some('A') => text += weekday,
            Some('a') => text += &short(weekday),
            Some('H') => text += &format!("{:02}", seconds / 3600 % 24),
            Some('M') => text += &format!("{:02}", seconds / 60 % 60),
            Some('S') => text += &format!("{:02}", seconds % 60),
            _ => return None,
        }
    }
    Some(text)
}

/// Year, month, day of the `days`-th day after 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", civil_from_days).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days.saturating_add(719_468);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `date -u -d @1796005879`.
    #[test]
    fn dates_are_written_as_templates_want_them() {
        let at = |format, seconds| at(format, seconds).unwrap_or_default();
        assert_eq!(at("%d %b %Y", 1_796_005_879), "30 Nov 2026");
        assert_eq!(at("%A, %B %d %y %H:%M:%S", 1_796_005_879), "Monday, November 30 26 02:31:19");
        assert_eq!(at("%Y-%m-%d %a", 951_782_400), "2000-02-29 Tue");
        assert_eq!(at("%q", 0), "");
    }
}
