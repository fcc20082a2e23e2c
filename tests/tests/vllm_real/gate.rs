//! A small gateway as its author would write it: admit, forward as a stream, report progress, complete. Also one that
//! asks nobody, to show what then happens.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use gpuadmit_proto::v1::{
    AdmitRequest, Admitted, CompleteRequest, Denied, Outcome, ProgressRequest, ReservationRef,
    admission_client::AdmissionClient, admit_request::Prompt, admit_response, denied::Reason,
    reservation_ref::Ref,
};
use http_body_util::BodyExt;
use hyper::{Method, StatusCode, body::Incoming};
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::http;

/// Tokens per block, as the script starts vLLM.
pub(crate) const BLOCK_SIZE: u32 = 32;
/// Longest silence of a stream; a frozen engine is silent until it goes on.
const SILENCE: Duration = Duration::from_mins(3);
/// Longest line of a stream that is kept.
const LINE_LIMIT: usize = 64 << 10;
/// Changes of the blocks in use that are kept: some seconds.
const BLOCKS_KEPT: usize = 512;
/// Progress is reported every so many tokens.
const PROGRESS_STEP: u32 = 16;
/// Token ids of the model's vocabulary that are no special tokens.
const TOKEN_IDS: std::ops::Range<u32> = 3..512;

/// What the clients saw: independent of both the daemon and vLLM's metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Tokens that each open request holds, prompt included, from the first that came: before, nobody outside knows
    /// whether the engine has begun it.
    open: BTreeMap<u64, u32>,
    /// Blocks that they filled until now, and since when each.
    blocks: VecDeque<(Instant, u32)>,
    /// Requests admitted: forwarded to the engine.
    pub(crate) admitted: u32,
    /// Requests denied, by reason.
    pub(crate) denied: BTreeMap<String, u32>,
    /// Requests that the engine finished.
    pub(crate) finished: u32,
    /// What went wrong with admitted requests.
    pub(crate) failures: Vec<String>,
    /// Denials for want of blocks that said when to come back.
    pub(crate) retry_hints: u32,
}

impl Seen {
    /// Blocks that the open requests fill, by the tokens streamed to their clients.
    fn blocks(&self) -> u32 {
        self.open.values().map(|tokens| tokens.div_ceil(BLOCK_SIZE)).sum()
    }

    /// A request holds `tokens` from now on; `None`: it has ended.
    fn holds(&mut self, id: u64, tokens: Option<u32>) {
        match tokens {
            Some(tokens) => self.open.insert(id, tokens),
            None => self.open.remove(&id),
        };
        let blocks = self.blocks();
        if self.blocks.back().is_none_or(|(_, last)| *last != blocks) {
            self.blocks.push_back((Instant::now(), blocks));
        }
        if self.blocks.len() > BLOCKS_KEPT {
            self.blocks.pop_front();
        }
    }

    /// Blocks that the open requests filled at a moment of the last second or so.
    pub(crate) fn blocks_at(&self, at: Instant) -> u32 {
        self.blocks.iter().rev().find(|(since, _)| *since <= at).map_or(0, |(_, blocks)| *blocks)
    }

    /// Denials of one reason.
    pub(crate) fn denials(&self, reason: Reason) -> u32 {
        self.denied.get(reason.as_str_name()).copied().unwrap_or(0)
    }

    /// Denials of any reason.
    pub(crate) fn denials_all(&self) -> u32 {
        self.denied.values().sum()
    }
}

/// One request of the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Unique; also the seed of its prompt, so that no two share a prefix.
    pub(crate) id: u64,
    /// Prompt tokens.
    pub(crate) prompt: u32,
    /// Output tokens asked for.
    pub(crate) max_tokens: u32,
    /// Whether it may end earlier, as real requests do.
    pub(crate) may_stop: bool,
}

/// The gateway.
#[derive(Clone)]
pub(crate) struct Gate {
    /// `None`: the gate stands open.
    admission: Option<AdmissionClient<Channel>>,
    port: u16,
    model: Arc<str>,
    seen: Arc<Mutex<Seen>>,
}

impl Gate {
    /// A gateway for one model of the vLLM on `port`.
    pub(crate) fn new(channel: Channel, port: u16, model: &str) -> Self {
        Self { admission: Some(AdmissionClient::new(channel)), ..Self::open(port, model) }
    }

    /// One that forwards everything, with the max_tokens that was asked for.
    pub(crate) fn open(port: u16, model: &str) -> Self {
        Self { admission: None, port, model: model.into(), seen: Arc::default() }
    }

    /// What the clients have seen so far.
    pub(crate) fn seen(&self) -> Seen {
        self.lock().clone()
    }

    /// Serves one client; a failure is noted, for the test to look at.
    pub(crate) async fn serve(mut self, work: Work) {
        if let Err(error) = self.try_serve(work).await {
            self.lock().failures.push(format!("request {}: {error:#}", work.id));
        }
        self.lock().holds(work.id, None);
    }

    async fn try_serve(&mut self, work: Work) -> Result<()> {
        if self.admission.is_none() {
            self.lock().admitted += 1;
            self.stream(work, work.max_tokens.into(), None).await?;
            self.lock().finished += 1;
            return Ok(());
        }
        match self.ask(work).await? {
            Ok(admitted) => {
                ensure!(
                    admitted.address == format!("http://127.0.0.1:{}", self.port),
                    "sent to {}",
                    admitted.address
                );
                self.forward(work, &admitted).await
            }
            Err(_) => Ok(()),
        }
    }

