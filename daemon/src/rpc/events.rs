//! `WatchEvents`: the history behind an event, then what comes, resumed across restarts of the daemon.

use std::fmt;

use gpuadmit_core::{event::Event, request::RequestError};
use gpuadmit_proto::v1::{WatchEventsRequest, WatchEventsResponse};
use tokio::sync::mpsc;
use tonic::Status;

use super::status::{self, Clocks};
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
        write!(f, "{:06x}.{}", self.epoch, self.cursor)
    }
}

impl Place {
    fn parse(text: &str) -> Option<Self> {
        let (epoch, cursor) = text.split_once('.').filter(|_| text.len() <= MOST_RESUME_BYTES)?;
        Some(Self { epoch: u32::from_str_radix(epoch, 16).ok()?, cursor: cursor.parse().ok()? })
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
    pub(super) fn asked(handle: &Handle, request: &WatchEventsRequest) -> Result<Self, RequestError> {
        let (epoch, newest) = (handle.snapshot().epoch, *handle.newest_event().borrow());
        let (cursor, restarted) = match (request.after, &request.resume) {
            (Some(_), Some(_)) => return Err(wrong("beside after", "only one of after, resume")),
            (None, Some(resume)) => {
                let place = Place::parse(resume);
                let place = place.ok_or_else(|| wrong("not understood", "the resume of an event"))?;
                let restarted = place.epoch != epoch;
                (if restarted { 0 } else { place.cursor }, restarted)
            }
            (after, None) => (after.unwrap_or(0), false),
        };
        // A cursor ahead of the history is one of an earlier run of the daemon: all of this run's events are new to it.
        let cursor = if cursor > newest { 0 } else { cursor };
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

fn wrong(value: &str, allowed: &'static str) -> RequestError {
    RequestError::OutOfRange { field: "resume", value: value.into(), allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = Place { epoch: 0xa1b2, cursor: u64::MAX };
        assert_eq!(place.to_string(), "00a1b2.18446744073709551615");
        assert_eq!(Place::parse(&place.to_string()), Some(place));
        for wrong in ["", "1", "x.1", "1.", "1.-1", "00000000000000000000000000000001.12"] {
            assert_eq!(Place::parse(wrong), None, "{wrong}");
        }
    }
}
