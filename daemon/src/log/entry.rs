//! One entry in the journal's native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>): a datagram of fields.

use gpuadmit_core::event::Severity;
use tracing::Level;

/// Longest value of a field, bytes; the rest is cut off.
const MOST_VALUE_BYTES: usize = 4096;
/// Longest name of a field, bytes, by the journal's own rule.
const MOST_NAME_BYTES: usize = 64;
/// Longest entry, bytes: far below what a datagram takes. A field beyond it is left out.
const MOST_BYTES: usize = 64 << 10;

/// How grave an entry is, as syslog(3) counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    Critical = 2,
    Error = 3,
    Warning = 4,
    Informational = 6,
    Debug = 7,
}

impl From<Severity> for Priority {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Informational,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

impl From<&Level> for Priority {
    fn from(level: &Level) -> Self {
        match *level {
            Level::ERROR => Self::Error,
            Level::WARN => Self::Warning,
            Level::INFO => Self::Informational,
            _ => Self::Debug,
        }
    }
}

/// An entry as it is put together.
#[derive(Debug)]
pub(super) struct Entry(Vec<u8>);

impl Entry {
    pub(super) fn new(priority: Priority, message: &str) -> Self {
        let mut entry = Self(Vec::with_capacity(512));
        entry.add("PRIORITY", &(priority as u8).to_string());
        entry.add("SYSLOG_IDENTIFIER", "gpuadmitd");
        entry.add("MESSAGE", message);
        entry
    }

    /// Adds a field. What the journal would not take of a name is replaced or left out.
    pub(super) fn add(&mut self, name: &str, value: &str) {
        let name = field_name(name);
        let value = value.get(..value.floor_char_boundary(MOST_VALUE_BYTES)).unwrap_or_default();
        if name.is_empty() || self.0.len() + name.len() + value.len() + 10 > MOST_BYTES {
            return;
        }
        self.0.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
            self.0.push(b'\n');
            self.0.extend_from_slice(&length.to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(b'\n');
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Capitals, digits and underscores, beginning with a capital: an underscore is for fields that the journal adds.
fn field_name(name: &str) -> String {
    let begun = name.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    let one = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    begun.chars().map(one).take(MOST_NAME_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_several_lines_goes_with_its_length() {
        let mut entry = Entry::new(Priority::Warning, "one");
        entry.add("why", "two\nlines");
        let wanted =
            b"PRIORITY=4\nSYSLOG_IDENTIFIER=gpuadmitd\nMESSAGE=one\nWHY\n\x09\0\0\0\0\0\0\0two\nlines\n";
        assert_eq!(entry.bytes(), wanted);
    }

    #[test]
    fn names_are_such_as_the_journal_takes() {
        assert_eq!(field_name("_log.target-1"), "LOG_TARGET_1");
        assert_eq!(field_name("9_"), "");
        assert_eq!(field_name(&"a".repeat(70)).len(), 64);
    }

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        let mut entry = Entry::new(Priority::Warning, &"é".repeat(3000));
        assert!(entry.bytes().len() < 4096 + 50);
        assert!(String::from_utf8(entry.bytes().to_vec()).unwrap().contains("é\n"));
        (0..100).for_each(|_| entry.add("more", &"a".repeat(5000)));
        assert!(entry.bytes().len() <= MOST_BYTES);
    }
}
