//! One request: asked for, sent, streamed, and its reservation completed however it ended.

use std::{future::Future, sync::Arc, time::Duration};

use gpuadmit_client::{
    CALL_DEADLINE, Connection,
    v1::{
        AdmitRequest, Admitted, CompleteRequest, Outcome, ProgressRequest, ReservationRef,
        admit_request::Prompt, admit_response::Result as Answer, reservation_ref::Ref,
    },
    within,
};
use hyper::Method;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{
    http::{Address, Events},
    load::Work,
    tally::{Denied, Done, Ended, Times},
    target::Target,
};

/// Whose requests these are, for the daemon's shares and records.
const TENANT: &str = "gpuadmit-stress";
/// Time between two reports of progress, which renew the lease.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Sends requests.
#[derive(Clone)]
pub(super) struct Client {
    connection: Connection,
    target: Arc<Target>,
    wait: Duration,
    ignore_eos: bool,
    ending: watch::Receiver<bool>,
}

/// How far a stream came.
#[derive(Debug, Default)]
struct Streamed {
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: u64,
    /// As the engine counted it.
    prompt: Option<u64>,
}

impl Client {
    pub(super) fn new(
        connection: Connection,
        target: Arc<Target>,
        wait: Duration,
        ignore_eos: bool,
        ending: watch::Receiver<bool>,
    ) -> Self {
        Self { connection, target, wait, ignore_eos, ending }
    }

    /// Whether nothing new is to begin.
    pub(super) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// What `future` comes to; `None`: it was ended before.
    pub(super) async fn unless_ending<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut ending = self.ending.clone();
        tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending) => None,
            done = future => Some(done),
        }
    }

    pub(super) async fn run(&self, work: Work) -> Done {
        let asked = Instant::now();
        let answer = self.unless_ending(self.ask(work)).await;
        let decided = asked.elapsed();
        let done = Done { decided: Some(decided), ..Done::default() };
        match answer {
            // The daemon sees the caller hang up, and gives back what it may have granted.
            None => Done { decided: None, ended: Some(Ended::Cancelled), ..done },
            Some(Err(why)) => Done { ended: Some(Ended::Failed(why)), ..done },
            Some(Ok(Answer::Denied(denied))) => {
                let come_back = denied.retry_after_ms.map(Duration::from_millis);
                Done { denied: Some(Denied { reason: denied.reason, come_back }), ..done }
            }
            Some(Ok(Answer::Admitted(admitted))) => {
                let (ended, times) = self.forward(work, &admitted).await;
                Done { admitted: true, ended: Some(ended), times, ..done }
            }
        }
    }

    async fn ask(&self, work: Work) -> Result<Answer, String> {
        let request = AdmitRequest {
            model: self.target.model.clone(),
            engine: Some(self.target.engine.clone()),
            prompt: Some(Prompt::PromptTokens(work.prompt)),
            max_tokens: Some(work.max_tokens),
            tenant: Some(TENANT.into()),
            wait_ms: u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX),
            ..AdmitRequest::default()
        };
        let request = within(CALL_DEADLINE.saturating_add(self.wait), request);
        let response = self.connection.admission().admit(request).await;
        let response = response.map_err(|status| self.connection.explain(&status).to_string())?;
        response.into_inner().result.ok_or_else(|| "the daemon answered neither yes nor no".to_owned())
    }

    async fn forward(&self, work: Work, admitted: &Admitted) -> (Ended, Option<Times>) {
        let started = Instant::now();
        let mut streamed = Streamed::default();
        let result = self.unless_ending(self.stream(work, admitted, &mut streamed)).await;
        let (ended, outcome) = match result {
            Some(Ok(())) => (Ended::Finished, Outcome::Ok),
            Some(Err(error)) => (Ended::Failed(format!("{error:#}")), Outcome::EngineError),
            None => (Ended::Cancelled, Outcome::Cancelled),
        };
        let request = CompleteRequest {
            reservation: Some(reference(admitted)),
            outcome: outcome.into(),
            output_tokens: Some(streamed.tokens),
            prompt_tokens: streamed.prompt,
        };
        // Where it cannot be told, the lease ends and the engine shows the rest.
        let _ = self.connection.admission().complete(within(CALL_DEADLINE, request)).await;
        (ended, streamed.times(started))
    }

    async fn stream(&self, work: Work, admitted: &Admitted, streamed: &mut Streamed) -> anyhow::Result<()> {
        let address = Address::parse(&admitted.address).filter(|address| *address == self.target.address);
        let address = address
            .ok_or_else(|| anyhow::anyhow!("sent to {}, not the engine asked for", admitted.address))?;
        let body = json!({
            "model": self.target.model,
            "prompt": work.tokens(),
            "max_tokens": admitted.max_tokens.unwrap_or(work.max_tokens),
            "ignore_eos": self.ignore_eos,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let headers = self.target.headers();
        let response = address.send(Method::POST, "/v1/completions", &headers, body.to_string()).await?;
        anyhow::ensure!(response.status().is_success(), "the engine answered {}", response.status());
        let mut events = Events::new(response.into_body());
        let mut told = Instant::now();
        while let Some(event) = events.next().await? {
            streamed.see(&serde_json::from_slice(&event)?);
            if told.elapsed() >= PROGRESS_EVERY {
                told = Instant::now();
                let request = ProgressRequest {
                    reservation: Some(reference(admitted)),
                    generated_tokens: streamed.tokens,
                };
                let _ = self.connection.admission().progress(within(CALL_DEADLINE, request)).await;
            }
        }
        Ok(())
    }
}

impl Streamed {
    fn see(&mut self, event: &Value) {
        let has_choice =
            event.get("choices").and_then(Value::as_array).is_some_and(|choices| !choices.is_empty());
        if has_choice {
            let now = Instant::now();
            self.first.get_or_insert(now);
            self.last = Some(now);
            self.tokens = self.tokens.saturating_add(1);
        }
        // A piece may hold several tokens; the usage at the end knows.
        let usage = |name| event.get("usage").and_then(|usage| usage.get(name)).and_then(Value::as_u64);
        self.tokens = usage("completion_tokens").unwrap_or(self.tokens);
        self.prompt = usage("prompt_tokens").or(self.prompt);
    }

    fn times(&self, started: Instant) -> Option<Times> {
        let (first, last) = (self.first?, self.last?);
        let gaps = u32::try_from(self.tokens.saturating_sub(1)).ok().filter(|gaps| *gaps > 0);
        let pace = gaps.map(|gaps| last.duration_since(first) / gaps);
        Some(Times { ttft: first.duration_since(started), pace, tokens: self.tokens })
    }
}

fn reference(admitted: &Admitted) -> ReservationRef {
    ReservationRef { r#ref: Some(Ref::ReservationId(admitted.reservation_id)) }
}
