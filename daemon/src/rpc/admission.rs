//! `gpuadmit.v1.Admission`: decode, ask the node, encode.

use gpuadmit_core::{node::Completed, request::Reference, units::Tokens};
use gpuadmit_proto::v1::{
    AdmitRequest, AdmitResponse, CompleteRequest, CompleteResponse, ProgressRequest, ProgressResponse,
    SessionRequest, admission_server,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use super::{
    Parts,
    asking::{Asked, Asking, Caller, stops},
    convert,
    deadline::{Deadline, drop_if_cancelled},
    peer::peer_of,
    session::{Calls, Session},
    until::Until,
};
use crate::handle::Handle;

/// The service.
pub(super) struct Admission {
    asking: Asking,
    stopping: watch::Receiver<bool>,
    waits_per_session: usize,
}

impl Admission {
    pub(super) fn new(parts: &Parts) -> Self {
        Self {
            asking: Asking::new(parts.handle.clone(), parts.tokens.clone()),
            stopping: parts.stopping.clone(),
            waits_per_session: parts.waits_per_session,
        }
    }
}

#[tonic::async_trait]
impl admission_server::Admission for Admission {
    type SessionStream = Until<Session<Streaming<SessionRequest>>>;

    async fn admit(&self, request: Request<AdmitRequest>) -> Result<Response<AdmitResponse>, Status> {
        let deadline = Deadline::of(request.metadata());
        let caller = Caller { uid: peer_of(&request)?.uid, session: None, deadline };
        drop_if_cancelled().await;
        deadline.check()?;
        // What the message takes in memory is held until its text was read.
        let (_, held, message) = request.into_parts();
        let asked = self.asking.ask(caller, message, true);
        drop(held);
        let decision = match asked? {
            Asked::Now(decision) => decision,
            Asked::Later(later) => {
                let mut stopping = self.stopping.clone();
                tokio::select! {
                    decision = later => decision?,
                    _ = stopping.wait_for(|stopping| *stopping) => return Err(stops()),
                }
            }
        };
        Ok(Response::new(convert::decision(decision)))
    }

    async fn progress(
        &self,
        request: Request<ProgressRequest>,
    ) -> Result<Response<ProgressResponse>, Status> {
        let uid = peer_of(&request)?.uid;
        progress(self.asking.handle(), uid, request.get_ref()).map(Response::new)
    }

    async fn complete(
        &self,
        request: Request<CompleteRequest>,
    ) -> Result<Response<CompleteResponse>, Status> {
        let uid = peer_of(&request)?.uid;
        complete(self.asking.handle(), uid, request.get_ref()).map(Response::new)
    }

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let calls = Calls::new(self.asking.clone(), peer_of(&request)?.uid, self.waits_per_session);
        let session = Session::new(calls, request.into_inner());
        Ok(Response::new(Until::new(self.stopping.clone(), session)))
    }
}

pub(super) fn progress(
    handle: &Handle,
    uid: u32,
    request: &ProgressRequest,
) -> Result<ProgressResponse, Status> {
    let of = convert::reference(request.reservation.as_ref(), uid).map_err(convert::invalid)?;
    let lease = handle.progress(of, Tokens(request.generated_tokens));
    let lease = lease.ok_or_else(|| if handle.gave(of) { not_held(of) } else { never_given(of) })?;
    Ok(ProgressResponse { lease_ms: convert::millis(lease) })
}

pub(super) fn complete(
    handle: &Handle,
    uid: u32,
    request: &CompleteRequest,
) -> Result<CompleteResponse, Status> {
    let of = convert::reference(request.reservation.as_ref(), uid).map_err(convert::invalid)?;
    let completion = convert::completion(request).map_err(convert::invalid)?;
    match handle.complete(of, completion) {
        Completed::Held => Ok(CompleteResponse { was_held: true }),
        Completed::Ended => Ok(CompleteResponse { was_held: false }),
        Completed::NeverGiven => Err(never_given(of)),
    }
}

/// A reservation that was given out and has ended.
fn not_held(of: Reference<'_>) -> Status {
    Status::not_found(format!("reservation: {} is not held; it ended, or its engine did", named(of)))
}

/// A reservation that never was.
fn never_given(of: Reference<'_>) -> Status {
    let allowed = "use an id that Admit returned, or a request id with its tenant";
    Status::not_found(format!("reservation: {} was never given out; {allowed}", named(of)))
}

/// How the caller named a reservation.
pub(super) fn named(of: Reference<'_>) -> String {
    match of {
        Reference::Id(id) => id.to_string(),
        Reference::Request { tenant: "", request_id, .. } => format!("request {request_id:?}"),
        Reference::Request { tenant, request_id, .. } => {
            format!("request {request_id:?} of tenant {tenant:?}")
        }
    }
}
