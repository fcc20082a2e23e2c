//! Between `gpuadmit.v1` messages and the core's types: questions in, answers out. [`super::status`] does the same for
//! what operators read.

use std::time::Duration;

use gpuadmit_core::{
    request::{
        self, Admit, Class, Completion, Decision, Deny, Prompt, Reason, Reference, Request, RequestError,
        ReservationId, SessionId, Verdict,
    },
    units::Tokens,
};
use gpuadmit_proto::v1::{
    AdmitRequest, AdmitResponse, Admitted, CompleteRequest, Denied, Headroom, Outcome, PriorityClass,
    PromptCount, ReservationRef, admit_response, denied, reservation_ref,
};
use tonic::Status;

use super::check::{absent, name, number, optional};

const MAX_TTFT_MS: u64 = 3_600_000;
const MAX_PACE_MS: u64 = 60_000;
const MAX_WAIT_MS: u64 = 600_000;

/// The caller's mistake as a gRPC status.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn invalid(error: RequestError) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Whole milliseconds; saturates.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A question, borrowed from its message. The core checks the ranges of what it uses; the rest is checked here.
pub(super) fn request(
    from: &AdmitRequest,
    prompt: Prompt,
    peer_uid: u32,
    session: Option<SessionId>,
) -> Result<Request<'_>, RequestError> {
    let ttft = optional("ttft_objective_ms", from.ttft_objective_ms, 1..=MAX_TTFT_MS, "1 to 3600000")?;
    let pace = optional("pace_objective_ms", from.pace_objective_ms, 1..=MAX_PACE_MS, "1 to 60000")?;
    let wait = number("wait_ms", from.wait_ms, 0..=MAX_WAIT_MS, "0 to 600000")?;
    let duration = |ms: u32| Duration::from_millis(ms.into());
    Ok(Request {
        model: &from.model,
        engine: not_empty(from.engine.as_ref()),
        prompt,
        max_tokens: from.max_tokens.map(Tokens),
        n: from.n.unwrap_or(1),
        has_stop: from.has_stop,
        class: class(from.priority_class)?,
        tenant: not_empty(from.tenant.as_ref()).unwrap_or_default(),
        session_key: not_empty(from.session_key.as_ref()),
        ttft_objective: ttft.map(duration),
        pace_objective: pace.map(duration),
        wait: duration(wait),
        request_id: not_empty(from.request_id.as_ref()),
        peer_uid,
        session,
        forwards_rank: from.forwards_data_parallel_rank,
    })
}

/// An empty name is an absent one.
pub(super) fn not_empty(name: Option<&String>) -> Option<&str> {
    name.map(String::as_str).filter(|name| !name.is_empty())
}

fn class(number: i32) -> Result<Class, RequestError> {
    match PriorityClass::try_from(number) {
        Ok(PriorityClass::Unspecified | PriorityClass::Standard) => Ok(Class::Standard),
        Ok(PriorityClass::Interactive) => Ok(Class::Interactive),
        Ok(PriorityClass::Batch) => Ok(Class::Batch),
        Err(_) => Err(unknown("priority_class", number, "0 to 3")),
    }
}

fn unknown(field: &'static str, number: i32, allowed: &'static str) -> RequestError {
    RequestError::OutOfRange { field, value: number.to_string(), allowed }
}

/// Which reservation is meant.
pub(super) fn reference(from: Option<&ReservationRef>, peer_uid: u32) -> Result<Reference<'_>, RequestError> {
    match from.and_then(|from| from.r#ref.as_ref()) {
        Some(reservation_ref::Ref::ReservationId(id)) => Ok(Reference::Id(ReservationId(*id))),
        Some(reservation_ref::Ref::Request(key)) => {
            let request_id = name("reservation.request.request_id", &key.request_id, 1, "1 to 128 bytes")?;
            let tenant = key.tenant.as_deref().unwrap_or_default();
            let tenant = name("reservation.request.tenant", tenant, 0, "at most 128 bytes")?;
            Ok(Reference::Request { peer_uid, tenant, request_id })
        }
        None => Err(absent("reservation", "one of reservation_id, request")),
    }
}

