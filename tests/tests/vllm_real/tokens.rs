//! Prompts of many kinds, counted by the daemon and by a real vLLM.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use gpuadmit_core::{node::Node, settings::Settings, snapshot::Snapshot, units::Tokens};
use gpuadmit_proto::v1::{
    AdmitRequest, CompleteRequest, Outcome, PromptCount, ReservationRef, admission_client::AdmissionClient,
    admit_request::Prompt, admit_response, reservation_ref::Ref,
};
use gpuadmitd::{
    config,
    tokens::{Counted, Text, Tokens as Counter, body::Body, measure},
};
use serde_json::Value;
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};
use tonic::transport::Channel;

use crate::{
    bodies::{Case, cases},
    daemon::status,
    engine::{Vllm, model_folder},
    http,
};

/// Bodies must be at least so many for the figures to mean something.
const LEAST_BODIES: usize = 500;
/// Requests at once.
const AT_ONCE: usize = 12;
/// Pause of a client that was denied.
const DENIED_PAUSE: Duration = Duration::from_millis(50);
/// Time that counting one prompt may take, milliseconds: machines that run this may be busy.
const DEADLINE_MS: u64 = 10_000;

/// The daemon's exact counts are those of vLLM, its bounds hold, and beside the engine it counts few prompts.
pub(crate) async fn agree(vllm: &Vllm, size: &str, channel: Channel) -> Result<()> {
    let cases = Arc::new(cases());
    let truth = told(vllm, &cases).await?;
    let kinds: BTreeMap<&str, usize> = cases.iter().fold(BTreeMap::new(), |mut kinds, case| {
        *kinds.entry(case.kind).or_default() += 1;
        kinds
    });
    ensure!(truth.len() >= LEAST_BODIES, "only {} bodies", truth.len());
    println!(
        "{} bodies of {} to {} tokens: {kinds:?}",
        truth.len(),
        truth.iter().min().unwrap_or(&0),
        truth.iter().max().unwrap_or(&0)
    );
    let mut wrong = counted_wrong(vllm, size, &cases, &truth).await?;
    wrong.extend(bounded_wrong(vllm, &cases, &truth)?);
    wrong.extend(admitted_wrong(vllm, &cases, &truth, channel).await?);
    ensure!(wrong.is_empty(), "{} disagree: {:#?}", wrong.len(), wrong.iter().take(20).collect::<Vec<_>>());
    Ok(())
}

/// A body as a client sends it.
fn sent(case: &Case, model: &str, max_tokens: u64) -> Value {
    let mut body = case.body.clone();
    body["model"] = model.into();
    body["max_tokens"] = max_tokens.into();
    body
}

/// `prompt_tokens` as vLLM reports it of each body.
async fn told(vllm: &Vllm, cases: &Arc<Vec<Case>>) -> Result<Vec<u64>> {
    let (limit, mut asking) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
    for index in 0..cases.len() {
        let (limit, cases, port, model) =
            (Arc::clone(&limit), Arc::clone(cases), vllm.port, vllm.model.clone());
        asking.spawn(async move {
            let _permit = limit.acquire().await?;
            let case = &cases[index];
            let answer = http::post(port, case.path, &sent(case, &model, 1)).await?;
            anyhow::Ok((index, prompt_tokens(&answer)?))
        });
    }
    let mut told = BTreeMap::new();
    while let Some(one) = asking.join_next().await {
        let (index, tokens) = one??;
        told.insert(index, tokens);
    }
    Ok(told.into_values().collect())
}

fn prompt_tokens(answer: &Value) -> Result<u64> {
    answer["usage"]["prompt_tokens"].as_u64().with_context(|| format!("no usage in {answer}"))
}

/// Bodies whose exact count is another than vLLM's, or not exact.
async fn counted_wrong(vllm: &Vllm, size: &str, cases: &[Case], truth: &[u64]) -> Result<Vec<String>> {
    let mut config = config::Config::default();
    config.tokens.deadline_ms = DEADLINE_MS;
    config.tokenizer = vec![config::Tokenizer { model: vllm.model.clone(), path: model_folder(size)? }];
    let counter = Counter::new(&config);
    let mut wrong = Vec::new();
    for (case, truth) in cases.iter().zip(truth) {
        let body = Text::Body(sent(case, &vllm.model, 1).to_string().into_bytes());
        let counted = counter.count(&vllm.model, &Snapshot::default(), body).await;
        if counted != Some(Counted { prompts: Tokens(*truth).into(), exact: true }) {
            wrong.push(format!("{}: counted {counted:?}, vLLM {truth}: {}", case.kind, case.body));
        }
    }
    println!("counted exactly: {} of {} equal vLLM's count", cases.len() - wrong.len(), cases.len());
    Ok(wrong)
}

