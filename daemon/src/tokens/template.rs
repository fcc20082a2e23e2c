//! A model's own chat template, and what vLLM hands to it (0.32, renderers/params.py and renderers/hf.py).

mod messages;
mod tools;

use minijinja::{Error, ErrorKind};
use serde_json::{Map, Value as Json};

use messages::Shape;

use super::{body::ChatOptions, files::Chat, jinja, message::Message};

/// Names in `chat_template_kwargs` that are no variables: they change how vLLM renders or counts.
const RESERVED: [&str; 13] = [
    "chat_template",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "processor_kwargs",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
];

/// A template, ready to render.
pub(super) struct Template {
    jinja: jinja::Template,
    /// Variables of every rendering: `bos_token` and the like.
    special: Map<String, Json>,
    /// The engine's `--default-chat-template-kwargs`.
    defaults: Map<String, Json>,
    shape: Shape,
}

impl Template {
    /// Compiles a template.
    pub(super) fn new(chat: Chat) -> Result<Self, Error> {
        let Chat { template, special, defaults, wants_parts } = chat;
        let jinja = jinja::Template::new(&template)?;
        let shape = Shape::of(&template, wants_parts.unwrap_or(jinja.goes_through_parts()));
        Ok(Self { jinja, special, defaults, shape })
    }

