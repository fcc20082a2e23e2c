//! When a prompt must be counted, and what is learned of texts.

use std::collections::BTreeMap;

use gpuadmit_core::{
    count::{Bounds, TextSize},
    node::Node,
    request::{Prompt, PromptCount, Reason, Reference, Request},
    settings::Settings,
    snapshot::Snapshot,
    units::Tokens,
};
use gpuadmit_proto::v1::{
    AdmitRequest, PromptCount as PromptCountWire, SessionRequest, StatusRequest, admit_request,
    session_request::Call, session_response::Answer,
};
use gpuadmit_tests::{
    node_kit::{BLOCK_SIZE, OK, admitted, at, denied, ready_node, request, strict},
    served::{Served, admit, quiet, ready_engine},
};
use gpuadmitd::{
    config::{self, Config},
    tokens::{Counted, Loaded, Text},
};

/// Tokens of the body of `undecided`, counted by transformers.
const UNDECIDED_TOKENS: u64 = 1501;

/// English prose of `bytes` bytes.
fn prose(bytes: u64) -> TextSize {
    TextSize {
        bytes,
        symbol_bytes: bytes / 30,
        space_bytes: bytes / 6,
        words: bytes / 6,
        ..TextSize::default()
    }
}

fn asking(text: TextSize, max_tokens: u64) -> Request<'static> {
    Request { prompt: Prompt::Text(text), ..request(0, Some(max_tokens)) }
}

/// A node of 100 blocks of 16 tokens that has learned that prose has a token in four bytes.
fn taught() -> Node {
    let mut node = ready_node(strict(), 100);
    for bytes in (3000..3100).chain(5000..5100) {
        node.counted("m", &prose(bytes), Tokens(bytes / 4));
    }
    node
}

#[test]
fn a_text_that_fits_by_its_upper_bound_needs_no_count() {
    let mut node = ready_node(strict(), 100);
    let asked = asking(prose(800), 100);
    let settled = node.settle_count(at(1.0), &asked).unwrap();
    let Prompt::Counted { prompts, count, .. } = settled else { panic!("{settled:?}") };
    assert_eq!((prompts, count), (Tokens(804).into(), PromptCount::Bounded));
    let decision = node.admit(at(1.0), &Request { prompt: settled, ..asked }).unwrap();
    assert_eq!(admitted(&decision).blocks.0, 904_u64.div_ceil(BLOCK_SIZE));
    assert_eq!(decision.prompt, Some((Tokens(804), PromptCount::Bounded)));
}

#[test]
fn a_text_that_does_not_fit_by_its_lower_bound_needs_no_count() {
    let mut node = taught();
    let asked = asking(prose(16_000), 100);
    let settled = node.settle_count(at(1.0), &asked).unwrap();
    let decision = node.admit(at(1.0), &Request { prompt: settled, ..asked }).unwrap();
    assert_eq!(denied(&decision).reason, Reason::ContextTooLong);
}

#[test]
fn a_text_whose_words_exceed_the_window_is_denied_for_that_by_a_full_engine_as_well() {
    // Nothing is learned, and no block is left.
    let mut node = ready_node(strict(), 100);
    let _ = admitted(&node.admit(at(1.0), &request(1500, Some(80))).unwrap());
    let asked = asking(TextSize { bytes: 10_000, words: 2000, ..TextSize::default() }, 10);
    let settled = node.settle_count(at(1.0), &asked).unwrap();
    let decision = node.admit(at(1.0), &Request { prompt: settled, ..asked }).unwrap();
    assert_eq!(denied(&decision).reason, Reason::ContextTooLong);
}

#[test]
fn what_is_assumed_of_a_picture_is_called_no_bound() {
    let mut node = ready_node(strict(), 100);
    let asked = asking(TextSize { assumed: Tokens(300), ..prose(300) }, 50);
    let settled = node.settle_count(at(1.0), &asked).unwrap();
    let decision = node.admit(at(1.0), &Request { prompt: settled, ..asked }).unwrap();
    let _ = admitted(&decision);
    assert_eq!(decision.prompt.unwrap().1, PromptCount::Estimated);
}

#[test]
fn a_grant_that_the_window_would_cut_short_needs_a_count() {
    // A window of 1,600 tokens; 5,200 bytes have 1,300 tokens more or less.
    let mut node = taught();
    assert!(node.settle_count(at(1.0), &asking(prose(5200), 50)).is_ok());
    assert!(node.settle_count(at(1.0), &asking(prose(5200), 400)).is_err());
}

