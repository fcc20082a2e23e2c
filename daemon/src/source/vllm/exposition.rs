//! The Prometheus text format (0.0.4 and 1.0.0), read line by line from bytes. Nothing is allocated: of a line only
//! the name is looked at until somebody asks for its labels and value.
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

/// Longest line believed; vLLM's longest (`cache_config_info`) has about 1 KiB.
pub const MAX_LINE_BYTES: usize = 16 * 1024;
/// Most labels of a sample; `cache_config_info` has about 40.
pub const MAX_LABELS: usize = 128;
/// Longest name or value of a label.
pub const MAX_LABEL_BYTES: usize = 1024;

/// Why a line was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The body ends inside the line: what is left of a number may be another number.
    #[error("the last line has no end")]
    Unterminated,
    /// Longer than [`MAX_LINE_BYTES`].
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    LineTooLong,
    /// No metric name where one must be.
    #[error("a line does not begin with a metric name")]
    Name,
    /// Labels that do not parse, are more than [`MAX_LABELS`] or longer than [`MAX_LABEL_BYTES`].
    #[error("labels are malformed, more than {MAX_LABELS} or longer than {MAX_LABEL_BYTES} bytes")]
    Labels,
    /// No number where the value must be.
    #[error("a value is no number")]
    Value,
}

/// One sample, its labels and value not yet read.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Name with its suffix, such as `vllm:prompt_tokens_total`.
    pub name: &'a [u8],
    rest: &'a [u8],
}

/// The samples of a body, in its order. Comments and empty lines are skipped.
pub fn lines(body: &[u8]) -> impl Iterator<Item = Result<Line<'_>, Fault>> {
    body.split_inclusive(|byte| *byte == b'\n').filter_map(|raw| {
        let Some(text) = raw.strip_suffix(b"\n") else { return Some(Err(Fault::Unterminated)) };
        let text = text.trim_ascii();
        match text.first() {
            None | Some(b'#') => None,
            Some(_) if text.len() > MAX_LINE_BYTES => Some(Err(Fault::LineTooLong)),
            Some(_) => Some(Line::new(text)),
        }
    })
}

impl<'a> Line<'a> {
    fn new(text: &'a [u8]) -> Result<Self, Fault> {
        let (name, rest) = split_name(text).ok_or(Fault::Name)?;
        match rest.first() {
            Some(b'{' | b' ' | b'\t') => Ok(Self { name, rest }),
            _ => Err(Fault::Name),
        }
    }

    /// Hands every label (name, raw value with escapes as they are) to `visit` and returns the value, which may be
    /// NaN or infinite.
    ///
    /// # Errors
    /// [`Fault::Labels`] or [`Fault::Value`]; `visit` may have been called by then.
    pub fn read(&self, mut visit: impl FnMut(&'a [u8], &'a [u8])) -> Result<f64, Fault> {
        let rest = match self.rest.strip_prefix(b"{") {
            Some(inside) => labels(inside, &mut visit).ok_or(Fault::Labels)?,
            None => self.rest,
        };
        value(rest).ok_or(Fault::Value)
    }
}

/// A number as the format writes it, `+Inf` and `NaN` included.
#[must_use]
pub fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Splits a leading metric or label name from what follows.
fn split_name(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    let end = text.iter().position(|byte| !part(byte)).unwrap_or(text.len());
    if end == 0 || text.first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    text.split_at_checked(end)
}

/// Visits `a="1",b="2"}` and returns what follows the brace.
fn labels<'a>(inside: &'a [u8], visit: &mut impl FnMut(&'a [u8], &'a [u8])) -> Option<&'a [u8]> {
    let mut rest = inside.trim_ascii_start();
    for _ in 0..=MAX_LABELS {
        if let Some(after) = rest.strip_prefix(b"}") {
            return Some(after);
        }
        let (name, after) = split_name(rest)?;
        let quoted = after.trim_ascii_start().strip_prefix(b"=")?.trim_ascii_start().strip_prefix(b"\"")?;
        let (value, after) = quoted.split_at_checked(closing_quote(quoted)?)?;
        if name.len() > MAX_LABEL_BYTES || value.len() > MAX_LABEL_BYTES {
            return None;
        }
        visit(name, value);
        rest = after.strip_prefix(b"\"")?.trim_ascii_start();
        rest = match rest.strip_prefix(b",") {
            Some(next) => next.trim_ascii_start(),
            None if rest.starts_with(b"}") => rest,
            None => return None,
        };
    }
    None
}