    /// The text that the engine makes of a chat.
    pub(super) fn render(&self, chat: &[Message<'_>], options: &ChatOptions<'_>) -> Result<String, Error> {
        let messages = messages::conversation(chat, &self.shape);
        let last = options.continue_final_message.then(|| messages::last_text(&messages)).flatten();
        let tools = parsed(options.tools)?
            .filter(|tools| tools.as_array().is_none_or(|all| !all.is_empty()))
            .map(tools::rewritten);
        let mut context = self.special.clone();
        context.insert("documents".into(), Json::Null);
        context.extend(self.variables(options)?);
        context.insert("messages".into(), Json::Array(messages));
        context.insert("tools".into(), tools.unwrap_or(Json::Null));
        let prompted = options.add_generation_prompt.unwrap_or(true) && !options.continue_final_message;
        context.insert("add_generation_prompt".into(), Json::Bool(prompted));
        let text = self.jinja.render(&context)?;
        Ok(match last {
            None => text,
            Some(last) => continued(text, last.trim()),
        })
    }

    /// The engine's defaults, over them the body's `chat_template_kwargs`, over them its own keys. What is null or
    /// `auto` is as good as missing (`merge_kwargs`).
    fn variables(&self, options: &ChatOptions<'_>) -> Result<Map<String, Json>, Error> {
        let mut own = match parsed(options.kwargs)? {
            Some(Json::Object(own)) => own,
            _ => Map::new(),
        };
        let effort = parsed(options.reasoning_effort)?.filter(|effort| !effort.is_null());
        if let Some(effort) = effort {
            let thinks = Json::Bool(effort != "none");
            own.entry("enable_thinking").or_insert(thinks);
            own.insert("reasoning_effort".into(), effort);
        }
        if let Some(documents) = parsed(options.documents)?.filter(|documents| !documents.is_null()) {
            own.insert("documents".into(), documents);
        }
        let mut all = self.defaults.clone();
        all.extend(own.into_iter().filter(|(_, value)| !value.is_null() && value != "auto"));
        if RESERVED.iter().any(|name| all.contains_key(*name)) { Err(not_kept()) } else { Ok(all) }
    }
}

fn parsed(raw: Option<&serde_json::value::RawValue>) -> Result<Option<Json>, Error> {
    raw.map(|raw| serde_json::from_str(raw.get())).transpose().map_err(|_| not_kept())
}

/// What the model is to go on with ends with the last message's text.
fn continued(mut text: String, last: &str) -> String {
    if let Some(start) = text.rfind(last) {
        text.truncate(start.saturating_add(last.len()));
    }
    text
}

fn not_kept() -> Error {
    Error::new(
        ErrorKind::BadSerialization,
        "tools, documents or chat_template_kwargs are not what a template can be given",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::body::{Body, Input};

    fn rendered(source: &str, body: &str) -> Result<String, Error> {
        let special = Map::from_iter([("bos_token".to_owned(), Json::from("<s>"))]);
        let body = Body::read(body.as_bytes()).unwrap();
        let Input::Chat(messages) = &body.input else { panic!("no chat") };
        let defaults = Map::from_iter([("style".to_owned(), Json::from("default"))]);
        let chat = Chat { template: source.into(), special, defaults, wants_parts: None };
        Template::new(chat)?.render(messages, &body.chat)
    }

    /// Expected texts are those of transformers 5 for the same template and messages.
    #[test]
    fn templates_render_as_in_python() {
        let chatml = "{{ bos_token }}{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + message['content'].strip() + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n";
        let body = r#"{"messages":[{"role":"system","content":" Be brief. "},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#;
        assert_eq!(
            rendered(chatml, body).unwrap(),
            "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn tools_are_written_as_python_writes_json() {
        let source = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ tools | tojson(indent=2) }}";
        let body = r#"{"messages":[],"tools":[{"name":"f<\u00e9>","n":[1,2.0,true,null],"e":{},"l":[]}]}"#;
        assert_eq!(
            rendered(source, body).unwrap(),
            "{\"name\": \"f<\u{e9}>\", \"n\": [1, 2.0, true, null], \"e\": {}, \"l\": []}\
             [\n  {\n    \"name\": \"f<\u{e9}>\",\n    \"n\": [\n      1,\n      2.0,\n      true,\n      null\n    ],\n    \"e\": {},\n    \"l\": []\n  }\n]"
        );
    }

    /// Expected: by the tokens that vLLM 0.32 counts.
    #[test]
    fn empty_parts_leave_no_line_in_one_text() {
        let source = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}";
        let body = r#"{"messages":[{"role":"user","content":["",{"type":"text","text":"a"},
            {"type":"text","text":""},{"type":"text","text":"b"}]}]}"#;
        assert_eq!(rendered(source, body).unwrap(), "[a\nb]");
    }

    /// Expected: `_strip_claude_code_billing_header` of vLLM 0.32.
    #[test]
    fn the_billing_line_of_a_system_message_is_not_rendered() {
        let one = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}";
        let parts =
            "{% for m in messages %}[{% for part in m['content'] %}{{ part.text }}{% endfor %}]{% endfor %}";
        let line = "x-anthropic-billing-header: a";
        for (role, content, text) in [
            ("system", serde_json::json!(format!("{line}\nBe brief.")), "[Be brief.]".to_owned()),
            (
                "system",
                serde_json::json!([{"type":"text","text":line},{"type":"text","text":"b"}]),
                "[b]".to_owned(),
            ),
            ("user", serde_json::json!(line), format!("[{line}]")),
        ] {
            let body = serde_json::json!({"messages":[{"role":role,"content":content}]}).to_string();
            for source in [one, parts] {
                assert_eq!(rendered(source, &body).unwrap(), text, "{source}");
            }
        }
    }

    #[test]
    fn a_template_that_loops_over_parts_gets_parts() {
        let source = "{% for m in messages %}{% for part in m['content'] %}[{{ part['type'] }}:{{ part.text }}]{% endfor %}{% endfor %}";
        assert_eq!(
            rendered(source, r#"{"messages":[{"role":"user","content":"hi"}]}"#).unwrap(),
            "[text:hi]"
        );
    }

    #[test]
    fn a_template_that_never_ends_or_refuses_fails_without_quoting_the_messages() {
        let body = r#"{"messages":[{"role":"user","content":"secret"}]}"#;
        let endless = "{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}";
        for source in
            [endless, "{{ raise_exception(messages[0].content) }}", "{{ messages[0].content.nothing() }}"]
        {
            let error = rendered(source, body).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    /// Expected: `merge_kwargs` and `build_chat_params` of vLLM 0.32.
    #[test]
    fn the_engines_own_variables_are_those_that_the_body_does_not_set() {
        let source = "{{ style }} {{ enable_thinking }} {{ reasoning_effort }} {{ documents }}";
        for (body, text) in [
            ("", "default   None"),
            (r#","chat_template_kwargs":{"style":"own"}"#, "own   None"),
            (r#","chat_template_kwargs":{"style":null}"#, "default   None"),
            (r#","chat_template_kwargs":{"style":"auto"}"#, "default   None"),
            (r#","reasoning_effort":"high""#, "default True high None"),
            (r#","reasoning_effort":"none""#, "default False none None"),
            (
                r#","reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":false}"#,
                "default False low None",
            ),
            (r#","chat_template_kwargs":{"documents":[]}"#, "default   []"),
        ] {
            let body = format!(r#"{{"messages":[]{body}}}"#);
            assert_eq!(rendered(source, &body).unwrap(), text, "{body}");
        }
        let cut = r#"{"messages":[],"chat_template_kwargs":{"truncation":true}}"#;
        assert!(rendered(source, cut).is_err());
    }

    #[test]
    fn a_message_to_be_continued_ends_the_text() {
        let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% generation %}{% endgeneration %}{% endfor %}";
        let body = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"the answer "}],
            "continue_final_message":true,"add_generation_prompt":false}"#;
        assert_eq!(rendered(source, body).unwrap(), "<user>q</><assistant>the answer");
    }
}
