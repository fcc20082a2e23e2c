//! A prompt as it comes in a message: measured on arrival, and taken out of it, so that its text lives no longer than it
//! takes to count it.

use gpuadmit_core::{
    request::{Prompt, RequestError},
    units::Tokens,
};
use gpuadmit_proto::v1::{AdmitRequest, PriorityClass, admit_request};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::check::absent;
use crate::tokens::{
    self, Text,
    body::{Body, BodyError, Input},
    measure,
};

/// Longer texts are measured where they hold up nobody else's call, bytes: measuring takes some milliseconds per MiB.
const LONG_BYTES: usize = 256 << 10;

/// Takes the prompt out of `message`, with its text where it has one. What the message leaves open is filled in from a
/// request body.
///
/// # Errors
/// There is no prompt, or the body is none.
pub(super) fn take(
    message: &mut AdmitRequest,
    counts: &tokens::Tokens,
) -> Result<(Prompt, Option<Text>), RequestError> {
    match message.prompt.take() {
        Some(admit_request::Prompt::PromptTokens(tokens)) => Ok((Prompt::Tokens(Tokens(tokens)), None)),
        Some(admit_request::Prompt::PromptBytes(bytes)) => Ok((Prompt::Bytes(bytes), None)),
        Some(admit_request::Prompt::Text(text)) => {
            let size = apart(text.len(), || measure::text(&text));
            Ok((Prompt::Text(size), Some(Text::Plain(text))))
        }
        Some(admit_request::Prompt::OpenaiBody(body)) => {
            let prompt = apart(body.len(), || read(message, &body, counts))?;
            let text = matches!(prompt, Prompt::Text(_)).then_some(Text::Body(body));
            Ok((prompt, text))
        }
        None => Err(absent("prompt", "one of prompt_tokens, openai_body, text, prompt_bytes")),
    }
}

fn read(message: &mut AdmitRequest, text: &[u8], counts: &tokens::Tokens) -> Result<Prompt, RequestError> {
    let body = match Body::read(text) {
        Ok(body) => body,
        // Beyond what is read, but perhaps not beyond what the engine takes: its length is a bound.
        Err(BodyError::TooMany) => return Ok(Prompt::Bytes(u64::try_from(text.len()).unwrap_or(u64::MAX))),
        Err(BodyError::Field { field, allowed }) => {
            return Err(RequestError::wrong(field, "its value in openai_body is not allowed", allowed));
        }
        Err(error @ BodyError::Json { .. }) => {
            return Err(RequestError::wrong("openai_body", format!("not understood at {error}"), JSON));
        }
    };
    fill_in(message, &body);
    let size = measure::body(&body, counts.media_tokens());
    match body.input {
        Input::Ids { tokens, .. } => Ok(Prompt::Tokens(Tokens(tokens))),
        Input::Nothing => Err(RequestError::wrong("openai_body", "has no prompt, messages or input", BODY)),
        Input::Texts(_) | Input::Chat(_) | Input::Responses(_) => Ok(Prompt::Text(size)),
    }
}

const JSON: &str = "a JSON object whose values have the types of OpenAI's API";
const BODY: &str = "a JSON object with prompt, messages or input, as OpenAI's API has it";

fn fill_in(message: &mut AdmitRequest, body: &Body<'_>) {
    if message.model.is_empty()
        && let Some(model) = &body.model
    {
        message.model = model.to_string();
    }
    message.max_tokens = message.max_tokens.or(body.max_tokens);
    // Each prompt of a batch is a request of its own to the engine, with as many sequences.
    let prompts = match &body.input {
        Input::Texts(texts) => u32::try_from(texts.len()).unwrap_or(u32::MAX),
        Input::Ids { prompts, .. } => u32::try_from(*prompts).unwrap_or(u32::MAX),
        Input::Nothing | Input::Chat(_) | Input::Responses(_) => 1,
    };
    let sequences = message.n.or(body.n).unwrap_or(1).saturating_mul(prompts.max(1));
    message.n = message.n.or(body.n).map(|_| sequences).or((sequences > 1).then_some(sequences));
    message.has_stop |= body.has_stop;
    if message.priority_class() == PriorityClass::Unspecified {
        let class = match body.priority.unwrap_or(0) {
            ..0 => PriorityClass::Interactive,
            0 => PriorityClass::Unspecified,
            1.. => PriorityClass::Batch,
        };
        message.set_priority_class(class);
    }
}

