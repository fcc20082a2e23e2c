//! The simulated traffic's gateway: a caller like any other, but in this process.

use std::time::Duration;

use crate::handle::Handle;
use gpuadmit_core::{
    request::{Class, Completion, Outcome, Prompt, Reference, Request, ReservationId, SessionId, Verdict},
    units::Tokens,
};
use gpuadmit_sim::traffic::{Ended, Gate, Gated, SimRequest};

/// Tenant that the traffic counts for.
const TENANT: &str = "simulated";

/// Asks for admission as a gateway does over a session.
pub(super) struct Gateway {
    handle: Handle,
    session: SessionId,
    uid: u32,
}

impl Gateway {
    pub(super) fn new(handle: Handle) -> Self {
        Self { session: handle.new_session(), uid: nix::unistd::getuid().as_raw(), handle }
    }

    fn request<'a>(&self, of: &'a SimRequest) -> Request<'a> {
        Request {
            model: &of.model,
            engine: None,
            prompt: Prompt::Tokens(Tokens(of.prompt_tokens)),
            max_tokens: of.max_tokens.map(Tokens),
            n: 1,
            has_stop: false,
            class: Class::Standard,
            tenant: TENANT,
            session_key: None,
            ttft_objective: None,
            pace_objective: None,
            wait: Duration::ZERO,
            request_id: None,
            peer_uid: self.uid,
            session: Some(self.session),
            forwards_rank: false,
        }
    }
}

impl Gate for Gateway {
    async fn admit(&self, request: &SimRequest) -> Gated {
        match self.handle.admit(&self.request(request)).map(|decision| decision.verdict) {
            Ok(Verdict::Admit(admit)) => Gated::Admitted {
                ticket: admit.reservation.0,
                engine: admit.engine,
                max_tokens: admit.max_tokens.map(|tokens| tokens.0),
            },
            Ok(Verdict::Deny(_)) | Err(_) => Gated::Denied,
        }
    }

    async fn progress(&self, ticket: u64, generated: u64) {
        // A reservation that is no longer held needs no further progress either.
        let _lease = self.handle.progress(Reference::Id(ReservationId(ticket)), Tokens(generated));
    }

    async fn complete(&self, ticket: u64, ended: Ended) {
        let (outcome, output_tokens) = match ended {
            Ended::Finished { output_tokens } => (Outcome::Ok, Some(Tokens(output_tokens))),
            Ended::EngineError => (Outcome::EngineError, None),
            Ended::NotSent => (Outcome::NotSent, None),
        };
        let completion = Completion { outcome, output_tokens, prompt_tokens: None };
        let _held = self.handle.complete(Reference::Id(ReservationId(ticket)), completion);
    }
}
