//! Request bodies drawn from the fields of vLLM's own protocol classes (`tests/vllm/bodies.py`): what vLLM accepts is read
//! here as vLLM reads it, or refused by the name of what is not understood.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use gpuadmit_core::{
    count::TextSize,
    node::Node,
    observation::Observation,
    prompts::Prompts,
    request::{MAX_SEQUENCES, Prompt, Request, Verdict},
    units::Tokens,
};
use gpuadmit_tests::node_kit::{at, facts, rank, reading, request, strict};
use gpuadmitd::tokens::{
    body::{Body, BodyError, Input},
    measure,
};
use serde::Deserialize;
use tokio::process::Command;

use crate::engine::SCRIPT;

/// Bodies drawn.
const BODIES: usize = 3000;
/// `WINDOW` of the Python side.
const WINDOW: u64 = 2048;
/// More than any body drawn needs.
const BLOCKS: u64 = 100_000_000;
/// At most this share of what vLLM accepts may be refused by name, percent. APIs that are refused as a whole aside.
const MOST_NAMED: usize = 5;
/// Those.
const REFUSED_APIS: [&str; 3] = ["score", "rerank", "cohere"];

/// What vLLM makes of a body.
#[derive(Debug, Deserialize)]
struct Told {
    api: String,
    body: String,
    valid: bool,
    #[serde(default)]
    only_named: bool,
    #[serde(default)]
    n: u32,
    limit: Option<u64>,
    #[serde(default)]
    prompts: Vec<u64>,
    #[serde(default)]
    output: Vec<u64>,
    special: Option<bool>,
    generation_prompt: Option<bool>,
    messages: Option<u64>,
    text_bytes: Option<u64>,
}

/// What came of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Read as vLLM reads it.
    Same,
    /// vLLM accepts it; here it is refused by name.
    Named,
    /// vLLM refuses it, and it is refused here too.
    Refused,
    /// vLLM refuses it; here it is read.
    Lenient,
}

/// Compares [`BODIES`] bodies.
pub(crate) async fn agrees() -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let seed = std::env::var("GPUADMIT_SEED").unwrap_or_else(|_| now.to_string());
    println!("seed of the bodies: GPUADMIT_SEED={seed}");
    let drawn = Command::new(SCRIPT).args(["bodies", &seed, &BODIES.to_string()]).output().await?;
    ensure!(drawn.status.success(), "bodies.py: {}", String::from_utf8_lossy(&drawn.stderr));
    let (mut outcomes, mut wrong) = (BTreeMap::<(String, Outcome), usize>::new(), Vec::new());
    for line in String::from_utf8(drawn.stdout)?.lines() {
        let told: Told = serde_json::from_str(line).context("a line of bodies.py")?;
        match compared(&told) {
            Ok(outcome) => *outcomes.entry((told.api, outcome)).or_default() += 1,
            Err(why) => wrong.push(format!("{why:#}: {line:.2000}")),
        }
    }
    println!("{outcomes:#?}");
    ensure!(outcomes.values().sum::<usize>() + wrong.len() == BODIES, "bodies are missing");
    ensure!(wrong.is_empty(), "{} misread: {:#?}", wrong.len(), wrong.iter().take(20).collect::<Vec<_>>());
    let of = |wanted| {
        let some = outcomes
            .iter()
            .filter(|((api, outcome), _)| *outcome == wanted && !REFUSED_APIS.contains(&api.as_str()));
        some.map(|(_, count)| count).sum::<usize>()
    };
    let (same, named) = (of(Outcome::Same), of(Outcome::Named));
    println!("of what vLLM accepts: {same} read alike, {named} refused by name");
    ensure!(named * 100 <= MOST_NAMED * (same + named), "{named} of {} are refused by name", same + named);
    Ok(())
}

