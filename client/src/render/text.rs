//! Text that is safe to show and fits where it goes, whatever it contains.

use super::canvas::Canvas;

/// Columns where nothing is known of the screen.
pub(crate) const WIDTH: usize = 80;

/// `text` without anything that a terminal would obey: names and messages come from other programs.
pub(crate) fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_format_control(c) { '\u{fffd}' } else { c }).collect()
}

/// `text`, safe and at most `columns` wide; what is cut off shows as `…`.
pub(crate) fn fitted(text: &str, columns: usize) -> String {
    let text = safe(text);
    if text.chars().count() <= columns {
        return text;
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// [`Canvas::flow`] in lines of [`WIDTH`] columns.
pub(crate) fn flow(label: &str, separator: &str, fields: &[String]) -> String {
    Canvas::PLAIN.flow(label, separator, fields)
}

/// [`Canvas::sentence`] in lines of [`WIDTH`] columns.
pub(crate) fn sentence(label: &str, text: &str) -> String {
    Canvas::PLAIN.sentence(label, text)
}

/// A bar of `width` columns in which each part of `whole` has its share, drawn with its character; the rest is dots.
pub(crate) fn bar(parts: &[(char, u64)], whole: u64, width: usize) -> String {
    let mut text = String::from("[");
    let mut sum: u64 = 0;
    let mut drawn: usize = 0;
    for (mark, part) in parts {
        sum = sum.saturating_add(*part);
        let end = scaled(sum.min(whole), whole, width);
        text.extend(std::iter::repeat_n(*mark, end.saturating_sub(drawn)));
        drawn = drawn.max(end);
    }
    text.extend(std::iter::repeat_n('.', width.saturating_sub(drawn)));
    text.push(']');
    text
}

/// `part` of `whole` on a scale of `width`, rounded; 0 when there is no whole.
fn scaled(part: u64, whole: u64, width: usize) -> usize {
    let (part, whole, scale) = (u128::from(part), u128::from(whole), width as u128);
    let columns = (part * scale + whole / 2).checked_div(whole).unwrap_or(0);
    usize::try_from(columns).unwrap_or(width)
}

/// Columns that `text` takes on the screen; colour takes none.
pub(super) fn columns(text: &str) -> usize {
    let mut count = 0;
    let mut in_escape = false;
    for c in text.chars() {
        match (in_escape, c) {
            (false, '\x1b') => in_escape = true,
            (true, 'm') => in_escape = false,
            (true, _) => {}
            (false, _) => count += 1,
        }
    }
    count
}

/// Characters that reorder or hide text (bidirectional controls, zero-width marks).
fn is_format_control(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_of_others_never_reach_the_terminal() {
        assert_eq!(safe("a\x1b[2Jb\nc\u{202e}d"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d");
    }

    #[test]
    fn long_text_is_cut_with_a_mark() {
        assert_eq!(fitted("abcdef", 6), "abcdef");
        assert_eq!(fitted("abcdefg", 6), "abcde…");
    }

    #[test]
    fn colour_takes_no_columns() {
        assert_eq!(columns("\x1b[1;31mdown\x1b[0m!"), 5);
    }

    #[test]
    fn a_bar_shows_shares() {
        assert_eq!(bar(&[('E', 50), ('C', 25)], 100, 8), "[EEEECC..]");
        assert_eq!(bar(&[('E', 500)], 100, 4), "[EEEE]");
        assert_eq!(bar(&[('E', 5)], 0, 4), "[....]");
        assert_eq!(bar(&[('E', u64::MAX), ('C', u64::MAX)], u64::MAX, 4), "[EEEE]");
    }
}
