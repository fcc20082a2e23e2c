//! How long Admit takes: `admit-times SOCKET CALLS` asks for one small request after the other, with pauses, as one
//! gateway would, and prints quantiles.

use std::{
    env,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use gpuadmit_client::connect;
use gpuadmit_proto::v1::{
    AdmitRequest, CompleteRequest, ReservationRef, admit_request::Prompt, admit_response::Result as Answer,
    reservation_ref::Ref,
};
use gpuadmit_tests::bench::{samples::Samples, table::time};

/// Between two requests, so that daemon and caller sleep meanwhile and each call must get a core first.
const PAUSE: Duration = Duration::from_millis(2);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = env::args_os().skip(1);
    let socket = PathBuf::from(args.next().context("SOCKET is missing")?);
    let calls: usize =
        args.next().and_then(|arg| arg.into_string().ok()).context("CALLS is missing")?.parse()?;
    let connection = connect(&socket)?;
    let mut admission = connection.admission();
    let request = AdmitRequest {
        model: "m".into(),
        prompt: Some(Prompt::PromptTokens(16)),
        max_tokens: Some(16),
        ..AdmitRequest::default()
    };
    let mut samples = Samples::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        let answer = admission.admit(request.clone()).await?.into_inner();
        samples.since(start);
        let Some(Answer::Admitted(admitted)) = answer.result else { bail!("not admitted: {answer:?}") };
        let reservation = Some(ReservationRef { r#ref: Some(Ref::ReservationId(admitted.reservation_id)) });
        admission.complete(CompleteRequest { reservation, ..CompleteRequest::default() }).await?;
        tokio::time::sleep(PAUSE).await;
    }
    let (count, worst) = (samples.count(), samples.worst());
    let sorted = samples.sorted();
    let [p50, p99, p999] = [500, 990, 999].map(|per_mille| time(sorted.quantile(per_mille)));
    println!("{count} calls, p50 {p50}, p99 {p99}, p99.9 {p999}, worst {}", time(worst));
    Ok(())
}
