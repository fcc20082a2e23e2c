//! How soon the death of an engine closes admission, and how soon its own endpoints tell of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gpuadmit_proto::v1::{
    AdmitRequest, CompleteRequest, Outcome, ReservationRef, admission_client::AdmissionClient,
    admit_request::Prompt, admit_response, denied::Reason, reservation_ref::Ref,
};
use hyper::{Method, StatusCode};
use nix::sys::signal::Signal;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use crate::{daemon::status, engine::Vllm, http};

/// Pause between two looks at an endpoint.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest that anything takes to notice.
const LONGEST: Duration = Duration::from_secs(30);

/// Kills the EngineCore of `vllm` while admission is asked without a pause. Where the kernel itself tells of it, the
/// first denial comes before either endpoint does.
pub(crate) async fn closes(channel: Channel, vllm: &Vllm) -> Result<()> {
    let sources = status(&channel).await?.sources;
    let kernel = sources.iter().find(|source| source.name == "kernel").context("no source kernel")?;
    let by_programs = kernel.detail.starts_with("BPF");
    let denied = tokio::spawn(timeout(LONGEST, first_denial(channel, vllm.model.clone())));
    let health = tokio::spawn(fails(vllm.port, "/health"));
    let metrics = tokio::spawn(fails(vllm.port, "/metrics/?name[]=vllm:num_requests_running"));
    sleep(LOOK_EVERY * 20).await;
    ensure!(!denied.is_finished() && !health.is_finished(), "it was denied or unwell while it lived");
    let killed = Instant::now();
    vllm.signal_core(Signal::SIGKILL)?;
    let (denied, reason) = denied.await?.context("never denied")??;
    let [denied, health, metrics] = [denied, health.await??, metrics.await??].map(|at| at - killed);
    println!(
        "killed: admission denied after {denied:.1?}, /health failed after {health:.1?}, /metrics after {metrics:.1?}"
    );
    ensure!(reason == Reason::EngineDown, "denied with {reason:?}");
    if by_programs {
        ensure!(denied < health && denied < metrics, "an endpoint told before admission was closed");
    } else {
        println!(
            "SKIPPED: that admission closed before them, for the kernel does not tell: {}",
            kernel.detail
        );
    }
    Ok(())
}

/// Asks without a pause until it is denied; when the denial was there, and why.
async fn first_denial(channel: Channel, model: String) -> Result<(Instant, Reason)> {
    let mut admission = AdmissionClient::new(channel);
    let request = AdmitRequest {
        model,
        prompt: Some(Prompt::PromptTokens(16)),
        max_tokens: Some(1),
        ..AdmitRequest::default()
    };
    loop {
        let answer = admission.admit(request.clone()).await?.into_inner();
        match answer.result.context("an answer without a result")? {
            admit_response::Result::Denied(denied) => return Ok((Instant::now(), denied.reason())),
            admit_response::Result::Admitted(admitted) => {
                let reservation =
                    Some(ReservationRef { r#ref: Some(Ref::ReservationId(admitted.reservation_id)) });
                let unsent = CompleteRequest {
                    reservation,
                    outcome: Outcome::NotSent.into(),
                    ..CompleteRequest::default()
                };
                // The engine may have died in between, and the reservation with it.
                let _ = admission.complete(unsent).await;
            }
        }
    }
}

/// When an endpoint first answers other than 200, or not at all.
async fn fails(port: u16, path: &'static str) -> Result<Instant> {
    timeout(LONGEST, async {
        loop {
            match http::send(port, Method::GET, path, String::new()).await {
                Ok(response) if response.status() == StatusCode::OK => sleep(LOOK_EVERY).await,
                _ => return Instant::now(),
            }
        }
    })
    .await
    .with_context(|| format!("{path} never failed"))
}
