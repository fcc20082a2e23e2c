//! A screen that is drawn again and again, and put back as it was at the end.

use std::io;

use terminal_size::{Height, terminal_size};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::output::Output;
use crate::render::Canvas;

/// Other buffer, no cursor, no line wrapping (xterm control sequences DECSET 1049, 25, 7).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Cursor to the upper left corner.
const HOME: &str = "\x1b[H";
/// Erase the rest of the line; of the screen.
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

/// Frames on standard output: drawn in place on a terminal, one after the other elsewhere.
#[derive(Debug)]
pub(crate) struct Screen<'a> {
    output: &'a mut Output,
    in_place: bool,
}

impl<'a> Screen<'a> {
    /// Takes the terminal over until it is dropped, where there is one and `drawing` (rather than lines for a script)
    /// is wanted.
    pub(crate) fn open(output: &'a mut Output, drawing: bool) -> io::Result<Self> {
        let in_place = drawing && output.is_terminal();
        if in_place {
            output.print(ENTER)?;
        }
        Ok(Self { output, in_place })
    }

    /// Shows `frame` instead of the one before. Each line is overwritten in place and all are written at once, so that
    /// nothing flickers; lines beyond the terminal's height are left out.
    pub(crate) fn draw(&mut self, frame: &str) -> io::Result<()> {
        if !self.in_place {
            return self.output.print(frame);
        }
        let rows = terminal_size().map_or(usize::MAX, |(_, Height(rows))| usize::from(rows));
        let lines: Vec<&str> = frame.lines().take(rows).collect();
        let line_end = format!("{ERASE_LINE}\r\n");
        self.output.print(&format!("{HOME}{}{ERASE_LINE}{ERASE_BELOW}", lines.join(&line_end)))
    }

    /// What a frame is written for.
    pub(crate) fn canvas(&self) -> Canvas {
        self.output.canvas()
    }

    /// Whether frames are drawn in place.
    pub(crate) const fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Whether nobody looks any more.
    pub(crate) const fn is_closed(&self) -> bool {
        self.output.is_closed()
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        if self.in_place {
            // Nothing is left to be told when the terminal itself is gone.
            drop(self.output.print(LEAVE));
        }
    }
}

/// The wish to stop: Ctrl-C, SIGTERM, or a closed terminal.
#[derive(Debug)]
pub(crate) struct Stop([Signal; 3]);

impl Stop {
    /// From here on these signals end the command by its own doing.
    pub(crate) fn listen() -> io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    /// Returns when one of them arrives.
    pub(crate) async fn wanted(&mut self) {
        let Self([interrupt, terminate, hangup]) = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