/// Bodies that have less or more tokens than their bounds say, as these are learned from one body after the other.
fn bounded_wrong(vllm: &Vllm, cases: &[Case], truth: &[u64]) -> Result<Vec<String>> {
    let mut node = Node::new(Settings::default(), 1);
    let (mut wrong, mut low_sum, mut high_sum, mut sum) = (Vec::new(), 0, 0, 0);
    for (case, truth) in cases.iter().zip(truth) {
        let text = sent(case, &vllm.model, 1).to_string();
        let size = measure::body(&Body::read(text.as_bytes())?, 0);
        let bounds = node.text_bounds(&vllm.model, &size);
        (low_sum, high_sum, sum) = (low_sum + bounds.low.0, high_sum + bounds.high.0, sum + truth);
        if !(bounds.low.0..=bounds.high.0).contains(truth) {
            wrong.push(format!("{}: {bounds:?}, vLLM {truth}: {}", case.kind, case.body));
        }
        node.counted(&vllm.model, &size, Tokens(*truth));
    }
    let share = |part: u64| part * 100 / sum.max(1);
    println!(
        "bounds, learned on the way: {} of {} violated; on average {} to {} % of the tokens",
        wrong.len(),
        cases.len(),
        share(low_sum),
        share(high_sum)
    );
    Ok(wrong)
}

/// The bodies through the daemon beside a busy engine: what it says of each against vLLM, and how many it had to count.
async fn admitted_wrong(
    vllm: &Vllm,
    cases: &Arc<Vec<Case>>,
    truth: &[u64],
    channel: Channel,
) -> Result<Vec<String>> {
    let before = status(&channel).await?.tokenizers.unwrap_or_default();
    let (limit, mut asking) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
    for (index, truth) in truth.iter().copied().enumerate() {
        let (limit, cases, channel) = (Arc::clone(&limit), Arc::clone(cases), channel.clone());
        let (port, model) = (vllm.port, vllm.model.clone());
        asking.spawn(async move {
            let _permit = limit.acquire().await?;
            let case = &cases[index];
            let max_tokens = 16 + u64::try_from(index)? * 37 % 200;
            let said = served(case, sent(case, &model, max_tokens), channel, port).await?;
            anyhow::Ok((
                said.is_right(truth),
                format!("{}: {said:?}, vLLM {truth}: {}", case.kind, case.body),
            ))
        });
    }
    let mut wrong = Vec::new();
    while let Some(one) = asking.join_next().await {
        let (right, what) = one??;
        wrong.extend((!right).then_some(what));
    }
    let after = status(&channel).await?.tokenizers.unwrap_or_default();
    let (texts, counted) = (after.texts - before.texts, after.counted - before.counted);
    let unanswered = after.uncounted - before.uncounted;
    println!(
        "beside a busy engine: {counted} of {texts} bodies had to be counted ({} %), {unanswered} of them not in time; {} answers wrong",
        counted * 100 / texts.max(1),
        wrong.len()
    );
    ensure!(counted > 0, "no body had to be counted: the engine was not busy");
    Ok(wrong)
}

/// What the daemon said of a prompt.
#[derive(Debug)]
struct Said {
    admitted: bool,
    count: PromptCount,
    tokens: Option<u64>,
}

impl Said {
    /// Exact is exact, what was admitted has no more than its bound, and what was denied by its bound no less.
    fn is_right(&self, truth: u64) -> bool {
        match (self.count, self.tokens) {
            (PromptCount::Exact, tokens) => tokens == Some(truth),
            (PromptCount::Bounded, Some(tokens)) => !self.admitted || truth <= tokens,
            (PromptCount::Estimated, Some(tokens)) => self.admitted || tokens <= truth,
            _ => false,
        }
    }
}

/// Asks for a body, has it served where it is admitted, and completes it with what vLLM tells.
async fn served(case: &Case, mut body: Value, channel: Channel, port: u16) -> Result<Said> {
    let mut admission = AdmissionClient::new(channel);
    let request = AdmitRequest {
        prompt: Some(Prompt::OpenaiBody(body.to_string().into_bytes())),
        ..AdmitRequest::default()
    };
    let answer = admission.admit(request).await?.into_inner();
    let (count, tokens) = (answer.prompt_count(), answer.prompt_tokens);
    let Some(admit_response::Result::Admitted(admitted)) = answer.result else {
        sleep(DENIED_PAUSE).await;
        return Ok(Said { admitted: false, count, tokens });
    };
    if let Some(granted) = admitted.max_tokens {
        body["max_tokens"] = granted.into();
    }
    let told = http::post(port, case.path, &body).await?;
    let complete = CompleteRequest {
        reservation: Some(ReservationRef { r#ref: Some(Ref::ReservationId(admitted.reservation_id)) }),
        outcome: Outcome::Ok.into(),
        output_tokens: told["usage"]["completion_tokens"].as_u64(),
        prompt_tokens: Some(prompt_tokens(&told)?),
    };
    admission.complete(complete).await?;
    Ok(Said { admitted: true, count, tokens })
}
