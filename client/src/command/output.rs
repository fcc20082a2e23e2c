//! Standard output, whose reader may go away at any time.

use std::io::{self, IsTerminal as _, Write as _};

use gpuadmit_client::canonical;
use prost::{Message, Name};

use crate::render::Paint;

/// Standard output. When its reader has gone (`| head`) it takes everything and writes nothing.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: io::Stdout,
    closed: bool,
}

impl Output {
    /// Standard output.
    pub(crate) fn stdout() -> Self {
        Self { stdout: io::stdout(), closed: false }
    }

    /// Whether the reader has gone: nothing more needs to be done for it.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether a person looks at it.
    pub(crate) fn is_terminal(&self) -> bool {
        self.stdout.is_terminal()
    }

    /// Colour on a terminal, unless NO_COLOR is set (no-color.org).
    pub(crate) fn paint(&self) -> Paint {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if self.is_terminal() && !unwanted { Paint::Colour } else { Paint::Plain }
    }

    /// Writes `text` at once.
    pub(crate) fn print(&mut self, text: &str) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        match self.stdout.write_all(text.as_bytes()).and_then(|()| self.stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            result => result,
        }
    }

    /// Writes `message` as JSON over several lines.
    pub(crate) fn json<M: Message + Name>(&mut self, message: &M) -> anyhow::Result<()> {
        Ok(self.print(&format!("{:#}\n", canonical::json(message)?))?)
    }
}

/// `message` as one line of JSON.
pub(crate) fn json_line<M: Message + Name>(message: &M) -> anyhow::Result<String> {
    Ok(format!("{}\n", canonical::json(message)?))
}
