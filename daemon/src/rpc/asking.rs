//! From a message to a decision: measure the prompt, count it where the decision depends on it, ask the node.

use std::pin::Pin;

use gpuadmit_core::{
    count::{Bounds, TextSize},
    request::{Decision, Prompt, PromptCount, Request, SessionId},
};
use gpuadmit_proto::v1::AdmitRequest;
use tokio::task::yield_now;
use tonic::Status;

use super::{convert, deadline::Deadline, prompt, told::Told};
use crate::{
    handle::{self, Handle, Waiting},
    tokens::{Text, Tokens},
};

/// A decision that is still to come. Dropped, it gives up its place.
pub(super) type Later = Pin<Box<dyn Future<Output = Result<Decision, Status>> + Send>>;

/// A decision, now or later.
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and most decisions come at once")]
pub(super) enum Asked {
    /// It is decided.
    Now(Decision),
    /// The prompt is counted, or room is waited for.
    Later(Later),
}

/// Answers `Admit`.
#[derive(Clone)]
pub(super) struct Asking {
    handle: Handle,
    tokens: Tokens,
}

/// Who asks.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) session: Option<SessionId>,
    pub(super) deadline: Deadline,
}

impl Asking {
    pub(super) const fn new(handle: Handle, tokens: Tokens) -> Self {
        Self { handle, tokens }
    }

    pub(super) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Decides on a request. Where it may not come later, it neither waits for room nor is it counted.
    pub(super) fn ask(
        &self,
        caller: Caller,
        message: AdmitRequest,
        may_come_later: bool,
    ) -> Result<Asked, Status> {
        let told = Told::wanted(&message);
        let asked = self.answer(caller, message, may_come_later)?;
        Ok(match told {
            Some(told) => told.of(asked),
            None => asked,
        })
    }

    fn answer(
        &self,
        caller: Caller,
        mut message: AdmitRequest,
        may_come_later: bool,
    ) -> Result<Asked, Status> {
        let (prompt, text) = prompt::take(&mut message, &self.tokens).map_err(convert::invalid)?;
        if !may_come_later {
            message.wait_ms = 0;
        }
        let request = request(&message, prompt, caller)?;
        let (Prompt::Text(size), Some(text)) = (prompt, text) else { return self.decide(caller, &request) };
        self.tokens.note_text();
        match self.handle.settle_count(&request) {
            Ok(prompt) => self.decide(caller, &Request { prompt, ..request }),
            Err(bounds) if may_come_later => {
                let asking = self.clone();
                Ok(Asked::Later(Box::pin(asking.count_and_decide(caller, message, size, bounds, text))))
            }
            Err(bounds) => self.decide(caller, &Request { prompt: at_most(size, bounds), ..request }),
        }
    }

    async fn count_and_decide(
        self,
        caller: Caller,
        message: AdmitRequest,
        text: TextSize,
        bounds: Bounds,
        content: Text,
    ) -> Result<Decision, Status> {
        let counted = self.tokens.count(&message.model, &self.handle.snapshot(), content).await;
        let prompt = match counted {
            Some(counted) if counted.exact => {
                self.handle.counted(&message.model, &text, counted.prompts.total);
                Prompt::Counted { text, prompts: counted.prompts, count: PromptCount::Exact }
            }
            Some(counted) => {
                Prompt::Counted { text, prompts: counted.prompts, count: PromptCount::Estimated }
            }
            None => at_most(text, bounds),
        };
        caller.deadline.check()?;
        match self.decide(caller, &request(&message, prompt, caller)?)? {
            Asked::Now(decision) => Ok(decision),
            Asked::Later(later) => later.await,
        }
    }

    fn decide(&self, caller: Caller, request: &Request<'_>) -> Result<Asked, Status> {
        Ok(match self.handle.ask(request).map_err(convert::invalid)? {
            handle::Asked::Now(decision) => Asked::Now(decision),
            handle::Asked::Later(waiting) => {
                Asked::Later(Box::pin(in_time(self.handle.clone(), caller.deadline, waiting)))
            }
        })
    }
}

/// What `waiting` brings, unless its caller has stopped waiting.
async fn in_time(handle: Handle, deadline: Deadline, waiting: Waiting) -> Result<Decision, Status> {
    let decision = waiting.await.ok_or_else(stops)?;
    let mut unclaimed = Unclaimed { handle, decision: Some(decision) };
    // A cancellation may still lie in the socket. During the pauses the runtime finds that, the connection reads it, and the
    // server drops the call.
    for _ in 0..3 {
        yield_now().await;
    }
    deadline.check()?;
    unclaimed.decision.take().ok_or_else(stops)
}

/// A decision that is given back when this is dropped.
struct Unclaimed {
    handle: Handle,
    decision: Option<Decision>,
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(decision) = &self.decision {
            self.handle.give_up(decision);
        }
    }
}

/// Answers calls that still wait when the daemon stops.
pub(super) fn stops() -> Status {
    Status::unavailable("the daemon stops; ask again, the next one answers")
}

fn request(message: &AdmitRequest, prompt: Prompt, caller: Caller) -> Result<Request<'_>, Status> {
    let request = convert::request(message, prompt, caller.uid, caller.session).map_err(convert::invalid)?;
    request.check().map_err(convert::invalid)?;
    Ok(request)
}

/// The upper bound, where the text cannot be counted.
fn at_most(text: TextSize, bounds: Bounds) -> Prompt {
    Prompt::Counted { text, prompts: text.at_most(bounds.high), count: PromptCount::Bounded }
}
