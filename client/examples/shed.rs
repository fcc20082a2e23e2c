//! A load shedder: reads how long prompts are, one number a line, and says which of them should go in now.
//!
//! `seq 100 200 5000 | cargo run --example shed MODEL` shows how many of these the engine takes at once. Each one admitted
//! is held for two seconds, as if it ran.

use std::{io::BufRead as _, time::Duration};

use anyhow::Context as _;
use gpuadmit_client::{
    gate::{Gate, Options, WhenAbsent},
    v1::{AdmitRequest, Outcome, PriorityClass, admit_request::Prompt},
};
use tokio::{task::JoinSet, time::sleep};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let model = std::env::args().nth(1).context("usage: shed MODEL < PROMPT-LENGTHS")?;
    let when_absent = WhenAbsent::Deny { retry_after: Duration::from_secs(1) };
    let gate = Gate::new(Options { when_absent, ..Options::default() })?;
    let mut running = JoinSet::new();
    for line in std::io::stdin().lock().lines() {
        let tokens: u64 = line?.trim().parse().context("a number of prompt tokens")?;
        // What is shed first is what nobody waits for.
        let class = if tokens > 2_000 { PriorityClass::Batch } else { PriorityClass::Interactive };
        let asked = AdmitRequest {
            model: model.clone(),
            prompt: Some(Prompt::PromptTokens(tokens)),
            max_tokens: Some(256),
            priority_class: class.into(),
            ..AdmitRequest::default()
        };
        match gate.admit(asked).await {
            Ok(guard) => {
                println!("{tokens:>6} goes to {}", guard.address().unwrap_or("any engine"));
                running.spawn(async move {
                    sleep(Duration::from_secs(2)).await;
                    guard.complete(Outcome::NotSent, None, None);
                });
            }
            Err(refusal) => println!("{tokens:>6} is shed, status {}: {refusal}", refusal.http_status),
        }
    }
    while running.join_next().await.is_some() {}
    Ok(())
}
