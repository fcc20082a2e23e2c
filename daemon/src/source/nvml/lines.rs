//! Lines of bounded length from a pipe.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::wire::LINE_BYTES;

/// A line without its newline.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// Longer than [`LINE_BYTES`]; what was in it is forgotten.
    TooLong,
}

/// Reads lines and holds no more than one.
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    bytes: usize,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader: BufReader::new(reader), line: Vec::new(), bytes: 0, ended: false }
    }

    /// The next line; `None` at the end, where half a line is left out. Cancel safe: what was read is kept.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        if self.ended {
            (self.bytes, self.ended) = (0, false);
            self.line.clear();
        }
        while !self.ended {
            let chunk = self.reader.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let newline = chunk.iter().position(|byte| *byte == b'\n');
            let (part, used) = match newline {
                Some(at) => (chunk.get(..at).unwrap_or_default(), at.saturating_add(1)),
                None => (chunk, chunk.len()),
            };
            self.bytes = self.bytes.saturating_add(used);
            if self.bytes <= LINE_BYTES {
                self.line.extend_from_slice(part);
            }
            self.ended = newline.is_some();
            self.reader.consume(used);
        }
        Ok(Some(if self.bytes <= LINE_BYTES { Line::Whole(&self.line) } else { Line::TooLong }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_whole_and_half_a_line_does_not_come() {
        let mut lines = Lines::new(&b"one\n\nthree\nhal"[..]);
        for expected in ["one", "", "three"] {
            assert_eq!(lines.next().await.unwrap(), Some(Line::Whole(expected.as_bytes())));
        }
        assert_eq!(lines.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_skipped_and_holds_no_memory() {
        let mut text = vec![b'x'; LINE_BYTES - 1];
        text.push(b'\n');
        text.extend(vec![b'y'; 40 * LINE_BYTES]);
        text.extend(b"\nnext\n");
        let mut lines = Lines::new(text.as_slice());
        assert!(
            matches!(lines.next().await.unwrap(), Some(Line::Whole(line)) if line.len() == LINE_BYTES - 1)
        );
        assert_eq!(lines.next().await.unwrap(), Some(Line::TooLong));
        assert!(lines.line.capacity() <= 2 * LINE_BYTES);
        assert_eq!(lines.next().await.unwrap(), Some(Line::Whole(b"next")));
    }
}
