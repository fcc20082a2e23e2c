//! `/v1/completions` and `/v1/chat/completions`: real requests, answered with placeholder words.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use http_body_util::Either;
use hyper::{
    Response, StatusCode,
    body::Bytes,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    engine::Refusal,
    http::{Reply, error, json as json_reply},
    live::{Ask, Live, Progress, Stream, SubmitError},
    number::len,
    sse::{MAX_PIECES, Sse},
    stats::Finish,
};

/// Most sequences per request.
const MAX_SEQUENCES: u32 = 16;
/// Output limit of a completion that sets none, as in the OpenAI API; a chat may use the rest of the window.
const DEFAULT_COMPLETION_TOKENS: u64 = 16;
/// Bytes of text that stand for one token: about what an English text has.
const BYTES_PER_TOKEN: usize = 4;
/// Tokens that the chat template adds per message.
const TOKENS_PER_MESSAGE: u64 = 4;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Completions,
    Chat,
}

#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    prompt: Option<Prompt>,
    messages: Option<Vec<Message>>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    n: Option<u32>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    ignore_eos: bool,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Debug, Deserialize)]
struct Message {
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(default)]
    text: String,
}

/// A request on its way.
struct Request {
    id: String,
    /// Seconds since 1970.
    created: u64,
    endpoint: Endpoint,
    model: String,
    prompt_tokens: u64,
    sequences: Vec<Stream>,
    include_usage: bool,
}

/// Puts the request into the engine and answers when it has ended, or piece by piece.
pub(crate) async fn answer(live: &Arc<Live>, endpoint: Endpoint, body: &[u8]) -> Reply {
    let body: Body = match serde_json::from_slice(body) {
        Ok(body) => body,
        // The error's own text may quote the prompt.
        Err(problem) => {
            let place = format!("line {}, column {}", problem.line(), problem.column());
            return bad_request(None, &format!("the body is not a valid request ({place})"));
        }
    };
    match submit(live, endpoint, &body) {
        Ok(request) if body.stream => stream(request),
        Ok(request) => whole(request).await,
        Err(refusal) => *refusal,
    }
}

fn submit(live: &Arc<Live>, endpoint: Endpoint, body: &Body) -> Result<Request, Box<Reply>> {
    let refuse = |param, message: &str| Err(Box::new(bad_request(param, message)));
    let model = body.model.clone().unwrap_or_else(|| live.spec.model.clone());
    if model != live.spec.model {
        let message = format!("The model `{model}` does not exist.");
        return Err(Box::new(error(StatusCode::NOT_FOUND, "NotFoundError", Some("model"), &message)));
    }
    let Some(prompt_tokens) = prompt_tokens(endpoint, body) else {
        return refuse(None, "prompt: a text or token ids; messages in a chat");
    };
    let n = body.n.unwrap_or(1);
    if !(1..=MAX_SEQUENCES).contains(&n) {
        return refuse(Some("n"), &format!("n: {n} is not allowed; 1 to {MAX_SEQUENCES} is"));
    }
    let asked = body.max_completion_tokens.or(body.max_tokens);
    if asked == Some(0) {
        return refuse(Some("max_tokens"), "max_tokens must be at least 1, got 0.");
    }
    let max_tokens = match endpoint {
        Endpoint::Completions => Some(asked.unwrap_or(DEFAULT_COMPLETION_TOKENS)),
        Endpoint::Chat => asked,
    };
    let ask = Ask { prompt_tokens, max_tokens, ignore_eos: body.ignore_eos };
    let sequences: Result<Vec<Stream>, SubmitError> = (0..n).map(|_| live.submit(ask)).collect();
    let sequences = sequences.map_err(|refusal| Box::new(refused(refusal, ask)))?;
    let include_usage = body.stream_options.as_ref().is_some_and(|options| options.include_usage);
    let id = request_id(endpoint, &sequences);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(Request { id, created, endpoint, model, prompt_tokens, sequences, include_usage })
}

fn request_id(endpoint: Endpoint, sequences: &[Stream]) -> String {
    let prefix = match endpoint {
        Endpoint::Completions => "cmpl",
        Endpoint::Chat => "chatcmpl",
    };
    format!("{prefix}-sim-{}", sequences.first().map_or(0, Stream::id))
}

/// Tokens of the prompt; `None` when there is none.
fn prompt_tokens(endpoint: Endpoint, body: &Body) -> Option<u64> {
    let of_text = |bytes: usize| len(bytes.div_ceil(BYTES_PER_TOKEN)).max(1);
    let of_message = |message: &Message| {
        let bytes = match &message.content {
            None => 0,
            Some(Content::Text(text)) => text.len(),
            Some(Content::Parts(parts)) => parts.iter().map(|part| part.text.len()).sum(),
        };
        of_text(bytes) + TOKENS_PER_MESSAGE
    };
    match (endpoint, &body.prompt, &body.messages) {
        (Endpoint::Completions, Some(Prompt::Text(text)), _) => Some(of_text(text.len())),
        (Endpoint::Completions, Some(Prompt::Tokens(tokens)), _) => Some(len(tokens.len()).max(1)),
        (Endpoint::Chat, _, Some(messages)) if !messages.is_empty() => {
            Some(messages.iter().map(of_message).sum())
        }
        _ => None,
    }
}

