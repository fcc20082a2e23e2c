//! The engine's HTTP server, as far as a daemon and a gateway need it.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

use crate::{
    completion::{self, Endpoint},
    exposition,
    live::Live,
    sse::Sse,
};

/// Connections served at once; more wait to be accepted.
pub(crate) const MAX_CONNECTIONS: usize = 256;
/// Largest request body, bytes.
pub(crate) const MAX_BODY_BYTES: usize = 4 << 20;
/// Time within which a request's head must be there.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time within which a request's body must be there.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept (the process has no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Names that one filtered scrape may ask for.
const MAX_WANTED: usize = 128;

pub(crate) type Body = Either<Full<Bytes>, Sse>;
pub(crate) type Reply = Response<Body>;

/// Serves until dropped; its connections end with it.
pub(crate) async fn serve(listener: TcpListener, live: &Arc<Live>) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let live = Arc::clone(live);
                connections.spawn(async move {
                    converse(stream, live).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn converse(stream: TcpStream, live: Arc<Live>) {
    // A client that breaks off is nothing to tell anybody.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let live = Arc::clone(&live);
        async move { Ok::<_, Infallible>(answer(&live, request).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(live: &Arc<Live>, request: Request<Incoming>) -> Reply {
    let path = request.uri().path().to_owned();
    let endpoint = match path.as_str() {
        "/v1/completions" => Endpoint::Completions,
        "/v1/chat/completions" => Endpoint::Chat,
        _ => return look_up(live, &request, &path),
    };
    if request.method() != Method::POST {
        return not_allowed();
    }
    match read(request.into_body()).await {
        Ok(body) => completion::answer(live, endpoint, &body).await,
        Err(refusal) => refusal,
    }
}

async fn read(body: Incoming) -> Result<Bytes, Reply> {
    let whole = Limited::new(body, MAX_BODY_BYTES).collect();
    match tokio::time::timeout(BODY_TIMEOUT, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => {
            let message = format!("the body broke off or is longer than {MAX_BODY_BYTES} bytes");
            Err(error(StatusCode::PAYLOAD_TOO_LARGE, "BadRequestError", None, &message))
        }
        Err(_) => Err(error(StatusCode::REQUEST_TIMEOUT, "BadRequestError", None, "the body did not arrive")),
    }
}

fn look_up(live: &Live, request: &Request<Incoming>, path: &str) -> Reply {
    let body = match path {
        "/health" | "/ping" => text(String::new(), None),
        "/version" => json(StatusCode::OK, &json!({ "version": VERSION })),
        "/load" => json(StatusCode::OK, &json!({ "server_load": 0 })),
        "/v1/models" => json(StatusCode::OK, &models(live)),
        "/metrics" => metrics(live, &[]),
        // As in vLLM, names are heeded behind the trailing slash alone.
        "/metrics/" => metrics(live, &wanted(request.uri().query().unwrap_or_default())),
        _ => return json(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" })),
    };
    if request.method() == Method::GET { body } else { not_allowed() }
}

/// The version it behaves like.
pub(crate) const VERSION: &str = "0.32.0";

fn models(live: &Live) -> serde_json::Value {
    let spec = &live.spec;
    json!({ "object": "list", "data": [{
        "id": spec.model, "object": "model", "created": 0, "owned_by": "vllm", "root": spec.model,
        "parent": null, "max_model_len": spec.max_model_len, "permission": [],
    }] })
}

fn metrics(live: &Live, wanted: &[String]) -> Reply {
    live.metrics(wanted).map_or_else(
        || error(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", None, "the engine is down"),
        |page| text(page, Some(exposition::CONTENT_TYPE)),
    )
}

/// The values of `name[]`, brackets and colons percent-encoded or not.
fn wanted(query: &str) -> Vec<String> {
    let decoded = |text: &str| text.replace("%5B", "[").replace("%5D", "]").replace("%3A", ":");
    let values = query.split('&').filter_map(|pair| decoded(pair).strip_prefix("name[]=").map(str::to_owned));
    values.take(MAX_WANTED).collect()
}

fn not_allowed() -> Reply {
    json(StatusCode::METHOD_NOT_ALLOWED, &json!({ "detail": "Method Not Allowed" }))
}

/// An error as vLLM words it.
pub(crate) fn error(status: StatusCode, kind: &str, param: Option<&str>, message: &str) -> Reply {
    let error = json!({ "message": message, "type": kind, "param": param, "code": status.as_u16() });
    json(status, &json!({ "error": error }))
}

pub(crate) fn json(status: StatusCode, value: &serde_json::Value) -> Reply {
    let mut reply = text(value.to_string(), Some("application/json"));
    *reply.status_mut() = status;
    reply
}

fn text(body: String, kind: Option<&'static str>) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(Bytes::from(body))));
    if let Some(kind) = kind {
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_filtered_scrape_are_read_encoded_or_not() {
        assert_eq!(wanted("name[]=vllm:a&name%5B%5D=vllm%3Ab&x=1&name=c"), ["vllm:a", "vllm:b"]);
        assert!(wanted("").is_empty());
    }
}
