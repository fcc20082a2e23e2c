//! What each kind of event means and what to do about it: the texts of the journal's catalog.

const CATALOG: &str = include_str!("../../systemd/gpuadmit.catalog");

/// The entry of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The kind, as in `Event.kind`.
    pub(crate) kind: &'static str,
    pub(crate) severity: &'static str,
    /// `MESSAGE_ID` in the journal.
    pub(crate) message_id: &'static str,
    /// Paragraphs: what it means, "Evidence: …", "What to do: …", "How it ends: …".
    pub(crate) text: &'static str,
}

impl Entry {
    /// The paragraphs, each with its heading; that of the first is empty.
    pub(crate) fn paragraphs(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.text.split("\n\n").enumerate().map(|(index, paragraph)| match paragraph.split_once(": ") {
            Some((heading, text)) if index > 0 => (heading, text),
            _ => ("", paragraph),
        })
    }
}

/// All of them, in the order of the core's list.
pub(crate) fn entries() -> impl Iterator<Item = Entry> {
    CATALOG.split("\n\n# ").skip(1).filter_map(|part| {
        let (title, rest) = part.split_once("\n-- ")?;
        let (kind, severity) = title.split_once(", ")?;
        let (message_id, rest) = rest.split_once('\n')?;
        let (_headers, text) = rest.split_once("\n\n")?;
        Some(Entry { kind, severity, message_id, text: text.trim_end() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_the_catalog_is_read() {
        assert_eq!(entries().count(), CATALOG.lines().filter(|line| line.starts_with("-- ")).count());
        let down = entries().find(|entry| entry.kind == "ENGINE_DOWN").unwrap();
        assert_eq!((down.severity, down.message_id), ("critical", "f55ec50096c448bc855268b17ad13ff0"));
        let headings: Vec<_> = down.paragraphs().map(|(heading, _)| heading).collect();
        assert_eq!(headings, ["", "Evidence", "What to do", "How it ends"]);
        assert!(down.text.starts_with("It ended without being asked to."));
    }
}