    /// Asks for admission and counts the answer.
    pub(crate) async fn ask(&mut self, work: Work) -> Result<Result<Admitted, Denied>> {
        let request = AdmitRequest {
            model: self.model.to_string(),
            prompt: Some(Prompt::PromptTokens(work.prompt.into())),
            max_tokens: Some(work.max_tokens.into()),
            has_stop: work.may_stop,
            ..AdmitRequest::default()
        };
        let admission = self.admission.as_mut().context("the gate stands open")?;
        let answer = admission.admit(request).await?.into_inner();
        let mut seen = self.lock();
        match answer.result.context("an answer without a result")? {
            admit_response::Result::Admitted(admitted) => {
                seen.admitted += 1;
                Ok(Ok(admitted))
            }
            admit_response::Result::Denied(denied) => {
                *seen.denied.entry(denied.reason().as_str_name().to_owned()).or_default() += 1;
                if denied.reason() == Reason::KvFull {
                    ensure!(denied.http_status == 429, "KV_FULL with status {}", denied.http_status);
                    seen.retry_hints += u32::from(denied.retry_after_ms.is_some());
                }
                Ok(Err(denied))
            }
        }
    }

    /// Streams the completion, reports how it goes, and completes the reservation however it ended.
    async fn forward(&mut self, work: Work, admitted: &Admitted) -> Result<()> {
        let max_tokens = admitted.max_tokens.unwrap_or(work.max_tokens.into());
        let streamed = self.stream(work, max_tokens, Some(reference(admitted))).await;
        let (outcome, output) = match &streamed {
            Ok(output) => (Outcome::Ok, Some(u64::from(*output))),
            Err(_) => (Outcome::EngineError, None),
        };
        let request = CompleteRequest {
            reservation: Some(reference(admitted)),
            outcome: outcome.into(),
            output_tokens: output,
            prompt_tokens: None,
        };
        if let Some(admission) = &mut self.admission {
            admission.complete(request).await?;
        }
        self.lock().finished += u32::from(streamed.is_ok());
        streamed.map(drop)
    }

    /// Returns how many tokens came. The progress of `reservation` is reported on the way.
    async fn stream(
        &mut self,
        work: Work,
        max_tokens: u64,
        reservation: Option<ReservationRef>,
    ) -> Result<u32> {
        let body = self.body(work, max_tokens).to_string();
        let response = http::send(self.port, Method::POST, "/v1/completions", body).await?;
        ensure!(response.status() == StatusCode::OK, "vLLM answered {}", response.status());
        let mut events = Events { body: response.into_body(), pending: Vec::new() };
        let (mut generated, mut reported) = (0, 0);
        while let Some(event) = events.next().await? {
            let Some(tokens) = event.pointer("/usage/completion_tokens").and_then(serde_json::Value::as_u64)
            else {
                bail!("an event without usage");
            };
            generated = u32::try_from(tokens)?;
            self.lock().holds(work.id, Some(work.prompt + generated));
            if let Some(admission) = self.admission.as_mut().filter(|_| generated >= reported + PROGRESS_STEP)
            {
                reported = generated;
                let progress =
                    ProgressRequest { reservation: reservation.clone(), generated_tokens: generated.into() };
                // The daemon may have dropped the reservation when it saw the engine die.
                let _ = admission.progress(progress).await;
            }
        }
        Ok(generated)
    }

    fn body(&self, work: Work, max_tokens: u64) -> serde_json::Value {
        let range = u64::from(TOKEN_IDS.end - TOKEN_IDS.start);
        let tokens = (0..u64::from(work.prompt)).map(|at| {
            let scattered =
                (work.id + 1).wrapping_mul(0x9E37_79B9).wrapping_add(at.wrapping_mul(work.id + 7919));
            u64::from(TOKEN_IDS.start) + scattered % range
        });
        serde_json::json!({
            "model": &*self.model,
            "prompt": tokens.collect::<Vec<_>>(),
            "max_tokens": max_tokens,
            "ignore_eos": !work.may_stop,
            "temperature": 1.0,
            "stream": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        })
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reference(admitted: &Admitted) -> ReservationRef {
    ReservationRef { r#ref: Some(Ref::ReservationId(admitted.reservation_id)) }
}

/// The JSON events of a server-sent event stream.
struct Events {
    body: Incoming,
    pending: Vec<u8>,
}

impl Events {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Result<Option<serde_json::Value>> {
        loop {
            while let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                match line.trim_ascii_end().strip_prefix(b"data: ") {
                    Some(b"[DONE]") => return Ok(None),
                    Some(json) => return Ok(Some(serde_json::from_slice(json)?)),
                    None => {}
                }
            }
            ensure!(self.pending.len() < LINE_LIMIT, "a line of over {LINE_LIMIT} bytes");
            let frame = timeout(SILENCE, self.body.frame()).await.context("the stream fell silent")?;
            let frame = frame.context("the stream broke off")??;
            if let Some(data) = frame.data_ref() {
                self.pending.extend_from_slice(data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_open_request_fills_whole_blocks_until_it_ends() {
        let mut seen = Seen::default();
        let before = Instant::now();
        for (id, tokens) in [(1, 32), (2, 33), (3, 1)] {
            seen.holds(id, Some(tokens));
        }
        assert_eq!((seen.blocks_at(before), seen.blocks_at(Instant::now())), (0, 1 + 2 + 1));
        let full = Instant::now();
        seen.holds(2, None);
        assert_eq!((seen.blocks_at(full), seen.blocks_at(Instant::now())), (4, 2));
    }
}
