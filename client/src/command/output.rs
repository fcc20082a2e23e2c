//! Standard output, whose reader may go away at any time.

use std::io::{self, IsTerminal as _, Write as _};

use gpuadmit_client::canonical;
use prost::{Message, Name};
use terminal_size::{Width, terminal_size_of};

use crate::render::{Canvas, Paint, WIDTH};

/// Standard output. When its reader has gone (`| head`) it takes everything and writes nothing.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: io::Stdout,
    closed: bool,
    plain: bool,
}

impl Output {
    /// Standard output; `plain`: without colour.
    pub(crate) fn stdout(plain: bool) -> Self {
        Self { stdout: io::stdout(), closed: false, plain }
    }

    /// Whether the reader has gone: nothing more needs to be done for it.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether a person looks at it.
    pub(crate) fn is_terminal(&self) -> bool {
        self.stdout.is_terminal()
    }

    /// Colour on a terminal, unless it is unwanted: by `--no-color`, or by NO_COLOR (no-color.org).
    pub(crate) fn paint(&self) -> Paint {
        let unwanted = self.plain || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if self.is_terminal() && !unwanted { Paint::Colour } else { Paint::Plain }
    }

    /// The terminal with its width as of now; elsewhere, 80 columns without colour.
    pub(crate) fn canvas(&self) -> Canvas {
        let size = terminal_size_of(&self.stdout).filter(|_| self.is_terminal());
        match size {
            Some((Width(columns), _)) if columns > 0 => Canvas::new(self.paint(), columns.into()),
            _ => Canvas::new(self.paint(), WIDTH),
        }
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
