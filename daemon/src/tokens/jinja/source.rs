//! A template's text, before it is parsed.

use std::borrow::Cow;

use minijinja::{
    Error,
    machinery::{Span, Token, WhitespaceConfig, tokenize},
};

use super::{too_long, unlike};

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

/// Most tokens of one tag: minijinja nests an expression one level deeper for an operator, without a bound of its own.
const MAX_TAG_TOKENS: u32 = 1000;
/// Most `elif` of a template: likewise one level each.
const MAX_ELIFS: u32 = 500;

/// Before parsing: of the escapes in texts, only those that Python and minijinja read alike, and no deeper nesting than
/// the stack holds.
pub(super) fn check_tokens(source: &str) -> Result<(), Error> {
    let (mut in_tag, mut elifs) = (0, 0);
    for token in tokenize(source, false, Default::default(), WHITESPACE) {
        let (token, span) = token?;
        in_tag = if matches!(token, Token::BlockStart | Token::VariableStart) { 0 } else { in_tag + 1 };
        elifs += u32::from(matches!(token, Token::Ident("elif")));
        if in_tag > MAX_TAG_TOKENS || elifs > MAX_ELIFS {
            return Err(too_long());
        }
        let Token::String(_) = token else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nests_deeper_than_the_stack_holds_is_refused_before_it_is_parsed() {
        for deep in [
            format!("{{{{ x{} }}}}", "|a".repeat(200_000)),
            format!("{{{{ 1{} }}}}", "+1".repeat(200_000)),
            format!("{{{{ {}x }}}}", "not ".repeat(200_000)),
            format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(200_000)),
        ] {
            assert!(super::super::compile::compile(&deep).is_err());
        }
        assert!(check_tokens(&"{{ x|a }}".repeat(10_000)).is_ok());
    }

    #[test]
    fn the_deepest_that_is_parsed_fits_the_stack_of_the_counting_thread() {
        let parse = || {
            for deep in ["not ", "-"] {
                let _ = super::super::compile::compile(&format!("{{{{ {}x }}}}", deep.repeat(990)));
            }
            let elifs = "{% elif b %}".repeat(490);
            let _ = super::super::compile::compile(&format!("{{% if a %}}{elifs}{{% endif %}}"));
        };
        let thread = std::thread::Builder::new().stack_size(crate::tokens::STACK_BYTES).spawn(parse);
        thread.unwrap().join().unwrap();
    }
}