/// Does `work`; on a text of so many bytes that others would have to wait for, apart from them.
fn apart<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let threads =
        Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes > LONG_BYTES && threads { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn taken(body: &str, message: AdmitRequest) -> (AdmitRequest, Result<Prompt, RequestError>) {
        let mut message =
            AdmitRequest { prompt: Some(admit_request::Prompt::OpenaiBody(body.into())), ..message };
        let taken = take(&mut message, &tokens::Tokens::new(&Config::default()));
        (message, taken.map(|(prompt, _)| prompt))
    }

    #[test]
    fn a_body_fills_in_what_the_message_leaves_open() {
        let body = r#"{"model":"m","prompt":["a","b"],"max_tokens":5,"n":2,"stop":"x","priority":3}"#;
        let (message, prompt) = taken(body, AdmitRequest::default());
        assert_eq!((message.model.as_str(), message.max_tokens, message.n), ("m", Some(5), Some(4)));
        assert_eq!((message.has_stop, message.priority_class()), (true, PriorityClass::Batch));
        assert_eq!(message.prompt, None);
        let Ok(Prompt::Text(size)) = prompt else { panic!("{prompt:?}") };
        assert_eq!(size.bytes, 2);
        let told = AdmitRequest {
            model: "other".into(),
            max_tokens: Some(9),
            n: Some(1),
            ..AdmitRequest::default()
        };
        let (message, _) = taken(r#"{"model":"m","prompt":"a","max_tokens":5,"n":2}"#, told);
        assert_eq!((message.model.as_str(), message.max_tokens, message.n), ("other", Some(9), Some(1)));
    }

    #[test]
    fn token_ids_are_a_count() {
        let (_, prompt) = taken(r#"{"prompt":[[1,2],[3]]}"#, AdmitRequest::default());
        assert_eq!(prompt, Ok(Prompt::Tokens(Tokens(3))));
    }

    #[test]
    fn a_body_that_is_none_is_the_callers_mistake_and_is_not_quoted() {
        for body in ["secret", "{\"prompt\":{\"secret\":1}}", "{}", "[1]", "{\"prompt\":\"secret"] {
            let (_, prompt) = taken(body, AdmitRequest::default());
            let error = prompt.unwrap_err().to_string();
            assert!(error.starts_with("openai_body: ") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_body_is_said_once_by_its_place_or_its_key() {
        let said = |body| taken(body, AdmitRequest::default()).1.unwrap_err().to_string();
        let json = "a JSON object whose values have the types of OpenAI's API";
        assert_eq!(said("{\n\"x"), format!("openai_body: not understood at line 2, column 2; {json}"));
        // What is there is not asked for.
        let wrong = said(r#"{"model":"m","input":7}"#);
        assert!(
            wrong.starts_with("openai_body: not understood at line 1, ") && wrong.ends_with(json),
            "{wrong}"
        );
        let body = "a JSON object with prompt, messages or input, as OpenAI's API has it";
        assert_eq!(
            said(r#"{"model":"m"}"#),
            format!("openai_body: has no prompt, messages or input; {body}")
        );
        assert_eq!(
            said(r#"{"prompt":"a","max_tokens":-1}"#),
            "max_tokens: its value in openai_body is not allowed; a whole number of at least 1"
        );
    }

    #[test]
    fn a_body_beyond_what_is_read_counts_by_its_length() {
        let body = format!("{{\"messages\":[{}{{}}]}}", "{},".repeat(5000));
        let (_, prompt) = taken(&body, AdmitRequest::default());
        assert_eq!(prompt, Ok(Prompt::Bytes(body.len() as u64)));
    }
}
