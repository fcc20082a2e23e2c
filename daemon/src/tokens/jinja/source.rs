//! A template's text, before it is parsed.

use std::borrow::Cow;

use minijinja::{
    Error,
    machinery::{Span, Token, WhitespaceConfig, tokenize},
};

use super::unlike;

/// How Jinja treats blanks in a chat template.
pub(super) const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };

/// `source` with the line ends that Jinja gives it, and `{% generation %}` as the scope that it opens there.
pub(super) fn normalized(source: &str) -> Result<String, Error> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    // Python takes these for blanks; and the line end after `{% raw %}` stays there.
    if source.contains(['\u{1c}', '\u{1d}', '\u{1e}', '\u{1f}']) || source.contains("endraw") {
        return Err(unlike());
    }
    let mut text = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some((before, tag)) = rest.split_once("{%") {
        text.push_str(before);
        let length = tag.find("%}").unwrap_or(tag.len());
        let (inside, after) = tag.split_at(length);
        text.push_str("{%");
        text.push_str(&match inside.trim_matches(['-', '+']).trim() {
            "generation" => Cow::Owned(inside.replace("generation", "with")),
            "endgeneration" => Cow::Owned(inside.replace("endgeneration", "endwith")),
            _ => Cow::Borrowed(inside),
        });
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// Of the escapes in texts, only those that Python and minijinja read alike.
pub(super) fn check_escapes(source: &str) -> Result<(), Error> {
    for token in tokenize(source, false, Default::default(), WHITESPACE) {
        let (Token::String(_), span) = token? else { continue };
        let mut letters = source.get(between(span)).unwrap_or_default().chars();
        while let Some(letter) = letters.next() {
            if letter != '\\' {
                continue;
            }
            let code = |digits: Option<&str>| u32::from_str_radix(digits?, 16).ok();
            let alike = match letters.next() {
                Some('\\' | '\'' | '"' | 'b' | 'f' | 'n' | 'r' | 't') => true,
                Some('x') => code(letters.as_str().get(..2)).is_some(),
                Some('u') => {
                    code(letters.as_str().get(..4)).is_some_and(|code| char::from_u32(code).is_some())
                }
                _ => false,
            };
            if !alike {
                return Err(unlike());
            }
        }
    }
    Ok(())
}

/// Where something stands in the text.
pub(super) fn between(span: Span) -> std::ops::Range<usize> {
    let at = |offset: u32| usize::try_from(offset).unwrap_or(usize::MAX);
    at(span.start_offset)..at(span.end_offset)
}
