//! Callers: each makes one call after the other until its phase ends.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use gpuadmit_client::{
    Connection,
    v1::{
        AdmitRequest, AdmitResponse, CompleteRequest, Outcome, ReservationRef, SessionRequest,
        SessionResponse, admit_request::Prompt, admit_response, reservation_ref::Ref, session_request::Call,
        session_response::Answer,
    },
};
use gpuadmit_tests::bench::{engine::MODEL, samples::Samples};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// Length of a prompt that comes as a text, characters.
pub(crate) const TEXT: usize = 1_000;

/// What the callers of a phase do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// The empty unary call.
    Check,
    /// Admit and Complete as unary calls.
    Unary,
    /// The same where the prompt is a text of [`TEXT`] characters, which is bounded and not counted.
    Text,
    /// Admit and Complete over a stream, one per caller.
    Session,
}

/// Durations of the calls of a phase: of the first call of each pair, and of the second.
pub(crate) type Pair = (Samples, Samples);

/// Lets `callers` callers over one connection call until `end`.
pub(crate) async fn phase(kind: Kind, callers: usize, connection: &Connection, end: Instant) -> Result<Pair> {
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let connection = connection.clone();
        tasks.spawn(async move {
            match kind {
                Kind::Check => check(&connection, end).await,
                Kind::Unary => unary(&connection, end, &request()).await,
                Kind::Text => unary(&connection, end, &text()).await,
                Kind::Session => session(&connection, end).await,
            }
        });
    }
    let mut all = Pair::default();
    while let Some(ended) = tasks.join_next().await {
        let (mut first, mut second) = ended??;
        all.0.append(&mut first);
        all.1.append(&mut second);
    }
    Ok(all)
}

async fn check(connection: &Connection, end: Instant) -> Result<Pair> {
    let mut client = HealthClient::new(connection.channel());
    let mut checks = Samples::default();
    while Instant::now() < end {
        let start = Instant::now();
        client.check(HealthCheckRequest::default()).await?;
        checks.since(start);
    }
    Ok((checks, Samples::default()))
}

async fn unary(connection: &Connection, end: Instant, request: &AdmitRequest) -> Result<Pair> {
    let mut client = connection.admission();
    let mut pair = Pair::default();
    while Instant::now() < end {
        let request = request.clone();
        let start = Instant::now();
        let response = client.admit(request).await?.into_inner();
        pair.0.since(start);
        let complete = completion(&response)?;
        let start = Instant::now();
        client.complete(complete).await?;
        pair.1.since(start);
    }
    Ok(pair)
}

async fn session(connection: &Connection, end: Instant) -> Result<Pair> {
    let (calls, queue) = mpsc::channel(1);
    let answers = connection.admission().session(ReceiverStream::new(queue)).await?.into_inner();
    let mut stream = Stream { calls, answers, next: 0 };
    let mut pair = Pair::default();
    while Instant::now() < end {
        let start = Instant::now();
        let Answer::Admit(response) = stream.call(Call::Admit(request())).await? else {
            bail!("an admit was not answered");
        };
        pair.0.since(start);
        let complete = Call::Complete(completion(&response)?);
        let start = Instant::now();
        let Answer::Complete(_) = stream.call(complete).await? else {
            bail!("a completion was not answered");
        };
        pair.1.since(start);
    }
    Ok(pair)
}

/// A session with one open call at a time.
struct Stream {
    calls: mpsc::Sender<SessionRequest>,
    answers: Streaming<SessionResponse>,
    next: u64,
}

impl Stream {
    async fn call(&mut self, call: Call) -> Result<Answer> {
        self.next += 1;
        self.calls.send(SessionRequest { correlation_id: self.next, call: Some(call) }).await?;
        let response = self.answers.message().await?.context("the session ended")?;
        response.answer.context("an empty answer")
    }
}

fn request() -> AdmitRequest {
    AdmitRequest {
        model: MODEL.into(),
        prompt: Some(Prompt::PromptTokens(700)),
        max_tokens: Some(256),
        ..AdmitRequest::default()
    }
}

fn text() -> AdmitRequest {
    AdmitRequest { prompt: Some(Prompt::Text("four five ".repeat(TEXT / 10))), ..request() }
}

fn completion(response: &AdmitResponse) -> Result<CompleteRequest> {
    let Some(admit_response::Result::Admitted(admitted)) = &response.result else {
        bail!("not admitted: {response:?}");
    };
    Ok(CompleteRequest {
        reservation: Some(ReservationRef { r#ref: Some(Ref::ReservationId(admitted.reservation_id)) }),
        outcome: Outcome::Ok.into(),
        output_tokens: Some(100),
        prompt_tokens: None,
    })
}