/// Position of the quote that ends a label value; a backslash escapes what follows it.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })
}

/// The value, behind it at most a timestamp or an exemplar.
fn value(text: &[u8]) -> Option<f64> {
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let value = number(words.next()?)?;
    match words.next() {
        None | Some(b"#") => Some(value),
        Some(timestamp) => number(timestamp).map(|_| value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Sample = (String, Vec<(String, String)>, f64);

    fn read(line: &str) -> Result<Sample, Fault> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let line = lines(line.as_bytes()).next().expect("a sample")?;
        let mut labels = vec![];
        let value = line.read(|name, value| labels.push((text(name), text(value))))?;
        Ok((text(line.name), labels, value))
    }

    #[test]
    fn a_sample_is_name_labels_and_value() {
        let (name, labels, value) = read("vllm:a_total{engine=\"0\",le=\"+Inf\"} 1.5e+02\n").unwrap();
        assert_eq!(name, "vllm:a_total");
        assert_eq!(labels, [("engine".into(), "0".into()), ("le".into(), "+Inf".into())]);
        assert!((value - 150.0).abs() < f64::EPSILON);
    }

    #[test]
    fn spaces_escapes_timestamps_and_exemplars_are_understood() {
        assert_eq!(
            read("a{ b = \"x\\\"},\\\\\" , } 3 1700000000\n").unwrap().1,
            [("b".into(), "x\\\"},\\\\".into())]
        );
        assert_eq!(read("a 3 # {t=\"1\"} 0.5\n").unwrap().2, 3.0);
        assert_eq!(read("a{}\t3\r\n").unwrap().2, 3.0);
    }

    #[test]
    fn what_is_no_sample_is_a_fault() {
        for (line, fault) in [
            ("a 1", Fault::Unterminated),
            ("9a 1\n", Fault::Name),
            ("{\"a\"} 1\n", Fault::Name),
            ("a\n", Fault::Name),
            ("a}1\n", Fault::Name),
            ("a{b=\"1\" c=\"2\"} 1\n", Fault::Labels),
            ("a{b=\"1} 1\n", Fault::Labels),
            ("a{b} 1\n", Fault::Labels),
            ("a{b=\"1\"}\n", Fault::Value),
            ("a one\n", Fault::Value),
            ("a 1 later\n", Fault::Value),
            ("a \u{663}\n", Fault::Value),
        ] {
            assert_eq!(read(line).unwrap_err(), fault, "{line}");
        }
    }

    #[test]
    fn lines_and_labels_are_bounded() {
        let many = |count: usize| format!("a{{{}}} 1\n", "b=\"1\",".repeat(count));
        assert!(read(&many(MAX_LABELS)).is_ok());
        assert_eq!(read(&many(MAX_LABELS + 1)).unwrap_err(), Fault::Labels);
        let long = |length: usize| format!("a{{b=\"{}\"}} 1\n", "x".repeat(length));
        assert!(read(&long(MAX_LABEL_BYTES)).is_ok());
        assert_eq!(read(&long(MAX_LABEL_BYTES + 1)).unwrap_err(), Fault::Labels);
        assert_eq!(read(&long(MAX_LINE_BYTES)).unwrap_err(), Fault::LineTooLong);
    }

    #[test]
    fn comments_and_empty_lines_are_no_samples() {
        assert_eq!(lines(b"# HELP a b\n\n  \n# EOF\n").count(), 0);
    }
}
