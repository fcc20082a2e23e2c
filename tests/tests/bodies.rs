//! Request bodies over the socket: what is admitted of them, against what vLLM 0.32 serves.

use gpuadmit_core::observation::Observation;
use gpuadmit_proto::v1::{
    AdmitRequest, AdmitResponse, Admitted, PromptCount, admit_request::Prompt,
    admit_response::Result as Answer, denied::Reason,
};
use gpuadmit_tests::{
    node_kit::{BLOCK_SIZE, facts, rank, reading},
    served::{Served, quiet},
};
use gpuadmitd::clock;
use serde_json::{Value, json};

/// Context window of the engine.
const WINDOW: u64 = 8192;
/// Its blocks.
const BLOCKS: u64 = 20_000;

/// A daemon beside an idle engine, without a tokenizer.
fn served() -> Served {
    let served = Served::start(quiet());
    let now = clock::now();
    served.handle.observe(Observation::Engine(Box::new(facts("e", WINDOW, now))));
    served.handle.observe(reading("e", now, vec![rank(0, BLOCKS, 0, 0, 0, 0)]));
    served
}

async fn ask(served: &Served, body: &[u8]) -> Result<AdmitResponse, String> {
    let request = AdmitRequest { prompt: Some(Prompt::OpenaiBody(body.to_vec())), ..AdmitRequest::default() };
    let answer = served.connection.admission().admit(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
}

async fn answer(served: &Served, body: &Value) -> AdmitResponse {
    ask(served, body.to_string().as_bytes()).await.unwrap()
}

fn admitted(answer: &AdmitResponse) -> &Admitted {
    let Some(Answer::Admitted(admitted)) = &answer.result else { panic!("{answer:?}") };
    admitted
}

fn reason(answer: &AdmitResponse) -> Reason {
    let Some(Answer::Denied(denied)) = &answer.result else { panic!("{answer:?}") };
    denied.reason()
}

/// Blocks of a sequence of so many tokens.
fn blocks(tokens: u64) -> u64 {
    tokens.div_ceil(BLOCK_SIZE)
}

#[tokio::test]
async fn a_list_of_prompts_is_a_batch_each_with_its_own_prompt_output_and_window() {
    let served = served();
    let ten = json!({ "model": "m", "prompt": vec![vec![7; 1000]; 10], "max_tokens": 100 });
    let said = answer(&served, &ten).await;
    assert_eq!((said.prompt_tokens, said.prompt_count()), (Some(10_000), PromptCount::Exact));
    assert_eq!((admitted(&said).blocks_reserved, admitted(&said).max_tokens), (10 * blocks(1100), Some(100)));

    // Two sequences of each: 62 full blocks shared, the rest twice.
    let mut twice = ten.clone();
    twice["n"] = 2.into();
    assert_eq!(admitted(&answer(&served, &twice).await).blocks_reserved, 10 * (62 + 2 * (blocks(1100) - 62)));

    // What the window leaves is what it leaves to each.
    let mut long = ten.clone();
    long["max_tokens"] = 8000.into();
    assert_eq!(admitted(&answer(&served, &long).await).max_tokens, Some(WINDOW - 1000));
    let one_too_long = json!({ "model": "m", "prompt": [vec![7; 9000], vec![7; 3]] });
    assert_eq!(reason(&answer(&served, &one_too_long).await), Reason::ContextTooLong);
    served.stop().await;
}

#[tokio::test]
async fn a_batch_of_texts_is_bounded_by_all_of_them() {
    let served = served();
    let short: Vec<String> = (0..200).map(|number| format!("What is {number} plus 1?")).collect();
    let bytes: u64 = short.iter().map(|text| text.len() as u64).sum();
    let said = answer(&served, &json!({ "model": "m", "prompt": short })).await;
    // A token per byte, and four more of each.
    assert_eq!((said.prompt_tokens, said.prompt_count()), (Some(bytes + 200 * 4), PromptCount::Bounded));
    assert_eq!(admitted(&said).max_tokens, Some(16));
    let least: u64 = short_blocks(bytes + 200 * 20);
    assert!(admitted(&said).blocks_reserved >= least, "{said:?}");

    // A hundred of a thousand words: far more than one window.
    let words = vec!["word ".repeat(1000); 100];
    let said = answer(&served, &json!({ "model": "m", "prompt": words, "max_tokens": 16 })).await;
    assert_eq!(said.prompt_tokens, Some(100 * 5004));
    served.stop().await;
}

/// Blocks that so many tokens of one sequence would have: no more than those of several.
fn short_blocks(tokens: u64) -> u64 {
    tokens / BLOCK_SIZE
}

#[tokio::test]
async fn forms_that_pydantic_takes_are_taken() {
    let served = served();
    let granted = async |body: &str| admitted(&ask(&served, body.as_bytes()).await.unwrap()).max_tokens;
    let hi = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":"#;
    for (written, tokens) in [("256.0}", 256), ("\"256\"}", 256), ("2.56e2}", 256), ("5}", 5)] {
        assert_eq!(granted(&format!("{hi}{written}")).await, Some(tokens), "{written}");
        assert_eq!(granted(&format!("\u{feff}{hi}{written}")).await, Some(tokens), "{written}");
    }
    assert_eq!(granted(&format!("{hi}null}}")).await, None, "the rest of the window");
    let scoring = r#"{"model":"m","prompt":"The sky is blue","max_tokens":0,"echo":true,"logprobs":1}"#;
    assert_eq!(granted(scoring).await, Some(0));
    assert_eq!(granted(r#"{"model":"m","prompt":"Once upon a time"}"#).await, Some(16));
    assert_eq!(granted(r#"{"model":"m","input":["a","b"]}"#).await, Some(0), "embeddings");
    let nameless = ask(&served, br#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":5}"#).await;
    assert_eq!(nameless.unwrap_err(), "model: missing; name it in the request or in openai_body");
    served.stop().await;
}

#[tokio::test]
async fn nothing_is_granted_beyond_the_window_and_what_surely_exceeds_it_is_denied() {
    let served = served();
    let text = json!({ "model": "m", "prompt": "word ".repeat(1000), "max_tokens": 20_000 });
    // By its words alone the prompt has a thousand tokens.
    assert_eq!(admitted(&answer(&served, &text).await).max_tokens, Some(WINDOW - 1000));
    let words = "word ".repeat(40_000);
    for body in [
        json!({ "model": "m", "prompt": words }),
        json!({ "model": "m", "messages": [{ "role": "user", "content": words }] }),
        json!({ "model": "m", "prompt": [words, "short"] }),
        json!({ "model": "m", "prompt": ["short", "word ".repeat(9000), "short", "short"] }),
        json!({ "model": "m", "input": [words] }),
    ] {
        assert_eq!(reason(&answer(&served, &body).await), Reason::ContextTooLong);
    }
    // Cut to what the window holds, it is served.
    let cut = json!({ "model": "m", "prompt": words, "truncate_prompt_tokens": -1 });
    assert_eq!(answer(&served, &cut).await.prompt_tokens, Some(WINDOW - 1));
    let cut = json!({ "model": "m", "prompt": words, "truncate_prompt_tokens": 100 });
    let said = answer(&served, &cut).await;
    assert_eq!((said.prompt_tokens, admitted(&said).blocks_reserved), (Some(100), blocks(116)));
    // What the model said before, a template may leave out.
    let answered = json!({ "model": "m", "messages": [{ "role": "assistant", "content": words }] });
    let _ = admitted(&answer(&served, &answered).await);
    served.stop().await;
}

#[tokio::test]
async fn what_is_not_understood_is_refused_by_its_name() {
    let served = served();
    for (body, field) in [
        (json!({ "model": "m", "query": "a", "documents": ["b", "c"] }), "query"),
        (json!({ "model": "m", "queries": "a", "documents": ["b", "c"] }), "queries"),
        (json!({ "model": "m", "prompt": "a", "prompt_embeds": "AAAA" }), "prompt_embeds"),
        (json!({ "model": "m", "input": "a", "previous_response_id": "resp_1" }), "previous_response_id"),
    ] {
        let error = ask(&served, body.to_string().as_bytes()).await.unwrap_err();
        assert!(error.starts_with(&format!("openai_body: `{field}` is not understood; ")), "{error}");
    }
    served.stop().await;
}
