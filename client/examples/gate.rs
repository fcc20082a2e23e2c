//! A gate in front of vLLM: asks gpuadmit for each request and sends it to the engine that it names.
//!
//! `cargo run --example gate`, then send OpenAI requests to `http://127.0.0.1:8080/v1/…`. Without a daemon they go to the
//! engine on port 8000, as many as the local budget allows.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{Request, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    routing::post,
};
use gpuadmit_client::{
    gate::{Gate, Options, Refusal, WhenAbsent},
    v1::{AdmitRequest, Outcome, admit_request::Prompt},
};
use http_body_util::BodyExt as _;
use hyper_util::{client::legacy::Client, client::legacy::connect::HttpConnector, rt::TokioExecutor};
use serde_json::Value;

type Upstream = Client<HttpConnector, Body>;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let when_absent = WhenAbsent::Budget { tokens: 100_000 };
    let gate = Gate::new(Options { when_absent, ..Options::default() })?;
    let upstream: Upstream = Client::builder(TokioExecutor::new()).build_http();
    let routes = ["/v1/completions", "/v1/chat/completions"].into_iter();
    let app = routes.fold(Router::new(), |app, path| app.route(path, post(forward)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    Ok(axum::serve(listener, app.with_state((gate, upstream))).await?)
}

async fn forward(State((gate, upstream)): State<(Gate, Upstream)>, uri: Uri, body: Bytes) -> Response {
    let Ok(Value::Object(mut json)) = serde_json::from_slice(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let asked = AdmitRequest {
        model: json.get("model").and_then(Value::as_str).unwrap_or_default().into(),
        prompt: Some(Prompt::OpenaiBody(body.into())),
        max_tokens: json.get("max_tokens").and_then(Value::as_u64),
        wait_ms: 2_000,
        ..AdmitRequest::default()
    };
    let guard = match gate.admit(asked).await {
        Ok(guard) => guard,
        Err(refusal) => return refuse(&refusal),
    };
    if let Some(most) = guard.max_tokens() {
        json.insert("max_tokens".into(), most.into());
    }
    let address = guard.address().unwrap_or("http://127.0.0.1:8000");
    let request =
        Request::post(format!("{address}{}", uri.path())).header("content-type", "application/json");
    let Ok(request) = request.body(Body::from(Value::Object(json).to_string())) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    match upstream.request(request).await {
        // The guard lives as long as the answer: a client that hangs up drops it, and so gives its room back.
        Ok(answer) => answer.map(|body| {
            Body::new(body.with_trailers(async move {
                guard.complete(Outcome::Ok, None, None);
                None
            }))
        }),
        Err(error) => {
            guard.complete(Outcome::EngineError, None, None);
            (StatusCode::BAD_GATEWAY, error.to_string()).into_response()
        }
    }
}

fn refuse(refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.http_status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let mut response = (status, refusal.message.clone()).into_response();
    if let Some(wait) = refusal.retry_after {
        let seconds = wait.as_millis().div_ceil(1000);
        response
            .headers_mut()
            .extend(seconds.to_string().parse().ok().map(|value| (header::RETRY_AFTER, value)));
    }
    response
}
