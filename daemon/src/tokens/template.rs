//! A model's own chat template, rendered as Hugging Face renders it (transformers, utils/chat_template_utils.py): Jinja
//! with Python's string methods, `tojson` in Python's spelling, `raise_exception` and `strftime_now`.
//!
//! Bounds: the steps of a rendering are counted, the text it makes has a most, and a template can reach nothing but what
//! it is given.

mod clock;
mod messages;
mod python;
mod tools;

use std::io;

use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use messages::Shape;

use super::{body::ChatOptions, message::Message};

/// Most steps of a rendering: some thousand messages.
const MOST_STEPS: u64 = 5_000_000;
/// Longest text made, bytes.
const MOST_BYTES: usize = 16 << 20;
/// The one template of an environment.
const NAME: &str = "chat";

/// A template, ready to render.
pub(super) struct Template {
    environment: Environment<'static>,
    /// `bos_token` and the like, which templates name.
    special: Map<String, Json>,
    shape: Shape,
}

impl Template {
    /// Compiles `source`.
    pub(super) fn new(source: &str, special: Map<String, Json>) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MOST_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", python::to_json);
        environment.add_function("strftime_now", |format: &str| clock::now(format));
        environment.add_function("raise_exception", |_: Value| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "the template refuses the messages"))
        });
        let shape = Shape::of(source);
        environment.add_template_owned(NAME, without_generation_marks(source))?;
        Ok(Self { environment, special, shape })
    }

    /// The text that the engine makes of a chat.
    pub(super) fn render(&self, chat: &[Message<'_>], options: &ChatOptions<'_>) -> Result<String, Error> {
        let parse =
            |raw: &serde_json::value::RawValue| serde_json::from_str::<Json>(raw.get()).map_err(not_json);
        let mut context = self.special.clone();
        if let Some(Json::Object(kwargs)) = options.kwargs.map(parse).transpose()? {
            context.extend(kwargs);
        }
        let messages = messages::conversation(chat, &self.shape);
        let last = options.continue_final_message.then(|| messages::last_text(&messages)).flatten();
        let tools = options
            .tools
            .map(parse)
            .transpose()?
            .filter(|tools| tools.as_array().is_none_or(|all| !all.is_empty()))
            .map(tools::rewritten);
        context.insert("messages".into(), Json::Array(messages));
        context.insert("tools".into(), tools.unwrap_or(Json::Null));
        context.insert("documents".into(), options.documents.map(parse).transpose()?.unwrap_or(Json::Null));
        if let Some(effort) = options.reasoning_effort.map(parse).transpose()? {
            context.insert("reasoning_effort".into(), effort);
        }
        let prompted = options.add_generation_prompt.unwrap_or(true) && !options.continue_final_message;
        context.insert("add_generation_prompt".into(), Json::Bool(prompted));
        let mut text = Bounded(Vec::new());
        self.environment
            .get_template(NAME)?
            .render_captured_to(Value::from_serialize(&context), &mut text)?;
        let text =
            String::from_utf8(text.0).map_err(|_| Error::new(ErrorKind::BadSerialization, "no UTF-8"))?;
        Ok(match last {
            None => text,
            Some(last) => continued(text, last.trim()),
        })
    }
}

/// What the model is to go on with ends with the last message's text.
fn continued(mut text: String, last: &str) -> String {
    if let Some(start) = text.rfind(last) {
        text.truncate(start.saturating_add(last.len()));
    }
    text
}

/// `{% generation %}` marks what the model said, for training, and renders to nothing: as a comment it does too, and
/// treats the blanks around it alike.
fn without_generation_marks(source: &str) -> String {
    let mut text = source.to_owned();
    for word in ["generation", "endgeneration"] {
        for (open, close) in [("", ""), ("-", ""), ("", "-"), ("-", "-")] {
            text = text.replace(&format!("{{%{open} {word} {close}%}}"), &format!("{{#{open} {close}#}}"));
        }
    }
    text
}

fn not_json(_: serde_json::Error) -> Error {
    Error::new(
        ErrorKind::BadSerialization,
        "tools, documents or chat_template_kwargs are no JSON that can be kept",
    )
}

/// A text of at most [`MOST_BYTES`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MOST_BYTES {
            return Err(io::Error::other("the text that the template makes is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::body::{Body, Input};

    fn rendered(source: &str, body: &str) -> Result<String, Error> {
        let special = Map::from_iter([("bos_token".to_owned(), Json::from("<s>"))]);
        let body = Body::read(body.as_bytes()).unwrap();
        let Input::Chat(messages) = &body.input else { panic!("no chat") };
        Template::new(source, special)?.render(messages, &body.chat)
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

    #[test]
    fn a_message_to_be_continued_ends_the_text() {
        let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% generation %}{% endgeneration %}{% endfor %}";
        let body = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"the answer "}],
            "continue_final_message":true,"add_generation_prompt":false}"#;
        assert_eq!(rendered(source, body).unwrap(), "<user>q</><assistant>the answer");
    }
}