#[test]
fn only_between_the_bounds_the_text_must_be_counted() {
    let mut node = taught();
    let filler = node.admit(at(1.0), &request(800, Some(80))).unwrap();
    assert_eq!(admitted(&filler).blocks.0, 55);
    // 45 blocks are left, 720 tokens. 2,800 bytes have 700 tokens more or less.
    let asked = asking(prose(2800), 16);
    let Bounds { low, high } = node.settle_count(at(1.0), &asked).unwrap_err();
    assert!((580..=590).contains(&low.0) && (810..=820).contains(&high.0), "{low} to {high}");
    let counted = |tokens| Prompt::Counted {
        text: prose(2800),
        prompts: Tokens(tokens).into(),
        count: PromptCount::Exact,
    };
    let too_long = node.admit(at(1.0), &Request { prompt: counted(710), ..asked }).unwrap();
    assert_eq!(denied(&too_long).reason, Reason::KvFull);
    let fits = node.admit(at(1.0), &Request { prompt: counted(700), ..asked }).unwrap();
    assert_eq!(fits.prompt, Some((Tokens(700), PromptCount::Exact)));
    let _ = admitted(&fits);
}

#[test]
fn whoever_waits_for_room_waits_for_what_is_really_needed() {
    let mut node = taught();
    let _ = admitted(&node.admit(at(1.0), &request(1500, Some(80))).unwrap());
    let at_once = asking(prose(2800), 16);
    assert!(node.settle_count(at(1.0), &at_once).is_ok(), "denied at both bounds");
    let waits = Request { wait: std::time::Duration::from_secs(1), ..at_once };
    assert!(node.settle_count(at(1.0), &waits).is_err());
}

#[test]
fn a_completion_that_tells_its_prompt_teaches_the_model() {
    let mut node = ready_node(Settings::default(), 1000);
    let asked = asking(prose(2800), 16);
    let before = node.settle_count(at(1.0), &asked).unwrap();
    let decision = node.admit(at(1.0), &Request { prompt: before, ..asked }).unwrap();
    let reservation = Reference::Id(admitted(&decision).reservation);
    let told = gpuadmit_core::request::Completion { prompt_tokens: Some(Tokens(700)), ..OK };
    let _ = node.complete(at(2.0), reservation, told);
    let Ok(Prompt::Counted { prompts, .. }) = node.settle_count(at(3.0), &asked) else { panic!() };
    // One text: 75 % and 8 tokens above.
    assert_eq!(prompts.total, Tokens(1233));
}

#[test]
fn a_request_id_names_the_same_request_however_it_was_counted() {
    let mut node = ready_node(strict(), 1000);
    let asked = Request { request_id: Some("r"), ..asking(prose(2800), 16) };
    let as_counted = |tokens, count| {
        let prompt = Prompt::Counted { text: prose(2800), prompts: Tokens(tokens).into(), count };
        Request { prompt, ..asked }
    };
    let first = node.admit(at(1.0), &as_counted(900, PromptCount::Bounded)).unwrap();
    let again = node.admit(at(2.0), &as_counted(700, PromptCount::Exact)).unwrap();
    assert_eq!(admitted(&first).reservation, admitted(&again).reservation);
    let other = Request { prompt: Prompt::Text(prose(2801)), ..asked };
    assert!(node.admit(at(3.0), &other).is_err());
}

fn tokenizer() -> config::Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/tokenizer").into();
    config::Tokenizer { model: "m".into(), path }
}

/// With the tokenizer of the tests for model `m`, which may take its time: the machine may be busy.
fn with_tokenizer() -> Config {
    let mut config = quiet();
    config.tokenizer = vec![tokenizer()];
    config.tokens.deadline_ms = 10_000;
    config
}

/// Expected counts are those of transformers (`data/tokenizer/cases.py`).
#[tokio::test]
async fn bodies_are_counted_as_transformers_counts_them() {
    let tokens = gpuadmitd::tokens::Tokens::new(&with_tokenizer());
    let cases = include_str!("../data/tokenizer/cases.jsonl");
    for line in cases.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let body = Text::Body(case["body"].to_string().into_bytes());
        let counted = tokens.count("m", &Snapshot::default(), body).await;
        let expected = Counted { prompts: Tokens(case["tokens"].as_u64().unwrap()).into(), exact: true };
        assert_eq!(counted, Some(expected), "{line}");
    }
    let status = tokens.status();
    let Loaded { memory_bytes, has_template, .. } = status.loaded.first().unwrap();
    assert!(*memory_bytes >= 21_053 && *has_template, "{status:?}");
    assert_eq!((status.loaded.len(), status.counted), (1, u64::try_from(cases.lines().count()).unwrap()));
}

