//! Where text goes: its colours, and how wide it may be.

use super::{
    paint::{Mood, Paint},
    text::{WIDTH, columns, fitted, safe},
};

/// Narrower screens are written as if they were this wide, columns.
const LEAST_COLUMNS: usize = 40;
/// Columns that a field has beside its label at least.
const LEAST_FIELD: usize = 16;

/// Where text goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Canvas {
    paint: Paint,
    columns: usize,
}

impl Canvas {
    /// Without colour, [`WIDTH`] columns wide.
    pub(crate) const PLAIN: Self = Self { paint: Paint::Plain, columns: WIDTH };

    /// A canvas of this width.
    pub(crate) fn new(paint: Paint, columns: usize) -> Self {
        Self { paint, columns: columns.max(LEAST_COLUMNS) }
    }

    /// Columns of a line.
    pub(crate) const fn columns(self) -> usize {
        self.columns
    }

    /// `text` in the colour of `mood`.
    pub(crate) fn text(self, mood: Mood, text: &str) -> String {
        self.paint.text(mood, text)
    }

    /// `fields` that are not empty one after the other, with `separator` between them, in lines that fit. A line is
    /// broken only between fields; a field that is wider than a line is cut. The first line begins with `label`, the
    /// others are indented by its width.
    pub(crate) fn flow(self, label: &str, separator: &str, fields: &[String]) -> String {
        self.flow_indented(label, columns(label), separator, fields)
    }

    /// [`Self::flow`] with `indent` columns before every line but the first.
    pub(crate) fn flow_indented(
        self,
        label: &str,
        indent: usize,
        separator: &str,
        fields: &[String],
    ) -> String {
        // A line that goes on ends with the separator's visible part.
        let limit = self.columns.saturating_sub(separator.trim_end().len());
        let room = limit.saturating_sub(indent).max(LEAST_FIELD);
        let mut text = label.to_owned();
        let mut column = columns(label);
        let mut first = true;
        for field in fields.iter().filter(|field| !field.is_empty()) {
            let field = if columns(field) > room { fitted(field, room) } else { field.clone() };
            let gap = if first { 0 } else { separator.len() };
            if column + gap + columns(&field) > limit && column > indent {
                text.truncate(text.trim_end().len());
                text.push_str(if first { "" } else { separator.trim_end() });
                text.push('\n');
                text.push_str(&" ".repeat(indent));
                column = indent;
            } else if !first {
                text.push_str(separator);
                column += gap;
            }
            first = false;
            column += columns(&field);
            text.push_str(&field);
        }
        text.push('\n');
        text
    }

    /// A sentence from another program, wrapped between its words; nothing where it is empty.
    pub(crate) fn sentence(self, label: &str, text: &str) -> String {
        let words: Vec<String> = text.split_whitespace().map(safe).collect();
        if words.is_empty() { String::new() } else { self.flow(label, " ", &words) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_fields_and_stay_within_the_screen() {
        let fields: Vec<String> = (0..30).map(|i| format!("field-{i:02}")).collect();
        for columns in [40, 60, 80, 132, 200] {
            let canvas = Canvas::new(Paint::Plain, columns);
            let text = canvas.flow("  label  ", ", ", &fields);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            // The next field would not have fitted.
            assert!(widest <= columns && widest + 10 > columns.min(30 * 10), "{columns}: {text}");
            assert_eq!(text.matches("field-").count(), 30);
            assert!(text.lines().nth(1).unwrap().starts_with("         field-"), "{text}");
            assert_eq!(canvas.flow("  ", " ", &["x".repeat(300)]).trim_end().chars().count(), columns);
        }
    }

    #[test]
    fn a_label_wider_than_the_screen_leaves_room_for_the_field() {
        let canvas = Canvas::new(Paint::Plain, 10);
        assert_eq!(canvas.columns(), 40);
        let text = canvas.flow(&"l".repeat(50), " ", &["first".into(), "second".into()]);
        assert!(text.contains("first") && text.contains("second"), "{text}");
        // What does not fit beside its label stands below it.
        let label = "l".repeat(36) + " ";
        let text = canvas.flow_indented(&label, 4, " ", &["first".into(), "second".into()]);
        assert_eq!(text, format!("{}\n    first second\n", "l".repeat(36)));
    }
}
