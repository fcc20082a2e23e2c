//! What a request body costs before it is decided on: read and bounded, and counted exactly, by its length.
//!
//! The tokenizer is the small one of the tests; `GPUADMIT_BENCH_MODEL` names the folder of another model.

use std::{
    env,
    hint::black_box,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use gpuadmit_core::snapshot::Snapshot;
use gpuadmit_tests::bench::{
    samples::Samples,
    smoke,
    table::{Report, time},
};
use gpuadmitd::{
    config::Config,
    tokens::{Text, Tokens, body::Body, measure},
};

/// Lengths of the message, characters.
const LENGTHS: [usize; 3] = [1_000, 10_000, 100_000];
const CALLS: usize = 200;
const SMOKE_CALLS: usize = 2;
/// Longest time for one count.
const DEADLINE: Duration = Duration::from_secs(10);
const MODEL: &str = "m";
/// What a message is made of, over and over.
const PROSE: &str = "The engine holds 4,096 blocks; a request of 812 tokens takes 51 of them, and grows by one every 16 \
                     tokens until it ends. Ein Satz mit Umlauten: größer, früher. fn main() { println!(\"{}\", 1 + 2); }\n";

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let tokens = Tokens::new(&config()?);
    let calls = if smoke() { SMOKE_CALLS } else { CALLS };
    let mut rows = Vec::new();
    for length in LENGTHS {
        let body = chat(length);
        let bounded = bound(&body, calls)?;
        let (counted, found) = runtime.block_on(count(&tokens, &body, calls))?;
        let [bounded, counted] = [bounded, counted].map(|samples| time(samples.sorted().quantile(500)));
        rows.push(vec![length.to_string(), bounded, counted, found.to_string()]);
    }
    let mut report = Report::new("tokens");
    report.table(&["characters", "read and bounded, p50", "counted exactly, p50", "tokens"], &rows);
    report.paragraph(&format!(
        "Chat bodies of one message, {calls} of each length. Exact counting is on a thread of its own, the way there and \
         back included."
    ));
    report.write()?;
    Ok(())
}

fn config() -> Result<Config> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tokenizer");
    let path = env::var_os("GPUADMIT_BENCH_MODEL").map_or(own, PathBuf::from);
    let deadline = DEADLINE.as_millis();
    let path = path.to_str().context("the folder's name is not UTF-8")?;
    Ok(toml::from_str(&format!(
        "[tokens]\ndeadline_ms = {deadline}\n[[tokenizer]]\nmodel = {MODEL:?}\npath = {path:?}\n"
    ))?)
}

fn chat(length: usize) -> Vec<u8> {
    let content: String = PROSE.chars().cycle().take(length).collect();
    let message = serde_json::json!({ "role": "user", "content": content });
    serde_json::json!({ "model": MODEL, "messages": [message], "max_tokens": 256 }).to_string().into_bytes()
}

fn bound(body: &[u8], calls: usize) -> Result<Samples> {
    let mut samples = Samples::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        black_box(measure::body(&Body::read(black_box(body))?, 0));
        samples.since(start);
    }
    Ok(samples)
}

/// Durations, and the tokens found.
async fn count(tokens: &Tokens, body: &[u8], calls: usize) -> Result<(Samples, u64)> {
    let nothing = Snapshot::default();
    let mut samples = Samples::with_capacity(calls);
    let mut found = 0;
    // The first one loads the tokenizer.
    for round in 0..=calls {
        let body = Text::Body(body.to_vec());
        let start = Instant::now();
        let counted = tokens.count(MODEL, &nothing, body).await.context("it was not counted")?;
        if round > 0 {
            samples.since(start);
        }
        ensure!(counted.exact, "it was not counted exactly");
        found = counted.prompts.total.0;
    }
    Ok((samples, found))
}