/// How a request ended.
pub(super) fn completion(from: &CompleteRequest) -> Result<Completion, RequestError> {
    let outcome = match Outcome::try_from(from.outcome) {
        Ok(Outcome::Unspecified | Outcome::Ok) => request::Outcome::Ok,
        Ok(Outcome::Cancelled) => request::Outcome::Cancelled,
        Ok(Outcome::EngineError) => request::Outcome::EngineError,
        Ok(Outcome::NotSent) => request::Outcome::NotSent,
        Err(_) => return Err(unknown("outcome", from.outcome, "0 to 4")),
    };
    let (output, prompt) = (from.output_tokens.map(Tokens), from.prompt_tokens.map(Tokens));
    Ok(Completion { outcome, output_tokens: output, prompt_tokens: prompt })
}

/// The answer to a question.
pub(super) fn decision(from: Decision) -> AdmitResponse {
    let result = match from.verdict {
        Verdict::Admit(admit) => admit_response::Result::Admitted(admitted(&admit)),
        Verdict::Deny(deny) => admit_response::Result::Denied(denied(deny)),
    };
    let count = from.prompt.map_or(PromptCount::Unspecified, |(_, count)| prompt_count(count));
    AdmitResponse {
        result: Some(result),
        prompt_tokens: from.prompt.map(|(tokens, _)| tokens.0),
        prompt_count: count.into(),
        headroom: from.headroom.map(headroom),
        data_age_ms: from.data_age.map(millis),
    }
}

fn admitted(from: &Admit) -> Admitted {
    Admitted {
        reservation_id: from.reservation.0,
        lease_ms: millis(from.lease),
        engine: from.engine.as_ref().into(),
        address: from.address.as_ref().into(),
        max_tokens: from.max_tokens.map(|tokens| tokens.0),
        blocks_reserved: from.blocks.0,
        data_parallel_rank: from.rank,
        observed_reason: from.observed.map(Reason::number),
    }
}

fn denied(from: Deny) -> Denied {
    Denied {
        reason: reason(from.reason).into(),
        message: from.message,
        http_status: from.reason.http_status().into(),
        retry_after_ms: from.retry_after.map(millis),
        engine: from.engine.map(|engine| engine.as_ref().into()),
    }
}

fn prompt_count(from: request::PromptCount) -> PromptCount {
    match from {
        request::PromptCount::Exact => PromptCount::Exact,
        request::PromptCount::Estimated => PromptCount::Estimated,
        request::PromptCount::Bounded => PromptCount::Bounded,
    }
}

/// The reason by its number, which both lists share.
pub(super) fn reason(from: Reason) -> denied::Reason {
    denied::Reason::try_from(from.number()).unwrap_or(denied::Reason::Unspecified)
}

pub(super) fn headroom(from: request::Headroom) -> Headroom {
    Headroom {
        blocks: from.blocks.0,
        blocks_lower: from.blocks_lower.0,
        tokens: from.tokens.0,
        tokens_lower: from.tokens_lower.0,
        age_ms: millis(from.age),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_spelled_alike_in_core_and_proto() {
        for known in Reason::ALL {
            assert_eq!(reason(known).as_str_name(), known.as_str());
        }
    }

    #[test]
    fn the_core_knows_every_reason_of_the_proto() {
        let numbers = (1..).map_while(|number| denied::Reason::try_from(number).ok());
        assert_eq!(numbers.count(), Reason::ALL.len());
    }

    #[test]
    fn empty_names_are_absent() {
        let (model, empty) = ("m".to_owned(), Some(String::new()));
        let message = AdmitRequest {
            model,
            engine: empty.clone(),
            tenant: empty.clone(),
            request_id: empty,
            ..AdmitRequest::default()
        };
        let request = request(&message, Prompt::Tokens(Tokens(1)), 7, None).unwrap();
        assert_eq!((request.engine, request.tenant, request.request_id), (None, "", None));
        assert_eq!((request.n, request.peer_uid), (1, 7));
    }
}
