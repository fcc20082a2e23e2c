//! One bidirectional stream of calls. Each is answered as it is read: at most one call of a stream is under way, and the
//! next is read only when its answer has room on the wire, so that a peer that does not read costs no memory.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use gpuadmit_core::request::{ReservationId, SessionId};
use gpuadmit_proto::v1::{
    AdoptRequest, AdoptResponse, SessionError, SessionRequest, SessionResponse, session_request::Call,
    session_response::Answer,
};
use tokio_stream::Stream;
use tonic::Status;

use super::{admission, check, convert};
use crate::handle::Handle;

/// Most ids in one adoption, as `admission.proto` says.
const MAX_ADOPTED: u64 = 1024;

/// Answers the calls of one stream. When it is dropped, the stream's reservations become orphans.
pub(super) struct Calls {
    handle: Handle,
    uid: u32,
    session: SessionId,
}

impl Calls {
    /// For a stream that a process of `uid` has opened.
    pub(super) fn new(handle: Handle, uid: u32) -> Self {
        let session = handle.new_session();
        Self { handle, uid, session }
    }

    fn answer(&self, request: &SessionRequest) -> SessionResponse {
        let answer = self.call(request.call.as_ref()).unwrap_or_else(|status| {
            let code = i32::from(status.code());
            Answer::Error(SessionError { code, message: status.message().to_owned() })
        });
        SessionResponse { correlation_id: request.correlation_id, answer: Some(answer) }
    }

    fn call(&self, call: Option<&Call>) -> Result<Answer, Status> {
        let (handle, uid) = (&self.handle, self.uid);
        match call {
            Some(Call::Admit(request)) => {
                admission::admit(handle, uid, Some(self.session), request).map(Answer::Admit)
            }
            Some(Call::Progress(request)) => admission::progress(handle, uid, request).map(Answer::Progress),
            Some(Call::Complete(request)) => admission::complete(handle, uid, request).map(Answer::Complete),
            Some(Call::Adopt(request)) => self.adopt(request).map(Answer::Adopt),
            None => {
                let allowed = "one of admit, progress, complete, adopt";
                Err(convert::invalid(check::absent("call", allowed)))
            }
        }
    }

    fn adopt(&self, request: &AdoptRequest) -> Result<AdoptResponse, Status> {
        let asked = u64::try_from(request.reservation_ids.len()).unwrap_or(u64::MAX);
        let allowed = "at most 1024 ids";
        check::number("reservation_ids", asked, 0..=MAX_ADOPTED, allowed).map_err(convert::invalid)?;
        let ids: Vec<_> = request.reservation_ids.iter().copied().map(ReservationId).collect();
        let adopted = self.handle.adopt(self.session, &ids);
        Ok(AdoptResponse { adopted: adopted.into_iter().map(|id| id.0).collect() })
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.handle.session_broken(self.session);
    }
}

/// The stream of answers to a stream of calls.
pub(super) struct Session<S> {
    calls: Calls,
    requests: S,
}

impl<S> Session<S> {
    pub(super) fn new(calls: Calls, requests: S) -> Self {
        Self { calls, requests }
    }
}

impl<S: Stream<Item = Result<SessionRequest, Status>> + Unpin> Stream for Session<S> {
    type Item = Result<SessionResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let request = Pin::new(&mut self.requests).poll_next(cx);
        request.map(|next| next.map(|request| request.map(|request| self.calls.answer(&request))))
    }
}
