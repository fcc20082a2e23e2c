//! Every call passes here: those of a peer that may not call are refused, the others are counted while they are open.

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

use super::{Services, activity::Activity, peer::Peer};

/// The services behind the check.
#[derive(Clone)]
pub struct Gate(pub Arc<Services>);

/// The future of an answer.
pub(super) type Answer = Pin<Box<dyn Future<Output = Result<Response<Counted>, Infallible>> + Send>>;

impl Service<Request<TonicBody>> for Gate {
    type Response = Response<Counted>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<TonicBody>) -> Answer {
        let open = match request.extensions().get::<Peer>() {
            Some(peer) if peer.allowed => Open::new(&peer.activity),
            Some(peer) => return refuse(Open::new(&peer.activity), peer.uid),
            None => return refuse(Open(Arc::default()), u32::MAX),
        };
        let answer = self.0.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Counted { body, _open: open })) })
    }
}

fn refuse(open: Open, uid: u32) -> Answer {
    let message = format!(
        "uid {uid} may not call: allow it by socket.allowed_uids or socket.allowed_gids, or add it to the socket's group"
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
