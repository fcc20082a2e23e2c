//! The gateway's side of a run: asking, sending, reporting.

use std::time::Duration;

use gpuadmit_core::request::Outcome;

use super::{Next, PROGRESS, Run, STREAM_TIMEOUT};
use crate::{
    engine::RequestId,
    policy::{Answer, Ask, End, Stream},
    request::Phase,
    time::Nanos,
};

impl Run {
    pub(super) fn arrive(&mut self, id: RequestId, again: bool) {
        let bypass = self.world.request(id).bypass;
        if bypass && !self.policy.asked_by_everybody() {
            self.let_in(id);
            return;
        }
        let answer = self.policy.decide(&Ask {
            at: self.at,
            request: &self.world.requests[id as usize],
            streams: &self.streams,
            setup: &self.world.setup,
            world: &self.world,
        });
        match answer {
            Answer::Admit { max_tokens } => {
                let request = &mut self.world.requests[id as usize];
                request.length = request.length.min(max_tokens.unwrap_or(u64::MAX)).max(1);
                let stream = Stream {
                    prompt: request.prompt,
                    max_tokens: request.max_tokens,
                    sent_at: self.at,
                    generated: 0,
                    last_token: self.at,
                };
                // A gateway knows only of its own.
                if !bypass {
                    self.streams.insert(id, stream);
                }
                self.let_in(id);
            }
            Answer::Deny { retry_after, reason } => self.denied(id, again, retry_after, reason),
        }
    }

    pub(super) fn denied(
        &mut self,
        id: RequestId,
        again: bool,
        retry_after: Option<Duration>,
        reason: &'static str,
    ) {
        let denial = self.world.denial(self.at, self.world.request(id), reason);
        if let Some(resource) = self.world.denied_for(reason) {
            self.usage.denied(self.at, resource);
        }
        let fate = self.world.fate(id);
        fate.phase = Phase::Denied;
        fate.told = fate.told.or(retry_after);
        fate.denial = Some(denial);
        if let (true, false, Some(after)) = (self.retry, again, retry_after) {
            fate.retried = true;
            self.plan(self.at + after.as_nanos() as Nanos, Next::Retry(id));
        }
    }

    pub(super) fn let_in(&mut self, id: RequestId) {
        let at = self.at;
        let fate = self.world.fate(id);
        fate.phase = Phase::Travelling;
        fate.sent_at = at;
        self.world.live.push(id);
        let reaches = at + self.world.request(id).delivery;
        self.plan(reaches, Next::Reach(id));
        if let Some(after) = self.world.request(id).leaves_after {
            self.plan(reaches + after, Next::Leave(id));
        }
    }

    /// The gateway reports a request's end.
    pub(super) fn told(&mut self, id: RequestId) {
        self.streams.remove(&id);
        let fate = self.world.fate(id);
        let outcome = match fate.phase {
            Phase::Left => Outcome::Cancelled,
            Phase::Failed => Outcome::EngineError,
            _ => Outcome::Ok,
        };
        let end = End { outcome, generated: fate.generated };
        self.policy.completed(self.at, id, &end);
    }

    pub(super) fn progress(&mut self) {
        let at = self.at;
        self.streams.retain(|_, stream| at - stream.last_token < STREAM_TIMEOUT);
        for (id, stream) in &self.streams {
            // After its end a stream says nothing, also where the end itself was lost.
            if self.world.fates[*id as usize].live() {
                self.policy.progressed(at, *id, stream.generated);
            }
        }
        self.plan(at + PROGRESS, Next::Progress);
    }
}
