//! `WatchEvents`: the history behind an event, then what comes, resumed across restarts of the daemon.

use std::{borrow::Cow, fmt};

use gpuadmit_core::{event::Event, request::RequestError};
use gpuadmit_proto::v1::{WatchEventsRequest, WatchEventsResponse};
use tokio::sync::mpsc;
use tonic::Status;

use super::{
    convert,
    status::{self, Clocks},
};
use crate::handle::Handle;

/// Events read under the lock at once.
const BATCH: usize = 64;
/// Longest `resume`, bytes.
const MOST_RESUME_BYTES: usize = 32;

/// An event of one run of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    epoch: u32,
    cursor: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.cursor)
    }
}

impl Place {
    fn parse(text: &str) -> Option<Self> {
        let (epoch, cursor) = text.split_once('.').filter(|_| text.len() <= MOST_RESUME_BYTES)?;
        Some(Self { epoch: epoch.parse().ok()?, cursor: cursor.parse().ok()? })
    }
}

/// One watch.
pub(super) struct Watch {
    handle: Handle,
    epoch: u32,
    /// What was sent, or asked for, last.
    cursor: u64,
    follow: bool,
    /// The caller knows another run.
    restarted: bool,
}

impl Watch {
    /// What is asked for.
    ///
    /// # Errors
    /// `after` and `resume` are both there, or name no event.
    pub(super) fn asked(handle: &Handle, request: &WatchEventsRequest) -> Result<Self, Status> {
        let (epoch, newest) = (handle.snapshot().epoch, handle.last_event());
        let (field, place) = match (request.after, &request.resume) {
            (Some(_), Some(_)) => return Err(wrong("stands beside `after`", "one of the two")),
            (None, Some(resume)) => ("resume", Place::parse(resume).ok_or_else(|| unreadable(resume))?),
            (after, None) => ("after", Place { epoch, cursor: after.unwrap_or(0) }),
        };
        let restarted = place.epoch != epoch;
        let cursor = if restarted { 0 } else { place.cursor };
        if cursor > newest {
            let why = format!("{field}: no event has the number {cursor}; use 0 to {newest}, the newest");
            return Err(Status::not_found(why));
        }
        Ok(Self { handle: handle.clone(), epoch, cursor, follow: request.follow, restarted })
    }

    /// Sends the events behind it, then live ones if asked to follow.
    pub(super) async fn run(mut self, to: mpsc::Sender<Result<WatchEventsResponse, Status>>) {
        let mut newest = self.handle.newest_event();
        loop {
            newest.mark_unchanged();
            let (events, mut missed) = self.handle.events_after(self.cursor, BATCH);
            let caught_up = events.len() < BATCH;
            let clocks = Clocks::read();
            for event in &events {
                let message = self.message(event, std::mem::take(&mut missed), clocks);
                if to.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            if !caught_up {
                continue;
            }
            if !self.follow {
                return;
            }
            tokio::select! {
                changed = newest.changed() => if changed.is_err() { return },
                () = to.closed() => return,
            }
        }
    }

    fn message(&mut self, event: &Event, missed: u64, clocks: Clocks) -> WatchEventsResponse {
        self.cursor = event.cursor;
        WatchEventsResponse {
            event: Some(status::event(event, clocks)),
            missed,
            resume: Place { epoch: self.epoch, cursor: event.cursor }.to_string(),
            restarted: std::mem::take(&mut self.restarted),
        }
    }
}

fn wrong(why: impl Into<Cow<'static, str>>, allowed: &'static str) -> Status {
    convert::invalid(RequestError::wrong("resume", why, allowed))
}

/// A `resume` that no event has, cut so that the sentence stays short.
fn unreadable(resume: &str) -> Status {
    let cut: String = resume.chars().take(MOST_RESUME_BYTES).collect();
    let more = if cut.len() < resume.len() { "…" } else { "" };
    wrong(format!("{cut:?}{more} is not the `resume` of an event"), "copy it from an event, as 4242.17")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = Place { epoch: 0xa1b2, cursor: u64::MAX };
        assert_eq!(place.to_string(), "41394.18446744073709551615");
        assert_eq!(Place::parse(&place.to_string()), Some(place));
        for wrong in ["", "1", "x.1", "1.", "1.-1", "00a1b2.1", "00000000000000000000000000000001.12"] {
            assert_eq!(Place::parse(wrong), None, "{wrong}");
        }
    }
}
