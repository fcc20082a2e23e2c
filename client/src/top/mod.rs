//! The live screen: what it remembers between two looks at the daemon, and how it is drawn.

mod draw;
mod history;
mod spark;
mod tables;
pub(crate) mod terminal;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use gpuadmit_client::v1::StatusResponse;
pub(crate) use history::History;

/// How engines are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// By name.
    Name,
    /// By use of their KV cache, the fullest first.
    Use,
    /// By requests that wait, most first.
    Waiting,
}

impl Sort {
    const fn next(self) -> Self {
        match self {
            Self::Name => Self::Use,
            Self::Use => Self::Waiting,
            Self::Waiting => Self::Name,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Use => "use",
            Self::Waiting => "waiting",
        }
    }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The end.
    Quit,
    /// Another order of engines.
    Sort,
    /// Older events.
    Older,
    /// Newer events.
    Newer,
    /// The same again, in another size perhaps.
    Redraw,
}

/// The screen's state.
#[derive(Debug)]
pub(crate) struct Top {
    /// The last that the daemon said, and when.
    last: Option<(Instant, StatusResponse)>,
    /// Why it says nothing now.
    problem: Option<String>,
    history: History,
    sort: Sort,
    /// Newest events that are left out at the end.
    skipped: usize,
    colour: bool,
}

impl Top {
    /// A screen that has seen nothing.
    pub(crate) fn new(colour: bool) -> Self {
        Self { last: None, problem: None, history: History::default(), sort: Sort::Name, skipped: 0, colour }
    }

    /// Takes in what the daemon said at `at`, or why it said nothing.
    pub(crate) fn take(&mut self, at: Instant, status: Result<StatusResponse, String>) {
        match status {
            Ok(status) => {
                self.history.add(at, &status);
                self.problem = None;
                self.last = Some((at, status));
            }
            Err(problem) => {
                self.history.add_gap(at);
                self.problem = Some(problem);
            }
        }
        let events = self.last.as_ref().map_or(0, |(_, status)| status.events.len());
        self.skipped = self.skipped.min(events.saturating_sub(1));
    }

    /// Does what is wished; `false`: it is the end.
    pub(crate) fn wish(&mut self, wish: Wish) -> bool {
        let events = self.last.as_ref().map_or(0, |(_, status)| status.events.len());
        match wish {
            Wish::Quit => return false,
            Wish::Sort => self.sort = self.sort.next(),
            Wish::Older => self.skipped = self.skipped.saturating_add(1).min(events.saturating_sub(1)),
            Wish::Newer => self.skipped = self.skipped.saturating_sub(1),
            Wish::Redraw => {}
        }
        true
    }

    fn silent_for(&self, now: Instant) -> Option<Duration> {
        self.last.as_ref().map(|(at, _)| now.saturating_duration_since(*at))
    }
}
