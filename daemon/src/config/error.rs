//! Why there is no configuration, for a terminal and for a line of a log.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{Config, MAX_FILE_BYTES, Problems, check::cut};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is too large to be one.
    #[error("{path}: it is too large; at most {MAX_FILE_BYTES} bytes")]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// It is no TOML, has an unknown key, or a value of another type.
    #[error("{path}: {excerpt}{hint}")]
    Parse {
        /// Which.
        path: PathBuf,
        /// Number of the line, from 1; 0 where it is not known.
        line: usize,
        /// What, in a sentence.
        message: String,
        /// Where and what, with the line of the file.
        excerpt: String,
        /// What may have been meant; empty where nobody knows.
        hint: String,
    },
    /// Values are out of their range.
    #[error("{0}")]
    Check(#[from] Problems),
}

impl ConfigError {
    /// That `text` of the file at `path` does not parse.
    pub(super) fn parse(path: &Path, text: &str, source: &toml::de::Error) -> Self {
        let line = source.span().map_or(0, |span| line_of(text, span.start));
        let hint = quoted(text, line).map(|quoted| format!("a text stands in quotes: {quoted}"));
        Self::Parse {
            path: path.to_owned(),
            line,
            message: shown(&source.message().replace('\n', ", ")),
            excerpt: source.to_string().lines().map(|line| shown(line) + "\n").collect(),
            hint: hint.unwrap_or_default(),
        }
    }

    /// The same in one line, without the excerpt of the file.
    #[must_use]
    pub fn in_one_line(&self) -> String {
        match self {
            Self::Parse { path, line, message, hint, .. } => {
                let place = if *line == 0 { String::new() } else { format!(" line {line}:") };
                let hint = if hint.is_empty() { String::new() } else { format!("; {hint}") };
                format!("{}:{place} {message}{hint}", path.display())
            }
            Self::Check(problems) => {
                problems.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(". ")
            }
            Self::Read { .. } | Self::TooLarge { .. } => self.to_string(),
        }
    }
}

/// A line of the file or of an error, cut, without what a terminal would obey.
fn shown(line: &str) -> String {
    cut(line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect())
}

/// Number of the line with byte `at`, from 1.
fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    before.filter(|byte| **byte == b'\n').count().saturating_add(1)
}

/// Line `number` with its value in quotes, where these are all that it lacks.
fn quoted(text: &str, number: usize) -> Option<String> {
    let index = number.checked_sub(1)?;
    let (key, value) = text.lines().nth(index)?.split_once('=')?;
    // Who forgot the quotes may mean a # that no space stands before.
    let value = value.split_once(" #").map_or(value, |(value, _)| value).trim();
    if value.is_empty() || value.contains(['"', '\'', '[', '{']) {
        return None;
    }
    let quoted = format!("{} = {value:?}", key.trim());
    let mended: Vec<&str> =
        text.lines().enumerate().map(|(i, line)| if i == index { &quoted } else { line }).collect();
    let mended = mended.join("\n");
    let still = toml::from_str::<Config>(&mended).err().and_then(|error| error.span());
    still.is_none_or(|span| line_of(&mended, span.start) != number).then_some(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> ConfigError {
        let source = toml::from_str::<Config>(text).unwrap_err();
        ConfigError::parse(Path::new("/c"), text, &source)
    }

    #[test]
    fn a_text_without_quotes_is_shown_with_them() {
        for (line, meant) in [
            ("mode=0660", "mode = \"0660\""),
            ("mode = 660 # octal", "mode = \"660\""),
            ("path = /run/x.sock", "path = \"/run/x.sock\""),
            ("group = inference", "group = \"inference\""),
            ("path = /run/a#b.sock # ours", "path = \"/run/a#b.sock\""),
        ] {
            let error = of(&format!("[socket]\n{line}\n[log]\nlevel = \"info\"\n"));
            let hint = format!("a text stands in quotes: {meant}");
            assert!(error.to_string().ends_with(&hint), "{error}");
            let line = error.in_one_line();
            assert!(line.starts_with("/c: line 2: ") && line.ends_with(&hint), "{line}");
        }
    }

    #[test]
    fn what_quotes_do_not_mend_gets_no_hint() {
        for text in [
            "[admission]\nceiling = high\n",
            "[socket]\npth = 7\n",
            "[socket]\nmode = \"0660\n",
            "[limits]\nconnections = -1\n",
            "[socket\n",
        ] {
            let error = of(text).in_one_line();
            assert!(!error.contains("quotes:"), "{error}");
        }
    }

    #[test]
    fn lines_of_the_file_are_cut_and_cannot_command_a_terminal() {
        let error = of(&format!("[socket]\nmode = \"\u{1b}[2J{}\"\n", "x".repeat(5_000)));
        for text in [error.to_string(), error.in_one_line()] {
            assert!(
                !text.contains('\u{1b}') && text.lines().all(|line| line.chars().count() < 140),
                "{text}"
            );
        }
    }

    #[test]
    fn every_error_has_a_form_of_one_line() {
        let problems = toml::from_str::<Config>("[limits]\nconnections = 0\nworkers = 0\n").unwrap().check();
        let check = ConfigError::from(problems.unwrap_err()).in_one_line();
        assert!(check.starts_with("limits.connections: 0 is not allowed; "), "{check}");
        assert!(check.contains(". limits.workers: 0 is not allowed; "), "{check}");
        let read = Config::load(Path::new("/nonexistent")).unwrap_err().in_one_line();
        for line in [check, read, of("[socket]\npth = 7\n").in_one_line(), of("= 1").in_one_line()] {
            assert!(!line.contains('\n'), "{line}");
        }
    }
}