fn refused(refusal: SubmitError, ask: Ask) -> Reply {
    match refusal {
        SubmitError::Refused(Refusal::TooLong { max_model_len }) => {
            let Ask { prompt_tokens, max_tokens, .. } = ask;
            let output = max_tokens.unwrap_or(1);
            let message = format!(
                "This model's maximum context length is {max_model_len} tokens. However, you requested {output} output \
                 tokens and your prompt contains {prompt_tokens} input tokens."
            );
            bad_request(Some("input_text"), &message)
        }
        SubmitError::Refused(Refusal::QueueFull) | SubmitError::NotRunning => unavailable(),
    }
}

async fn whole(mut request: Request) -> Reply {
    let mut choices = Vec::with_capacity(request.sequences.len());
    let mut generated = 0;
    for (index, sequence) in request.sequences.iter_mut().enumerate() {
        let Some(end) = sequence.end().await else { return unavailable() };
        generated += end.generated;
        let (text, reason) = (words(0, end.generated), end.finish.map(Finish::as_str));
        choices.push(match request.endpoint {
            Endpoint::Completions => json!({ "index": index, "text": text, "finish_reason": reason }),
            Endpoint::Chat => {
                let message = json!({ "role": "assistant", "content": text.trim_start() });
                json!({ "index": index, "message": message, "finish_reason": reason })
            }
        });
    }
    let kind = match request.endpoint {
        Endpoint::Completions => "text_completion",
        Endpoint::Chat => "chat.completion",
    };
    json_reply(StatusCode::OK, &request.envelope(kind, &choices, Some(generated)))
}

fn stream(request: Request) -> Reply {
    let (pieces, receiver) = mpsc::channel(MAX_PIECES);
    tokio::spawn(async move {
        let client_gone = pieces.clone();
        // Dropping the request aborts it in the engine.
        tokio::select! {
            () = send_pieces(request, pieces) => {}
            () = client_gone.closed() => {}
        }
    });
    let mut reply = Response::new(Either::Right(Sse(receiver)));
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply
}

/// Sequence by sequence: those behind the first have their text by then.
async fn send_pieces(mut request: Request, pieces: mpsc::Sender<Bytes>) {
    let mut generated = 0;
    let mut sequences = std::mem::take(&mut request.sequences);
    for (index, sequence) in sequences.iter_mut().enumerate() {
        let mut told = 0;
        while let Some(progress) = next(sequence, told).await {
            let piece = request.piece(index, told, progress);
            told = progress.generated;
            if pieces.send(event(&piece)).await.is_err() {
                return;
            }
            if progress.finish.is_some() {
                break;
            }
        }
        generated += told;
    }
    if request.include_usage {
        let last = request.envelope(request.piece_kind(), &[], Some(generated));
        // A client that went away meanwhile needs no end.
        let _ = pieces.send(event(&last)).await;
    }
    let _ = pieces.send(Bytes::from_static(b"data: [DONE]\n\n")).await;
}

/// What is new behind `told` tokens; `None` when the engine has died.
async fn next(sequence: &mut Stream, told: u64) -> Option<Progress> {
    let now = sequence.progress();
    if now.generated > told || now.finish.is_some() { Some(now) } else { sequence.next().await }
}

impl Request {
    /// An answer or a piece of one; with the usage when it tells how many tokens all sequences generated.
    fn envelope(&self, kind: &str, choices: &[Value], generated: Option<u64>) -> Value {
        let prompt = self.prompt_tokens;
        let usage = generated.map(|generated| {
            let total = prompt + generated;
            json!({ "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": total })
        });
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices,
            "usage": usage,
        })
    }

    const fn piece_kind(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Completions => "text_completion",
            Endpoint::Chat => "chat.completion.chunk",
        }
    }

    fn piece(&self, index: usize, told: u64, progress: Progress) -> Value {
        let (text, reason) = (words(told, progress.generated), progress.finish.map(Finish::as_str));
        let choice = match self.endpoint {
            Endpoint::Completions => json!({ "index": index, "text": text, "finish_reason": reason }),
            Endpoint::Chat => {
                json!({ "index": index, "delta": { "content": text }, "finish_reason": reason })
            }
        };
        self.envelope(self.piece_kind(), &[choice], None)
    }
}

fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

/// The text of tokens `from` to `to`: a word each.
fn words(from: u64, to: u64) -> String {
    const WORDS: [&str; 8] = [" the", " quick", " brown", " fox", " jumps", " over", " lazy", " dogs"];
    let skip = usize::try_from(from % len(WORDS.len())).unwrap_or(0);
    let number = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    WORDS.iter().copied().cycle().skip(skip).take(number).collect()
}

fn bad_request(param: Option<&str>, message: &str) -> Reply {
    error(StatusCode::BAD_REQUEST, "BadRequestError", param, message)
}

fn unavailable() -> Reply {
    let message = "The engine is currently busy or down.";
    error(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", None, message)
}
