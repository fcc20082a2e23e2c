//! What vLLM 0.32's protocol classes make of the same bodies; `tests/vllm/bodies.py` holds many more against them.

use gpuadmit_core::count::TextSize;

use super::*;
use crate::tokens::message::{Content, Part};

fn read(text: &str) -> Body<'_> {
    Body::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn refused(text: &str) -> String {
    Body::read(text.as_bytes()).err().unwrap_or_else(|| panic!("it is read: {text}")).to_string()
}

fn lengths(text: &str) -> Vec<u64> {
    match read(text).input {
        Input::Ids(lengths) => lengths,
        _ => panic!("{text}"),
    }
}

fn texts(text: &str) -> Vec<String> {
    match read(text).input {
        Input::Texts(texts) => texts.into_iter().map(Cow::into_owned).collect(),
        _ => panic!("{text}"),
    }
}

/// Roles and texts of a chat; `?` for a part that is none.
fn chat(text: &str) -> Vec<(String, String)> {
    let Input::Chat(messages) = read(text).input else { panic!("{text}") };
    let said = |message: &Message<'_>| match &message.content {
        Content::None => String::new(),
        Content::Text(text) => text.to_string(),
        Content::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.to_string(),
                Part::Media => "!".into(),
                Part::Other(_) => "?".into(),
            })
            .collect(),
    };
    messages.iter().map(|message| (message.role.to_string(), said(message))).collect()
}

#[test]
fn what_admission_needs_is_taken_and_all_else_skipped() {
    let body = read(
        r#"{"model":"m","prompt":"Hi\n\u00e9","max_tokens":7,"n":2,"stop":["\n"],"stream":true,"priority":-3,
        "user":"u","logit_bias":{"50256":-100},"nested":[[[{"a":[1,2,{"b":null}]}]]],"temperature":0.7}"#,
    );
    assert_eq!((body.model.as_deref(), body.max_tokens, body.n), (Some("m"), Some(7), Some(2)));
    assert_eq!((body.has_stop, body.priority), (true, Some(-3)));
    let Input::Texts(texts) = body.input else { panic!() };
    assert_eq!(texts, ["Hi\n\u{e9}"]);
}

