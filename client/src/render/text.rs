//! Text that fits 80 columns, whatever it contains.

/// Columns of the screen.
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

/// `fields` that are not empty one after the other, with `separator` between them, in lines of at most 80 columns. A line is broken only
/// between fields; a field that is wider than a line is cut. The first line begins with `label`, the others are
/// indented by its width.
pub(crate) fn flow(label: &str, separator: &str, fields: &[String]) -> String {
    let indent = columns(label);
    // A line that goes on ends with the separator's visible part.
    let limit = WIDTH - separator.trim_end().len();
    let mut text = label.to_owned();
    let mut column = indent;
    let mut first = true;
    for field in fields.iter().filter(|field| !field.is_empty()) {
        let field =
            if columns(field) > limit - indent { fitted(field, limit - indent) } else { field.clone() };
        if first {
            first = false;
        } else if column + separator.len() + columns(&field) > limit {
            text.push_str(separator.trim_end());
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        } else {
            text.push_str(separator);
            column += separator.len();
        }
        column += columns(&field);
        text.push_str(&field);
    }
    text.push('\n');
    text
}

/// A sentence from another program, wrapped between its words; nothing where it is empty.
pub(crate) fn sentence(label: &str, text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(safe).collect();
    if words.is_empty() { String::new() } else { flow(label, " ", &words) }
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
fn columns(text: &str) -> usize {
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
    fn lines_break_between_fields_and_stay_within_80_columns() {
        let fields: Vec<String> = (0..30).map(|i| format!("field-{i:02}")).collect();
        let text = flow("  label  ", ", ", &fields);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("field-").count(), 30);
        assert!(text.lines().nth(1).unwrap().starts_with("         field-"), "{text}");
        let wide = flow("  ", " ", &["x".repeat(200)]);
        assert_eq!(wide.trim_end().chars().count(), WIDTH);
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