#[tokio::test]
async fn what_cannot_be_counted_is_not_and_is_told() {
    let tokens = gpuadmitd::tokens::Tokens::new(&with_tokenizer());
    let none = Snapshot::default();
    // Another model, a template of the caller's own, a text that would take too long.
    assert_eq!(tokens.count("other", &none, Text::Plain("a".into())).await, None);
    let own = br#"{"messages":[{"role":"user","content":"a"}],"chat_template":"x"}"#;
    assert_eq!(tokens.count("m", &none, Text::Body(own.to_vec())).await, None);
    assert_eq!(tokens.count("m", &none, Text::Plain("a".repeat(3 << 20))).await, None);
    // A picture is taken for what is configured, and the count is none that the engine would make.
    let picture =
        br#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
    let counted = tokens.count("m", &none, Text::Body(picture.to_vec())).await.unwrap();
    assert!(!counted.exact && counted.prompts.total.0 > 1024, "{counted:?}");
    assert_eq!(tokens.status().uncounted, 3);

    let mut config = with_tokenizer();
    config.tokens.exact = false;
    let off = gpuadmitd::tokens::Tokens::new(&config);
    assert_eq!((off.count("m", &none, Text::Plain("a".into())).await, off.status().most), (None, 0));
    let mut config = with_tokenizer();
    config.tokenizer = vec![config::Tokenizer { path: "/nonexistent".into(), ..tokenizer() }];
    let absent = gpuadmitd::tokens::Tokens::new(&config);
    assert_eq!(absent.count("m", &none, Text::Plain("a".into())).await, None);
    assert_eq!(absent.status().absent.len(), 1);
}

#[tokio::test]
async fn no_more_tokenizers_are_loaded_than_configured() {
    let mut config = with_tokenizer();
    config.tokens.loaded = 1;
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(tokenizer().path.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    config.tokenizer.push(config::Tokenizer { model: "n".into(), path: folder.path().into() });
    let tokens = gpuadmitd::tokens::Tokens::new(&config);
    for model in ["m", "n", "m"] {
        let counted = tokens.count(model, &Snapshot::default(), Text::Plain("a".into())).await;
        assert_eq!(counted.map(|counted| counted.prompts.total), Some(Tokens(1)));
        assert_eq!(tokens.status().loaded.len(), 1);
    }
}

/// A body of 3,000 bytes: by its size alone it has few tokens, or more than the 1,600 of engine `e`.
fn undecided() -> AdmitRequest {
    let prompt = "the quick brown fox ".repeat(150);
    let body = serde_json::json!({ "model": "m", "prompt": prompt, "max_tokens": 16 }).to_string();
    AdmitRequest { prompt: Some(admit_request::Prompt::OpenaiBody(body.into())), ..AdmitRequest::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_the_socket_a_body_is_counted_where_it_matters_and_its_text_is_gone() {
    let served = Served::start(with_tokenizer());
    ready_engine(&served.handle);
    let mut admission = served.connection.admission();
    let small = br#"{"model":"m","prompt":"the quick brown fox","max_tokens":16}"#.to_vec();
    let small =
        AdmitRequest { prompt: Some(admit_request::Prompt::OpenaiBody(small)), ..AdmitRequest::default() };
    let answer = admission.admit(small).await.unwrap().into_inner();
    assert_eq!((answer.prompt_count(), answer.prompt_tokens), (PromptCountWire::Bounded, Some(19 + 4)));

    let answer = admission.admit(undecided()).await.unwrap().into_inner();
    let count = (answer.prompt_count(), answer.prompt_tokens);
    assert_eq!(count, (PromptCountWire::Exact, Some(UNDECIDED_TOKENS)), "{answer:?}");
    let status = served.connection.node().status(StatusRequest::default()).await.unwrap().into_inner();
    let tokenizers = status.tokenizers.unwrap();
    assert_eq!((tokenizers.texts, tokenizers.counted, tokenizers.uncounted), (2, 1, 0));
    assert_eq!((tokenizers.limit, tokenizers.loaded.len()), (2, 1));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_tokenizer_the_upper_bound_counts_and_the_answer_says_so() {
    let served = Served::start(quiet());
    ready_engine(&served.handle);
    let answer = served.connection.admission().admit(undecided()).await.unwrap().into_inner();
    assert_eq!(answer.prompt_count(), PromptCountWire::Bounded);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_session_others_are_answered_while_a_body_is_counted() {
    let served = Served::start(with_tokenizer());
    ready_engine(&served.handle);
    let ask = |id, admit| SessionRequest { correlation_id: id, call: Some(Call::Admit(admit)) };
    let calls = tokio_stream::iter([ask(1, undecided()), ask(2, admit(10, 10))]);
    let mut answers = served.connection.admission().session(calls).await.unwrap().into_inner();
    let mut seen = BTreeMap::new();
    while let Some(answer) = answers.message().await.unwrap() {
        let Some(Answer::Admit(admit)) = answer.answer else { panic!("{answer:?}") };
        seen.insert(answer.correlation_id, admit.prompt_tokens);
    }
    assert_eq!(seen, BTreeMap::from([(1, Some(UNDECIDED_TOKENS)), (2, Some(10))]));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_none_is_refused_without_being_quoted() {
    let served = Served::start(quiet());
    let body = AdmitRequest {
        prompt: Some(admit_request::Prompt::OpenaiBody(b"{\"prompt\":\"secret".to_vec())),
        ..AdmitRequest::default()
    };
    let error = served.connection.admission().admit(body).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    let message = error.message();
    assert!(message.starts_with("openai_body: ") && !message.contains("secret"), "{message}");
    served.stop().await;
}
