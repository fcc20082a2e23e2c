//! Every call passes here: those of a peer that may not call are refused, the others are counted while they are open,
//! and their messages bounded.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use hyper::body::{Body, Frame, SizeHint};
use tonic::{Status, body::Body as TonicBody};
use tower::Service;

use super::{
    Services,
    activity::Activity,
    meter::{Budget, Metered},
    peer::Peer,
};
use crate::config::Limits;

/// The services behind the check.
#[derive(Clone)]
pub struct Gate {
    services: Arc<Services>,
    budget: Arc<Budget>,
}

impl Gate {
    /// In front of `services`; requests take no more memory than `limits` say while they come in.
    #[must_use]
    pub fn new(services: Arc<Services>, limits: &Limits) -> Self {
        Self { services, budget: Arc::new(Budget::new(limits)) }
    }
}

/// The future of an answer.
pub(super) type Answer = Pin<Box<dyn Future<Output = Result<Response<Counted>, Infallible>> + Send>>;

impl Service<Request<TonicBody>> for Gate {
    type Response = Response<Counted>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<TonicBody>) -> Answer {
        let (open, taken) = match request.extensions().get::<Peer>() {
            Some(peer) if peer.allowed => (Open::new(&peer.activity), Arc::clone(&peer.taken)),
            Some(peer) => return refuse(Open::new(&peer.activity), peer.uid),
            None => return refuse(Open(Arc::default()), u32::MAX),
        };
        let held = self.budget.held(&taken);
        request.extensions_mut().insert(Arc::clone(&held));
        let metered = request.map(|body| TonicBody::new(Metered::new(body, held)));
        let answer = self.services.call(metered);
        Box::pin(async move { Ok(answer.await?.map(|body| Counted { body, _open: open })) })
    }
}

fn refuse(open: Open, uid: u32) -> Answer {
    let message = format!(
        "uid {uid} may not call; allow it by socket.allowed_uids or socket.allowed_gids, or add it to the socket's group"
    );
    let response = Status::permission_denied(message).into_http::<TonicBody>();
    Box::pin(async move { Ok(response.map(|body| Counted { body, _open: open })) })
}

/// A call that is open until this is dropped.
struct Open(Arc<Activity>);

impl Open {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.begin();
        Self(Arc::clone(activity))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The body of an answer; its call is open while it lives.
pub struct Counted {
    body: TonicBody,
    _open: Open,
}

impl Body for Counted {
    type Data = <TonicBody as Body>::Data;
    type Error = <TonicBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use gpuadmit_core::settings::Settings;
    use tokio::sync::watch;
    use tonic::Code;

    use super::*;
    use crate::{config::Config, handle::Handle, rpc::Parts, tokens::Tokens};

    async fn code(peer: Option<Peer>) -> Code {
        let services = Services::new(&Parts {
            handle: Handle::new(Settings::default(), 0),
            simulated: false,
            release_gpu: None,
            tokens: Tokens::new(&Config::default()),
            message_bytes: 1024,
            waits_per_session: 1,
            stopping: watch::Sender::new(false).subscribe(),
        });
        let mut request = Request::new(TonicBody::empty());
        *request.uri_mut() = "/gpuadmit.v1.Nobody/Ask".parse().unwrap();
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        let response =
            Gate::new(Arc::new(services.unwrap()), &Limits::default()).call(request).await.unwrap();
        Status::from_header_map(response.headers()).unwrap().code()
    }

    fn peer(allowed: bool) -> Option<Peer> {
        Some(Peer { uid: 4002, allowed, activity: Arc::default(), taken: Arc::default() })
    }

    #[tokio::test]
    async fn a_peer_that_may_not_call_is_refused_before_any_service() {
        assert_eq!(code(peer(false)).await, Code::PermissionDenied);
        assert_eq!(code(None).await, Code::PermissionDenied);
        assert_eq!(code(peer(true)).await, Code::Unimplemented);
    }
}
