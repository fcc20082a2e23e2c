//! The options of vLLM's server, and which of them a word means by the rules of Python's argparse.

use std::{collections::BTreeMap, sync::LazyLock};

/// Written by `tests/vllm/options.py` from the parser of vLLM 0.32.0.
const TABLE: &str = include_str!("options-0.32.0.txt");

static OPTIONS: LazyLock<BTreeMap<&str, Spelling>> = LazyLock::new(|| {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(option).flatten().collect()
});

/// One spelling of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spelling {
    /// The option's name without its hyphens, as in `gpu-memory-utilization`.
    pub name: &'static str,
    pub takes: Takes,
}

/// How many words follow an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// None: this spelling switches it on or off.
    Nothing {
        on: bool,
    },
    One,
    AtMostOne,
    /// One or more.
    Many,
}

/// What a word of a command line is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// A value or a positional argument.
    Value,
    /// An option, with the value in the same word.
    Option(Spelling, Option<&'a str>),
    /// An option that vLLM 0.32 does not have, or an abbreviation of several.
    Unknown,
}

/// A line of the table: what it takes, then its spellings.
fn option(line: &'static str) -> Option<Vec<(&'static str, Spelling)>> {
    let mut words = line.split(' ');
    let takes = words.next()?;
    let spellings: Vec<&str> = words.collect();
    let name = spellings.first()?.trim_start_matches('-');
    let spelling = |text: &'static str| {
        let takes = match takes {
            "0" => Takes::Nothing { on: !text.starts_with("--no-") },
            "1" => Takes::One,
            "?" => Takes::AtMostOne,
            "+" => Takes::Many,
            _ => return None,
        };
        Some((text, Spelling { name, takes }))
    };
    spellings.into_iter().map(spelling).collect()
}

/// What a word is (CPython 3.11, argparse.py, `_parse_optional`).
pub(super) fn word(word: &str) -> Word<'_> {
    if !word.starts_with('-') || word.len() == 1 {
        return Word::Value;
    }
    if let Some(spelling) = OPTIONS.get(word) {
        return Word::Option(*spelling, None);
    }
    let parts = word.split_once('=');
    if let Some((name, value)) = parts
        && let Some(spelling) = OPTIONS.get(name)
    {
        return Word::Option(*spelling, Some(value));
    }
    match candidates(word, parts).as_slice() {
        [(spelling, value)] => Word::Option(*spelling, *value),
        [] if is_number(word) || word.contains(' ') => Word::Value,
        _ => Word::Unknown,
    }
}

/// The options that a word may abbreviate; of a short one, also that with its value in the same word, as in `-n2`.
fn candidates<'a>(word: &'a str, parts: Option<(&'a str, &'a str)>) -> Vec<(Spelling, Option<&'a str>)> {
    let (prefix, value) = match parts {
        Some((name, value)) if word.starts_with("--") => (name, Some(value)),
        _ => (word, None),
    };
    let long = OPTIONS.range(prefix..).take_while(|(name, _)| name.starts_with(prefix));
    let mut found: Vec<_> = long.map(|(_, spelling)| (*spelling, value)).collect();
    if !word.starts_with("--")
        && let Some((short, rest)) = word.char_indices().nth(2).and_then(|(at, _)| word.split_at_checked(at))
        && let Some(spelling) = OPTIONS.get(short)
    {
        found.push((*spelling, Some(rest)));
    }
    found
}

/// Whether it is a negative number, which is a value: vLLM has no option like it.
fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    let (whole, part) = digits.split_once('.').map_or((digits, None), |(whole, part)| (whole, Some(part)));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    match part {
        Some(part) => !part.is_empty() && all_digits(whole) && all_digits(part),
        None => !whole.is_empty() && all_digits(whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Option<(&str, Option<&str>)> {
        match word(text) {
            Word::Option(spelling, value) => Some((spelling.name, value)),
            Word::Value | Word::Unknown => None,
        }
    }

    #[test]
    fn a_word_means_what_argparse_takes_it_for() {
        for (text, expected) in [
            ("--port", Some(("port", None))),
            ("--po=1", None), // --port, --pooler-config
            ("--por=1", Some(("port", Some("1")))),
            ("--gpu-memory-util", Some(("gpu-memory-utilization", None))),
            ("--device-mem=0.5", Some(("gpu-memory-utilization", Some("0.5")))),
            ("--max-model", Some(("max-model-len", None))),
            ("--max-num", None),
            ("--max-num-s", None), // --max-num-seqs, --max-num-scheduled-tokens
            ("--max-num-se", Some(("max-num-seqs", None))),
            // Exact, though it begins another.
            ("--model", Some(("model", None))),
            ("-tp", Some(("tensor-parallel-size", None))),
            ("-tp=2", Some(("tensor-parallel-size", Some("2")))),
            ("-t", Some(("tensor-parallel-size", None))),
            ("-dp", Some(("data-parallel-size", None))),
            ("-d", None),
            ("-n2", Some(("nnodes", Some("2")))),
            ("-tp2", None),
            ("-5", None),
            ("-", None),
            ("x", None),
        ] {
            assert_eq!(named(text), expected, "{text}");
        }
        assert_eq!(word("-5"), Word::Value);
        assert_eq!(word("-.5"), Word::Value);
        assert_eq!(word("-x y"), Word::Value);
        assert_eq!(word("--max-num"), Word::Unknown);
        assert_eq!(word("--swap-space"), Word::Unknown);
        assert_eq!(word("-é"), Word::Unknown);
        let off = Spelling { name: "enable-lora", takes: Takes::Nothing { on: false } };
        assert_eq!(word("--no-enable-lora"), Word::Option(off, None));
    }
}