fn compared(told: &Told) -> Result<Outcome> {
    let body = match Body::read(told.body.as_bytes()) {
        Err(_) if !told.valid => return Ok(Outcome::Refused),
        Err(BodyError::NotUnderstood { .. } | BodyError::TooMany) => return Ok(Outcome::Named),
        Err(error) => bail!("refused, though vLLM accepts it: {error}"),
        Ok(_) if !told.valid => return Ok(Outcome::Lenient),
        Ok(body) => body,
    };
    ensure!(!told.only_named, "read, though only vLLM knows its prompt");
    if told.n > MAX_SEQUENCES {
        return Ok(Outcome::Named);
    }
    ensure!(body.n.unwrap_or(1) == told.n, "n {:?}", body.n);
    let may_generate = generates_more(&body, told);
    ensure!(may_generate || body.max_tokens == told.limit, "max_tokens {:?}", body.max_tokens);
    let (lengths, texts) = lengths(&body, told)?;
    ensure!(lengths == told.prompts, "prompts {lengths:?}");
    if let (Some(special), Some(by_default)) = (told.special, texts) {
        let read = body.add_special_tokens.unwrap_or(by_default);
        ensure!(may_generate || read == special, "add_special_tokens {read}");
    }
    if let Some(prompted) = told.generation_prompt {
        let read = body.chat.add_generation_prompt.unwrap_or(true);
        ensure!(read == prompted || may_generate && read, "add_generation_prompt {read}");
    }
    messages(&body, told)?;
    granted(&body, told, may_generate)?;
    Ok(Outcome::Same)
}

/// Whether the body may as well be one that generates, and is read as that: what is reserved is more than it takes.
fn generates_more(body: &Body<'_>, told: &Told) -> bool {
    let chat = matches!(body.input, Input::Chat(_) | Input::Chats(_));
    told.limit == Some(0) && body.max_tokens != Some(0) && chat
}

/// The length of each prompt as the Python side has it, and whether special tokens are added by default, if at all.
fn lengths(body: &Body<'_>, told: &Told) -> Result<(Vec<u64>, Option<bool>)> {
    let room = if body.max_tokens == Some(0) { WINDOW } else { WINDOW - 1 };
    let cut = |length: u64| match body.cut {
        Some(TextSize::WINDOW) => length.min(room),
        Some(most) => length.min(most.0),
        None => length,
    };
    Ok(match &body.input {
        Input::Nothing => bail!("nothing was read"),
        Input::Ids(lengths) => (lengths.iter().copied().map(cut).collect(), None),
        Input::Texts(texts) => {
            let characters = texts.iter().map(|text| u64::try_from(text.chars().count()));
            let lengths: Result<Vec<u64>, _> = characters.collect();
            (lengths?.into_iter().map(cut).collect(), Some(true))
        }
        // Only vLLM's template says how long they are.
        Input::Chat(_) => {
            ensure!(told.prompts.len() == 1, "one chat");
            (told.prompts.clone(), Some(false))
        }
        Input::Chats(chats) => {
            ensure!(told.prompts.len() == chats.len(), "{} chats", chats.len());
            (told.prompts.clone(), Some(false))
        }
    })
}

/// The texts that every template shows are counted whole; of an Anthropic body vLLM makes others of some.
fn messages(body: &Body<'_>, told: &Told) -> Result<()> {
    let (Some(count), Some(bytes)) = (told.messages, told.text_bytes) else { return Ok(()) };
    let size = measure::body(body, 0);
    let certain = size.bytes - size.optional_bytes;
    if told.api == "anthropic" {
        ensure!((certain..=size.bytes).contains(&bytes), "{certain} to {} bytes of text", size.bytes);
        return Ok(());
    }
    ensure!((size.messages, certain) == (count, bytes), "{} messages, {certain} bytes", size.messages);
    Ok(())
}

/// What is granted in a window of [`WINDOW`] tokens is what vLLM leaves for output.
fn granted(body: &Body<'_>, told: &Told, may_generate: bool) -> Result<()> {
    let prompts: Prompts = told.prompts.iter().copied().map(Tokens).collect();
    let asked = Request {
        prompt: Prompt::Several(prompts),
        max_tokens: body.max_tokens.map(Tokens),
        n: told.n,
        ..request(0, None)
    };
    let mut node = Node::new(strict(), 1);
    node.observe(at(0.0), Observation::Engine(Box::new(facts("e", WINDOW, at(0.0)))));
    node.observe(at(0.0), reading("e", at(0.0), vec![rank(0, BLOCKS, 0, 0, 0, 0)]));
    let Verdict::Admit(admit) = node.admit(at(0.0), &asked)?.verdict else { bail!("denied") };
    let most = told.output.iter().copied().max().unwrap_or(0);
    let alike = prompts.total == Tokens(prompts.longest.0 * u64::from(prompts.count));
    match (admit.max_tokens.map(|granted| granted.0), told.limit) {
        _ if may_generate => {}
        (None, None) | (Some(0), Some(0)) => {}
        (Some(granted), Some(_)) if alike => ensure!(granted == most, "granted {granted}"),
        (Some(granted), Some(limit)) => ensure!((most..=limit).contains(&granted), "granted {granted}"),
        (granted, limit) => bail!("granted {granted:?} for {limit:?}"),
    }
    Ok(())
}
