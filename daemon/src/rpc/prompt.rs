//! A prompt as it comes in a message: measured on arrival, and taken out of it, so that its text lives no longer than it
//! takes to count it.

use gpuadmit_core::{
    count::TextSize,
    prompts::Prompts,
    request::{MAX_COUNT, Prompt, RequestError},
    units::Tokens,
};
use gpuadmit_proto::v1::{AdmitRequest, PriorityClass, admit_request};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::check::{absent, optional};
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
    // Only a body can say that nothing is to be generated.
    optional("max_tokens", message.max_tokens, 1..=MAX_COUNT, "1 to 4294967295")?;
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
    let body = Body::read(text).map_err(refused)?;
    fill_in(message, &body)?;
    let counted = |lengths: &Vec<u64>| {
        let most = body.cut.unwrap_or(TextSize::WINDOW);
        let prompts: Prompts = lengths.iter().map(|length| Tokens(*length).min(most)).collect();
        if prompts.count == 1 { Prompt::Tokens(prompts.total) } else { Prompt::Several(prompts) }
    };
    match &body.input {
        // How much the window holds, only its engine knows.
        Input::Ids(lengths) if body.cut != Some(TextSize::WINDOW) => Ok(counted(lengths)),
        Input::Nothing => Err(RequestError::wrong("openai_body", "has no prompt, messages or input", BODY)),
        _ => Ok(Prompt::Text(measure::body(&body, counts.media_tokens()))),
    }
}

const JSON: &str = "a JSON object whose values have the types of OpenAI's API";
const BODY: &str = "a JSON object with prompt, messages or input, as OpenAI's API has it";

fn refused(error: BodyError) -> RequestError {
    match error {
        BodyError::Field { field, allowed } => {
            RequestError::wrong(field, "its value in openai_body is not allowed", allowed)
        }
        BodyError::Json { .. } => {
            RequestError::wrong("openai_body", format!("not understood at {error}"), JSON)
        }
        BodyError::NotUnderstood { .. } | BodyError::TooMany => RequestError::Body(error.to_string()),
    }
}

fn no_model() -> RequestError {
    RequestError::wrong("model", "missing", "name it in the request or in openai_body")
}

fn fill_in(message: &mut AdmitRequest, body: &Body<'_>) -> Result<(), RequestError> {
    if message.model.is_empty() {
        let model = body.model.as_ref().filter(|model| !model.is_empty());
        message.model = model.ok_or_else(no_model)?.to_string();
    }
    message.max_tokens = message.max_tokens.or(body.max_tokens);
    message.n = message.n.or(body.n);
    message.has_stop |= body.has_stop;
    if message.priority_class() == PriorityClass::Unspecified {
        let class = match body.priority.unwrap_or(0) {
            ..0 => PriorityClass::Interactive,
            0 => PriorityClass::Unspecified,
            1.. => PriorityClass::Batch,
        };
        message.set_priority_class(class);
    }
    Ok(())
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
        assert_eq!((message.model.as_str(), message.max_tokens, message.n), ("m", Some(5), Some(2)));
        assert_eq!((message.has_stop, message.priority_class()), (true, PriorityClass::Batch));
        assert_eq!(message.prompt, None);
        let Ok(Prompt::Text(size)) = prompt else { panic!("{prompt:?}") };
        assert_eq!((size.bytes, size.prompts), (2, 2));
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
    fn token_ids_are_a_count_of_each_prompt() {
        let (_, prompt) = taken(r#"{"model":"m","prompt":[[1,2],[3]]}"#, AdmitRequest::default());
        let prompts = Prompts { count: 2, total: Tokens(3), longest: Tokens(2) };
        assert_eq!(prompt, Ok(Prompt::Several(prompts)));
        let (_, one) = taken(r#"{"model":"m","prompt":[1,2,3]}"#, AdmitRequest::default());
        assert_eq!(one, Ok(Prompt::Tokens(Tokens(3))));
    }

    #[test]
    fn token_ids_are_cut_where_the_body_says_so() {
        let body = r#"{"model":"m","prompt":[[1,2,3,4],[5]],"truncate_prompt_tokens":3}"#;
        let prompts = Prompts { count: 2, total: Tokens(4), longest: Tokens(3) };
        assert_eq!(taken(body, AdmitRequest::default()).1, Ok(Prompt::Several(prompts)));
        let body = r#"{"model":"m","prompt":[1,2,3],"truncate_prompt_tokens":-1}"#;
        let (_, Ok(Prompt::Text(size))) = taken(body, AdmitRequest::default()) else { panic!() };
        assert_eq!((size.known, size.cut), (Tokens(3), Some(TextSize::WINDOW)));
    }

    #[test]
    fn nothing_is_generated_only_where_a_body_says_so() {
        let (message, _) = taken(r#"{"model":"m","prompt":"a","max_tokens":0}"#, AdmitRequest::default());
        assert_eq!(message.max_tokens, Some(0));
        let told = AdmitRequest { max_tokens: Some(0), ..AdmitRequest::default() };
        let error = taken(r#"{"model":"m","prompt":"a"}"#, told).1.unwrap_err().to_string();
        assert_eq!(error, "max_tokens: 0 is not allowed; 1 to 4294967295");
    }

    #[test]
    fn a_body_that_is_none_is_the_callers_mistake_and_is_not_quoted() {
        for body in ["secret", "{\"model\":\"m\"}", "[1]", "{\"prompt\":\"secret"] {
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
        assert!(wrong.starts_with("input: its value in openai_body is not allowed; a string, "), "{wrong}");
        let body = "a JSON object with prompt, messages or input, as OpenAI's API has it";
        assert_eq!(
            said(r#"{"model":"m"}"#),
            format!("openai_body: has no prompt, messages or input; {body}")
        );
        assert_eq!(
            said(r#"{"prompt":"a","max_tokens":-1}"#),
            "max_tokens: its value in openai_body is not allowed; a whole number of at least 0"
        );
        assert_eq!(
            said(r#"{"query":"a","documents":["b"]}"#),
            "openai_body: `query` is not understood; ask for each prompt with prompt_tokens"
        );
        for without in [r#"{"prompt":"a"}"#, r#"{"model":null,"prompt":"a"}"#, r#"{"model":"","prompt":"a"}"#]
        {
            assert_eq!(said(without), "model: missing; name it in the request or in openai_body");
        }
    }

    #[test]
    fn a_body_beyond_what_is_read_is_refused() {
        let body = format!("{{\"model\":\"m\",\"messages\":[{}{{}}]}}", "{},".repeat(5000));
        let error = taken(&body, AdmitRequest::default()).1.unwrap_err().to_string();
        assert_eq!(error, "openai_body: a list is longer than 4096 items");
    }
}
