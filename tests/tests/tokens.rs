//! When a prompt must be counted, and what is learned of texts.

use gpuadmit_core::{
    count::{Bounds, TextSize},
    node::Node,
    request::{Prompt, PromptCount, Reason, Reference, Request},
    settings::Settings,
    units::Tokens,
};
use gpuadmit_tests::node_kit::{BLOCK_SIZE, OK, admitted, at, denied, ready_node, request, strict};

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
    let Prompt::Counted { tokens, count, .. } = settled else { panic!("{settled:?}") };
    assert_eq!((tokens, count), (Tokens(804), PromptCount::Bounded));
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
    let counted =
        |tokens| Prompt::Counted { text: prose(2800), tokens: Tokens(tokens), count: PromptCount::Exact };
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
    let Ok(Prompt::Counted { tokens, .. }) = node.settle_count(at(3.0), &asked) else { panic!() };
    // One text: 75 % and 8 tokens above.
    assert_eq!(tokens, Tokens(1233));
}

#[test]
fn a_request_id_names_the_same_request_however_it_was_counted() {
    let mut node = ready_node(strict(), 1000);
    let asked = Request { request_id: Some("r"), ..asking(prose(2800), 16) };
    let as_counted = |tokens, count| {
        let prompt = Prompt::Counted { text: prose(2800), tokens: Tokens(tokens), count };
        Request { prompt, ..asked }
    };
    let first = node.admit(at(1.0), &as_counted(900, PromptCount::Bounded)).unwrap();
    let again = node.admit(at(2.0), &as_counted(700, PromptCount::Exact)).unwrap();
    assert_eq!(admitted(&first).reservation, admitted(&again).reservation);
    let other = Request { prompt: Prompt::Text(prose(2801)), ..asked };
    assert!(node.admit(at(3.0), &other).is_err());
}
