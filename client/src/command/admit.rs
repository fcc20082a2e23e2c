//! `gpuadmit admit`

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use gpuadmit_client::{
    CALL_DEADLINE, Connection,
    v1::{
        AdmitRequest, AdmitResponse, Engine, PriorityClass, StatusRequest, admit_request::Prompt,
        admit_response::Result as Answer, denied::Reason,
    },
    within,
};

use super::{
    Exit,
    duration::{LONGEST_WAIT, between, millis_u32},
    output::Output,
};
use crate::render::{self, Canvas};

/// Largest request body read from a file, bytes; the daemon's own limit is lower.
const MAX_BODY_BYTES: u64 = 64 << 20;
const MS: Duration = Duration::from_millis(1);

/// Ask whether one request may go to an engine now; exit status 1 when it may not.
///
/// What is admitted holds its room until `gpuadmit complete`, or until the engine shows that it has ended.
#[derive(Args, Debug)]
pub(crate) struct Admit {
    /// Model name as clients send it; a request body may name it.
    #[arg(required_unless_present = "openai_body")]
    model: Option<String>,
    /// Ask about this engine only (its id from `status`).
    #[arg(long, value_name = "ID")]
    engine: Option<String>,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Output tokens per sequence that the client asked for.
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// Sequences to generate.
    #[arg(short, long)]
    n: Option<u32>,
    /// The request sets stop sequences.
    #[arg(long)]
    has_stop: bool,
    /// Priority class.
    #[arg(long, value_enum, default_value_t = Class::Standard)]
    class: Class,
    /// Who pays for the request.
    #[arg(long)]
    tenant: Option<String>,
    /// Requests with one key share a prompt prefix (a conversation).
    #[arg(long, value_name = "KEY")]
    session_key: Option<String>,
    /// First token wanted within this time, such as 800ms.
    #[arg(long, value_name = "TIME", value_parser = between(MS, Duration::from_hours(1)))]
    ttft_objective: Option<Duration>,
    /// Time between two tokens wanted, such as 50ms.
    #[arg(long, value_name = "TIME", value_parser = between(MS, Duration::from_mins(1)))]
    pace_objective: Option<Duration>,
    /// Wait this long for room, such as 5s; at most 10m.
    #[arg(long, value_name = "TIME", value_parser = between(Duration::ZERO, LONGEST_WAIT), default_value = "0s")]
    wait: Duration,
    /// Idempotency key: the same id and content gives the same reservation.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// The X-Data-Parallel-Rank that is answered will be sent along.
    #[arg(long)]
    forwards_data_parallel_rank: bool,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

/// The prompt, in one of four forms.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct PromptArgs {
    /// Exact number of prompt tokens.
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<u64>,
    /// File with the raw OpenAI request body; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    openai_body: Option<PathBuf>,
    /// The prompt itself.
    #[arg(long)]
    text: Option<String>,
    /// Length of the prompt in bytes.
    #[arg(long, value_name = "N")]
    prompt_bytes: Option<u64>,
}

/// Priority class.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Class {
    /// A person waits for the first token.
    Interactive,
    /// The default.
    Standard,
    /// Nobody waits.
    Batch,
}

impl Admit {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        let (json, deadline) = (self.json, CALL_DEADLINE.saturating_add(self.wait));
        let response = connection
            .admission()
            .admit(within(deadline, self.request()?))
            .await
            .map_err(|status| connection.explain(&status))?
            .into_inner();
        if json {
            output.json(&response)?;
        } else {
            output.print(&render::decision::decision(&response, output.canvas()))?;
            output.print(&known(&response, connection, output.canvas()).await?)?;
        }
        match response.result {
            Some(Answer::Admitted(_)) => Ok(Exit::Fine),
            Some(Answer::Denied(_)) => Ok(Exit::Denied),
            None => bail!(
                "the daemon answered neither yes nor no; it may be newer than this command: compare `gpuadmit --version`"
            ),
        }
    }

    fn request(self) -> anyhow::Result<AdmitRequest> {
        let class = match self.class {
            Class::Interactive => PriorityClass::Interactive,
            Class::Standard => PriorityClass::Standard,
            Class::Batch => PriorityClass::Batch,
        };
        Ok(AdmitRequest {
            prompt: self.prompt.read()?,
            model: self.model.unwrap_or_default(),
            engine: self.engine,
            max_tokens: self.max_tokens,
            n: self.n,
            has_stop: self.has_stop,
            priority_class: class.into(),
            tenant: self.tenant,
            session_key: self.session_key,
            ttft_objective_ms: self.ttft_objective.map(millis_u32),
            pace_objective_ms: self.pace_objective.map(millis_u32),
            wait_ms: millis_u32(self.wait),
            request_id: self.request_id,
            forwards_data_parallel_rank: self.forwards_data_parallel_rank,
        })
    }
}

/// What there is, where the answer is that the model or the engine is not.
async fn known(response: &AdmitResponse, connection: &Connection, canvas: Canvas) -> anyhow::Result<String> {
    let Some(Answer::Denied(denied)) = &response.result else { return Ok(String::new()) };
    let named = match denied.reason() {
        Reason::UnknownEngine => |engine: &Engine| vec![engine.id.clone()],
        Reason::UnknownModel => |engine: &Engine| engine.models.clone(),
        _ => return Ok(String::new()),
    };
    let status = connection.node().status(within(CALL_DEADLINE, StatusRequest { events: Some(0) })).await;
    let status = status.map_err(|status| connection.explain(&status))?;
    let known: BTreeSet<String> = status.get_ref().engines.iter().flat_map(named).collect();
    let known: Vec<String> = known.iter().map(|name| render::safe(name)).collect();
    Ok(if known.is_empty() { "  known     none\n".into() } else { canvas.flow("  known     ", ", ", &known) })
}

impl PromptArgs {
    fn read(self) -> anyhow::Result<Option<Prompt>> {
        let body = self.openai_body.as_deref().map(read_body).transpose()?;
        Ok(body
            .map(Prompt::OpenaiBody)
            .or(self.prompt_tokens.map(Prompt::PromptTokens))
            .or(self.text.map(Prompt::Text))
            .or(self.prompt_bytes.map(Prompt::PromptBytes)))
    }
}

fn read_body(path: &Path) -> anyhow::Result<Vec<u8>> {
    let what = || format!("cannot read the request body from {}", path.display());
    let source: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).with_context(what)?)
    };
    let mut body = Vec::new();
    let read = source.take(MAX_BODY_BYTES + 1).read_to_end(&mut body).with_context(what)?;
    if u64::try_from(read).is_ok_and(|read| read > MAX_BODY_BYTES) {
        bail!("{}: it has more than {MAX_BODY_BYTES} bytes", what());
    }
    Ok(body)
}
