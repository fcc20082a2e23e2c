//! One bidirectional stream of calls. Each is answered as it is read, but for those that wait for room or are counted: they
//! are answered when they are decided, and others meanwhile. A call is read only when an answer has room on the wire, and a bounded
//! number of calls wait, so that a peer that does not read costs no memory.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use gpuadmit_core::request::{Decision, RequestError, ReservationId, SessionId};
use gpuadmit_proto::v1::{
    AdmitRequest, AdoptRequest, AdoptResponse, SessionError, SessionRequest, SessionResponse,
    session_request::Call, session_response::Answer,
};
use tokio_stream::Stream;
use tonic::Status;

use super::{
    admission,
    asking::{Asked, Asking, Caller, Later},
    check, convert,
    deadline::Deadline,
};

/// Most ids in one adoption, as `admission.proto` says.
const MAX_ADOPTED: usize = 1024;

/// Answers the calls of one stream. When it is dropped, the stream's reservations become orphans.
pub(super) struct Calls {
    asking: Asking,
    uid: u32,
    session: SessionId,
    /// Calls that wait for room or are counted, with their correlation ids; at most `most_waiting`.
    waiting: Vec<(u64, Later)>,
    most_waiting: usize,
}

impl Calls {
    /// For a stream that a process of `uid` has opened, and of which at most `most_waiting` calls wait for room.
    pub(super) fn new(asking: Asking, uid: u32, most_waiting: usize) -> Self {
        let session = asking.handle().new_session();
        Self { asking, uid, session, waiting: Vec::new(), most_waiting }
    }

    /// Answers a call; `None`: it waits.
    fn answer(&mut self, request: SessionRequest) -> Option<SessionResponse> {
        let id = request.correlation_id;
        let answer = match request.call {
            Some(Call::Admit(admit)) => self.admit(id, admit).transpose()?,
            call => self.call(call.as_ref()),
        };
        Some(response(id, answer))
    }

    /// Decides on a request, or lets it wait. Where too many wait already it is decided at once.
    fn admit(&mut self, id: u64, request: AdmitRequest) -> Result<Option<Answer>, Status> {
        let caller = Caller { uid: self.uid, session: Some(self.session), deadline: Deadline::NONE };
        match self.asking.ask(caller, request, self.waiting.len() < self.most_waiting)? {
            Asked::Now(decision) => Ok(Some(Answer::Admit(convert::decision(decision)))),
            Asked::Later(later) => {
                self.waiting.push((id, later));
                Ok(None)
            }
        }
    }

    /// The next answer to a call that waited.
    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<SessionResponse> {
        let decided = self.waiting.iter_mut().enumerate().find_map(|(index, (_, waiting))| {
            match waiting.as_mut().poll(cx) {
                Poll::Ready(decision) => Some((index, decision)),
                Poll::Pending => None,
            }
        });
        let Some((index, decision)) = decided else { return Poll::Pending };
        let (id, _) = self.waiting.swap_remove(index);
        let admit = |decision: Decision| Answer::Admit(convert::decision(decision));
        Poll::Ready(response(id, decision.map(admit)))
    }

    fn call(&self, call: Option<&Call>) -> Result<Answer, Status> {
        let (handle, uid) = (self.asking.handle(), self.uid);
        match call {
            Some(Call::Progress(request)) => admission::progress(handle, uid, request).map(Answer::Progress),
            Some(Call::Complete(request)) => admission::complete(handle, uid, request).map(Answer::Complete),
            Some(Call::Adopt(request)) => self.adopt(request).map(Answer::Adopt),
            Some(Call::Admit(_)) | None => {
                let allowed = "one of admit, progress, complete, adopt";
                Err(convert::invalid(check::absent("call", allowed)))
            }
        }
    }

    fn adopt(&self, request: &AdoptRequest) -> Result<AdoptResponse, Status> {
        let asked = request.reservation_ids.len();
        if asked > MAX_ADOPTED {
            let why = format!("{asked} ids are too many");
            return Err(convert::invalid(RequestError::wrong("reservation_ids", why, "at most 1024")));
        }
        let ids: Vec<_> = request.reservation_ids.iter().copied().map(ReservationId).collect();
        let adopted = self.asking.handle().adopt(self.session, &ids);
        Ok(AdoptResponse { adopted: adopted.into_iter().map(|id| id.0).collect() })
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.asking.handle().session_broken(self.session);
    }
}

fn response(correlation_id: u64, answer: Result<Answer, Status>) -> SessionResponse {
    let answer = answer.unwrap_or_else(|status| {
        let code = i32::from(status.code());
        Answer::Error(SessionError { code, message: status.message().to_owned() })
    });
    SessionResponse { correlation_id, answer: Some(answer) }
}

/// The stream of answers to a stream of calls.
pub(super) struct Session<S> {
    calls: Calls,
    requests: S,
    /// The caller asks nothing more.
    asked_all: bool,
}

impl<S> Session<S> {
    pub(super) fn new(calls: Calls, requests: S) -> Self {
        Self { calls, requests, asked_all: false }
    }
}

impl<S: Stream<Item = Result<SessionRequest, Status>> + Unpin> Stream for Session<S> {
    type Item = Result<SessionResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Poll::Ready(answer) = self.calls.poll_waiting(cx) {
                return Poll::Ready(Some(Ok(answer)));
            }
            if self.asked_all {
                return if self.calls.waiting.is_empty() { Poll::Ready(None) } else { Poll::Pending };
            }
            match Pin::new(&mut self.requests).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => self.asked_all = true,
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Some(Err(status))),
                Poll::Ready(Some(Ok(request))) => {
                    if let Some(answer) = self.calls.answer(request) {
                        return Poll::Ready(Some(Ok(answer)));
                    }
                }
            }
        }
    }
}