#[test]
fn each_api_has_a_limit_of_its_own() {
    let limit = |text| read(text).max_tokens;
    // A completion that names none gets 16; what other APIs call it is nothing to it.
    assert_eq!(limit(r#"{"prompt":"a"}"#), Some(16));
    assert_eq!(limit(r#"{"prompt":"a","max_tokens":null}"#), Some(16));
    assert_eq!(limit(r#"{"prompt":"a","max_completion_tokens":5}"#), Some(16));
    assert_eq!(limit(r#"{"prompt":"a","max_tokens":0,"echo":true}"#), Some(0));
    // A chat has the rest of its window.
    assert_eq!(limit(r#"{"messages":[]}"#), None);
    assert_eq!(limit(r#"{"messages":[],"max_completion_tokens":5,"max_tokens":9}"#), Some(5));
    assert_eq!(limit(r#"{"messages":[],"max_completion_tokens":null,"max_tokens":9}"#), Some(9));
    assert_eq!(limit(r#"{"input":"a","max_output_tokens":8,"max_tokens":9}"#), Some(8));
    assert_eq!(limit(r#"{"input":"a","max_tokens":9}"#), None);
    // Nothing is generated.
    assert_eq!(limit(r#"{"input":["a"],"max_tokens":9}"#), Some(0));
    assert_eq!(limit(r#"{"input":"a","encoding_format":"float"}"#), Some(0));
}

#[test]
fn of_a_key_given_twice_the_last_counts_and_null_is_absent() {
    assert_eq!(read(r#"{"prompt":"a","max_tokens":9,"max_tokens":4}"#).max_tokens, Some(4));
    assert_eq!(texts(r#"{"prompt":"a","prompt":"b"}"#), ["b"]);
    assert_eq!(texts(r#"{"prompt":"a","messages":null,"input":null}"#), ["a"]);
    assert!(matches!(read(r#"{"prompt":"a","prompt":null}"#).input, Input::Nothing));
    for empty in
        [r#"{"prompt":"a","stop":[]}"#, r#"{"prompt":"a","stop":null}"#, r#"{"prompt":"a","stop":""}"#]
    {
        assert!(!read(empty).has_stop, "{empty}");
    }
}

#[test]
fn numbers_and_flags_come_as_floats_and_strings_too() {
    let body = read(r#"{"messages":[],"max_tokens":256.0,"n":"2","add_generation_prompt":"no"}"#);
    assert_eq!((body.max_tokens, body.n, body.chat.add_generation_prompt), (Some(256), Some(2), Some(false)));
    let marked = "\u{feff}{\"messages\":[],\"max_tokens\":5}";
    assert_eq!(read(marked).max_tokens, Some(5));
}

#[test]
fn prompts_come_as_texts_or_token_ids() {
    assert_eq!(lengths(r#"{"prompt":[1,2,3]}"#), [3]);
    assert_eq!(lengths(r#"{"prompt":[[1,2],[3],[]]}"#), [2, 1, 0]);
    assert_eq!(texts(r#"{"prompt":["a","b"]}"#), ["a", "b"]);
    assert_eq!(texts(r#"{"prompt":["1","2"]}"#), ["1", "2"]);
    // Beside a number, a string is a token id as well.
    assert_eq!(lengths(r#"{"prompt":["1",2,"3"]}"#), [3]);
    assert_eq!(lengths(r#"{"prompt":[1.0,true]}"#), [2]);
    assert_eq!(lengths(r#"{"prompt":[["1"],[2.0]]}"#), [1, 1]);
    for json in [
        r#"{"prompt":["a",1]}"#,
        r#"{"prompt":[1,"a"]}"#,
        r#"{"prompt":[1,[2]]}"#,
        r#"{"prompt":[[1],"a"]}"#,
        r#"{"prompt":[1.5]}"#,
        r#"{"prompt":[["a"]]}"#,
        r#"{"prompt":[null]}"#,
        r#"{"prompt":{}}"#,
        r#"{"prompt":5}"#,
    ] {
        assert!(refused(json).starts_with("prompt is not allowed; a string"), "{json}");
    }
    assert_eq!(refused(r#"{"prompt":[]}"#), "`prompt` is not understood; there is no prompt in it");
}

#[test]
fn messages_have_text_parts_media_and_calls() {
    let body = r#"{"messages":[{"role":"system","content":null},
        {"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}},"b",{"odd":1}]},
        {"role":"user","content":[{"image_url":"http://x/y.png"}]},
        {"role":"assistant","content":"","tool_calls":[{"id":"1"}],"refusal":null}],"tools":[{"type":"function"}]}"#;
    let said = chat(body);
    assert_eq!(said[1].1, "a!b?");
    assert_eq!(said[2].1, "!", "a picture without a type");
    let body = read(body);
    let Input::Chat(messages) = &body.input else { panic!() };
    assert_eq!(messages.last().map(|message| message.extra.len()), Some(1));
    assert_eq!(body.chat.tools.map(RawValue::get), Some(r#"[{"type":"function"}]"#));
}

#[test]
fn several_chats_are_several_prompts() {
    let body = r#"{"messages":[[{"role":"user","content":"a"}],[{"role":"user","content":"b"}]]}"#;
    let Input::Chats(chats) = read(body).input else { panic!() };
    assert_eq!(chats.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn responses_have_input_and_instructions() {
    let body = r#"{"input":"Hi","instructions":"Be brief.","max_output_tokens":8}"#;
    assert_eq!(chat(body), [("system".into(), "Be brief.".into()), ("user".into(), "Hi".to_owned())]);
    let plain = read(body);
    assert_eq!((plain.ambiguous, plain.cut, plain.add_special_tokens), (false, None, Some(true)));
    assert!(read(r#"{"input":"Hi"}"#).ambiguous, "it may be for embeddings");
    let items = r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},
        {"type":"function_call_output","call_id":"1","output":"{}"}]}"#;
    assert_eq!(chat(items), [("user".into(), "a".into()), (String::new(), "?".to_owned())]);
    // Without the key it is "disabled"; null is neither.
    for (truncation, cut) in
        [("\"auto\"", Some(TextSize::WINDOW)), ("null", Some(TextSize::WINDOW)), ("\"disabled\"", None)]
    {
        assert_eq!(read(&format!("{{\"input\":\"a\",\"truncation\":{truncation}}}")).cut, cut);
    }
}

#[test]
fn embeddings_generate_nothing() {
    assert_eq!(lengths(r#"{"input":[[1,2],[3]]}"#), [2, 1]);
    assert_eq!(texts(r#"{"input":["a","b"],"n":5}"#), ["a", "b"]);
    assert_eq!(read(r#"{"input":["a","b"],"n":5}"#).n, None);
    assert_eq!(texts(r#"{"input":"a","encoding_format":"base64"}"#), ["a"]);
    let body = read(r#"{"messages":[{"role":"user","content":"a"}],"dimensions":8,"tools":[]}"#);
    assert_eq!((body.max_tokens, body.chat.add_generation_prompt), (Some(0), Some(false)));
    assert!(body.chat.tools.is_none());
    assert_eq!(read(r#"{"input":"a","truncate_prompt_tokens":9}"#).cut, Some(Tokens(9)));
    let generates = r#"{"messages":[],"dimensions":8,"max_tokens":5}"#;
    assert_eq!(read(generates).max_tokens, Some(5), "a chat with a key of no meaning to it");
    let padded = refused(r#"{"input":["a"],"padding":"max_length"}"#);
    assert!(padded.starts_with("`padding` is not understood"), "{padded}");
}

#[test]
fn an_anthropic_body_begins_with_its_system_prompt() {
    let body = r#"{"max_tokens":9,"system":"Be brief.","messages":[{"role":"user","content":"a"}]}"#;
    assert_eq!(chat(body), [("system".into(), "Be brief.".into()), ("user".into(), "a".to_owned())]);
    let blocks = r#"{"max_tokens":9,"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},
        {"type":"text","text":"Be "},{"type":"text","text":"brief."}],"messages":[]}"#;
    assert_eq!(chat(blocks), [("system".into(), "Be brief.".to_owned())]);
    assert!(!read(body).chat.foreign);
    let tools = r#"{"max_tokens":9,"tools":[{"name":"f","input_schema":{}}],"messages":[]}"#;
    assert!(read(tools).chat.foreign, "vLLM writes its tools anew");
    let used =
        r#"{"max_tokens":9,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1"}]}]}"#;
    assert_eq!(chat(used)[0].1, "?");
}

#[test]
fn what_is_not_understood_is_named() {
    for (json, field) in [
        (r#"{"prompt":"a","prompt_embeds":"x"}"#, "prompt_embeds"),
        (r#"{"prompt":"a","suffix":"x"}"#, "suffix"),
        (r#"{"messages":[],"chat_template":"x"}"#, "chat_template"),
        (
            r#"{"messages":[],"kv_transfer_params":{"prompt_token_ids":[1]}}"#,
            "kv_transfer_params.prompt_token_ids",
        ),
        (r#"{"input":"a","previous_response_id":"resp_1"}"#, "previous_response_id"),
        (r#"{"queries":"a","documents":["b"]}"#, "queries"),
        (r#"{"text_1":"a","text_2":"b"}"#, "text_1"),
        (r#"{"texts":["a"],"input_type":"query"}"#, "texts"),
        (r#"{"token_ids":[1,2],"sampling_params":{}}"#, "token_ids"),
        (r#"{"messages":[],"prompt":"a"}"#, "messages"),
        (r#"{"prompt":"a","input":"b"}"#, "prompt"),
    ] {
        assert!(refused(json).starts_with(&format!("`{field}` is not understood; ")), "{json}");
    }
    let one =
        r#"{"prompt":"a","prompt_embeds":[],"suffix":null,"kv_transfer_params":{"do_remote_decode":true}}"#;
    assert_eq!(texts(one), ["a"]);
}

#[test]
fn errors_tell_the_place_or_the_field_and_quote_nothing() {
    for (json, says) in [
        (r#"{"prompt":"secret""#, "line 1, column 18"),
        (r#"{"messages":"secret"}"#, "messages is not allowed; a list of messages"),
        (r#"{"messages":["secret"]}"#, "messages is not allowed; a list of messages"),
        (
            r#"{"messages":[],"max_tokens":"secret"}"#,
            "max_tokens is not allowed; a whole number of at least 0",
        ),
        (r#"{"messages":[],"max_tokens":-1}"#, "max_tokens is not allowed; a whole number of at least 0"),
        (r#"{"prompt":"a","n":0}"#, "n is not allowed; a whole number of at least 1"),
        (r#"{"prompt":"a","truncate_prompt_tokens":-2}"#, "truncate_prompt_tokens is not allowed; a whole"),
        (r#"{"prompt":"a","model":7}"#, "model is not allowed; a string"),
        (r#"["secret"]"#, "line 1, column"),
        ("\u{0}", "line 1, column 1"),
        (r#"{"prompt":"\ud800"}"#, "prompt is not allowed"),
    ] {
        let error = refused(json);
        assert!(error.contains(says) && !error.contains("secret"), "{says}: {error}");
    }
    assert!(Body::read(b"{\"prompt\":\"\xff\"}").is_err());
}

#[test]
fn depth_costs_no_stack_and_length_has_a_bound() {
    let deep = format!("{{\"x\":{}{},\"prompt\":\"a\"}}", "[".repeat(500_000), "]".repeat(500_000));
    assert!(matches!(read(&deep).input, Input::Texts(_)));
    let deep_tools = format!("{{\"messages\":[],\"tools\":{}{}}}", "[".repeat(500_000), "]".repeat(500_000));
    assert!(read(&deep_tools).chat.tools.is_some());
    for list in ["prompt", "messages", "input"] {
        let _ =
            Body::read(format!("{{\"{list}\":{}{}}}", "[".repeat(500_000), "]".repeat(500_000)).as_bytes());
    }
    let deep_parts =
        format!("{{\"messages\":[{{\"content\":[{}{}]}}]}}", "[".repeat(500_000), "]".repeat(500_000));
    let _ = Body::read(deep_parts.as_bytes());
    for many in [
        format!("{{\"messages\":[{}{{}}]}}", "{},".repeat(MAX_ITEMS)),
        format!("{{\"prompt\":[{}\"\"]}}", "\"\",".repeat(MAX_ITEMS)),
        format!("{{\"prompt\":[{}[]]}}", "[],".repeat(MAX_ITEMS)),
    ] {
        assert_eq!(Body::read(many.as_bytes()).err(), Some(BodyError::TooMany));
    }
    assert_eq!(lengths(&format!("{{\"prompt\":[{}7]}}", "7,".repeat(100_000))), [100_001]);
}
