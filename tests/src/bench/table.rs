//! Results as Markdown, ready for README.

use std::{env, fs, io, path::PathBuf, time::Duration};

/// A report of one bench: printed as it grows, written to `target/bench/NAME.md` at the end.
#[derive(Debug)]
pub struct Report {
    name: &'static str,
    text: String,
}

impl Report {
    /// An empty one.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, text: String::new() }
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.add(&format!("{text}\n\n"));
    }

    /// Adds a table: its columns' titles and its rows. The first column is text, the others are figures.
    pub fn table(&mut self, titles: &[&str], rows: &[Vec<String>]) {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let titles: Vec<String> = titles.iter().map(|title| (*title).to_owned()).collect();
        let rule = format!("|---{}|\n", "|---:".repeat(titles.len().saturating_sub(1)));
        let rows: String = rows.iter().map(|row| line(row)).collect();
        self.add(&format!("{}{rule}{rows}\n", line(&titles)));
    }

    fn add(&mut self, text: &str) {
        print!("{text}");
        self.text += text;
    }

    /// Writes it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> io::Result<()> {
        let folder = folder()?;
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(self.name).with_extension("md"), &self.text)
    }
}

/// `target/bench`, beside the bench's own `target/PROFILE/deps/BENCH`.
fn folder() -> io::Result<PathBuf> {
    let bench = env::current_exe()?;
    let target =
        bench.ancestors().nth(3).ok_or_else(|| io::Error::other("a bench lies in target/PROFILE/deps"))?;
    Ok(target.join("bench"))
}

/// `1.23 µs`: three digits that matter, in the largest unit of which there is at least one.
#[must_use]
pub fn time(duration: Duration) -> String {
    let ns = duration.as_nanos();
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", three_digits(ns, 1_000)),
        1_000_000..1_000_000_000 => format!("{} ms", three_digits(ns, 1_000_000)),
        _ => format!("{} s", three_digits(ns, 1_000_000_000)),
    }
}

/// `one / other` with two decimals.
#[must_use]
pub fn ratio(one: Duration, other: Duration) -> String {
    quotient(one.as_nanos(), other.as_nanos())
}

/// `sum / count` with two decimals; `unknown` for a count of zero.
#[must_use]
pub fn quotient(sum: u128, count: u128) -> String {
    let hundredths = (sum.saturating_mul(100) + count / 2).checked_div(count);
    hundredths.map_or_else(|| "unknown".to_owned(), |value| format!("{}.{:02}", value / 100, value % 100))
}

/// Events per second of `time`, as a whole number; `unknown` for no time.
#[must_use]
pub fn per_second(events: usize, time: Duration) -> String {
    let events = u128::try_from(events).unwrap_or(u128::MAX).saturating_mul(1_000_000_000);
    events.checked_div(time.as_nanos()).map_or_else(|| "unknown".to_owned(), |rate| rate.to_string())
}

fn three_digits(value: u128, unit: u128) -> String {
    match value / unit {
        whole @ 0..10 => format!("{whole}.{:02}", value % unit * 100 / unit),
        whole @ 10..100 => format!("{whole}.{}", value % unit * 10 / unit),
        whole => whole.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        assert_eq!(time(Duration::from_nanos(999)), "999 ns");
        assert_eq!(time(Duration::from_nanos(1_239)), "1.23 µs");
        assert_eq!(time(Duration::from_nanos(80_500)), "80.5 µs");
        assert_eq!(time(Duration::from_micros(186_000)), "186 ms");
        assert_eq!(time(Duration::from_secs(2)), "2.00 s");
    }

    #[test]
    fn quotients_are_rounded_and_nothing_by_nothing_is_unknown() {
        assert_eq!(quotient(10, 3), "3.33");
        assert_eq!(quotient(2, 3), "0.67");
        assert_eq!(quotient(0, 0), "unknown");
        assert_eq!(per_second(500, Duration::from_millis(250)), "2000");
    }
}
