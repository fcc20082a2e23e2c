//! gpuadmit-events(7), from the journal's catalog.

use crate::catalog::{self, Entry};

/// All above the kinds.
const HEAD: &str = include_str!("events.head.7");
const TAIL: &str = "\
.SH SEE ALSO
.BR gpuadmit (1),
.BR gpuadmit\\-events (1),
.BR gpuadmitd (8),
.BR gpuadmit.toml (5),
.BR journalctl (1)
";

/// The page.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    catalog::entries().for_each(|entry| page += &section(entry));
    page + TAIL
}

fn section(entry: Entry) -> String {
    let Entry { kind, severity, message_id, .. } = entry;
    let mut section = format!(".SS {kind}\n.IR {severity} ,\nMESSAGE_ID={message_id}\n");
    for (heading, text) in entry.paragraphs() {
        section += if heading.is_empty() { ".PP\n" } else { ".TP\n" };
        if !heading.is_empty() {
            section += &format!(".B {heading}\n");
        }
        section += &roff(text);
    }
    section
}

/// `text` with a field's name in italics, commands in bold, and dashes that can be copied.
fn roff(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        // A control character at the beginning of a line would be a request.
        if line.starts_with(['.', '\'']) {
            out += "\\&";
        }
        out += &line.replace('\\', "\\e").replace('-', "\\-");
        out.push('\n');
    }
    alternate(&alternate(&out, '@', "\\fI"), '`', "\\fB")
}

/// Every other `mark` begins a font, those between end it.
fn alternate(text: &str, mark: char, font: &str) -> String {
    let fonts = [font, "\\fR"].into_iter().cycle();
    let mut parts = text.split(mark);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.zip(fonts).fold(first, |text, (part, font)| text + font + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_be_mistaken_for_requests() {
        assert_eq!(roff(".1 of\n'x' a\\b"), "\\&.1 of\n\\&'x' a\\eb\n");
        assert_eq!(
            roff("of @ENGINE@: `a --b` and `c`"),
            "of \\fIENGINE\\fR: \\fBa \\-\\-b\\fR and \\fBc\\fR\n"
        );
    }
}
