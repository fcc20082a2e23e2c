//! A call that waits for room.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use gpuadmit_core::{queue::Ticket, request::Decision, units::Mono};
use tokio::sync::oneshot;

use super::Handle;
use crate::clock;

/// A decision, or a place in a queue.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "boxing the decision would allocate on its way")]
pub enum Asked {
    /// It is decided.
    Now(Decision),
    /// The decision comes later.
    Later(Waiting),
}

/// Waits for a decision. Dropped, it gives up its place, and what was granted meanwhile.
#[derive(Debug)]
pub struct Waiting {
    handle: Handle,
    ticket: Ticket,
    answer: oneshot::Receiver<Decision>,
    answered: bool,
    since: Mono,
}

impl Waiting {
    /// A place in `handle`'s queue, taken at `since`.
    pub(super) const fn new(
        handle: Handle,
        ticket: Ticket,
        answer: oneshot::Receiver<Decision>,
        since: Mono,
    ) -> Self {
        Self { handle, ticket, answer, answered: false, since }
    }
}

impl Future for Waiting {
    /// `None`: the node is gone.
    type Output = Option<Decision>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = Pin::new(&mut self.answer).poll(cx);
        if answer.is_ready() && !self.answered {
            self.answered = true;
            self.handle.0.timings.waited(clock::now().since(self.since));
        }
        answer.map(Result::ok)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.handle.cancel(self.ticket);
        // What is sent after this comes back to its sender, who gives it up.
        self.answer.close();
        if let Ok(decision) = self.answer.try_recv() {
            self.handle.give_up(&decision);
        }
    }
}
