//! The size of a prompt's text, and what tells its kind: one pass over the bytes, nothing kept.

use gpuadmit_core::{count::TextSize, units::Tokens};
use serde_json::value::RawValue;

use super::{
    body::{Body, ChatOptions, Input},
    message::{Content, Message, Part},
};

/// Roles whose messages every template shows whole. Of what the model said, many leave out what it thought.
const SHOWN: [&str; 4] = ["system", "developer", "user", "tool"];

/// The size of `body`, where a picture or another medium is taken for `media_tokens`.
pub fn body(body: &Body<'_>, media_tokens: u64) -> TextSize {
    let of_chat = |messages: &Vec<Message<'_>>| chat(messages, &body.chat, media_tokens);
    let known = |length: &u64| TextSize { known: Tokens(*length), ..TextSize::default() };
    let size: TextSize = match &body.input {
        Input::Nothing => TextSize::default(),
        Input::Texts(texts) => match &texts[..] {
            [one] => text(one),
            texts => texts.iter().map(|one| text(one)).collect(),
        },
        Input::Ids(lengths) => lengths.iter().map(known).collect(),
        Input::Chat(messages) => of_chat(messages),
        Input::Chats(chats) => chats.iter().map(of_chat).collect(),
    };
    TextSize { cut: body.cut, ..size }
}

/// The size of a plain text.
pub fn text(text: &str) -> TextSize {
    let mut size = TextSize::default();
    add(&mut size, text);
    size
}

fn chat(messages: &[Message<'_>], options: &ChatOptions<'_>, media_tokens: u64) -> TextSize {
    let mut size = TextSize::default();
    messages.iter().for_each(|one| message(&mut size, one, media_tokens));
    let beside = [options.tools, options.documents, options.kwargs];
    beside.into_iter().flatten().for_each(|raw| add_json(&mut size, raw));
    size
}

fn message(size: &mut TextSize, message: &Message<'_>, media_tokens: u64) {
    size.messages = size.messages.saturating_add(1);
    let add = if SHOWN.contains(&&*message.role) { add } else { add_optional };
    match &message.content {
        Content::None => {}
        Content::Text(text) => add(size, text),
        Content::Parts(parts) => {
            for part in parts {
                match part {
                    Part::Text(text) => add(size, text),
                    Part::Media => size.assumed += Tokens(media_tokens),
                    Part::Other(raw) => add_json(size, raw),
                }
            }
        }
    }
    message.extra.iter().for_each(|(_, raw)| add_json(size, raw));
}

/// A text that the template may leave out.
fn add_optional(size: &mut TextSize, text: &str) {
    let before = *size;
    add(size, text);
    size.optional_bytes = size.optional_bytes.saturating_add(size.bytes.saturating_sub(before.bytes));
    size.words = before.words;
}

/// JSON that the template may leave out, or write with blanks and line ends around every sign, and with keys of its own.
fn add_json(size: &mut TextSize, raw: &RawValue) {
    let before = size.symbol_bytes;
    add_optional(size, raw.get());
    let signs = size.symbol_bytes.saturating_sub(before).saturating_mul(2);
    size.bytes = size.bytes.saturating_add(signs);
    size.optional_bytes = size.optional_bytes.saturating_add(signs);
}

fn add(size: &mut TextSize, text: &str) {
    let (mut wide, mut symbols, mut spaces, mut words) = (0u64, 0u64, 0u64, 0u64);
    let mut in_word = false;
    for byte in text.bytes() {
        let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        wide += u64::from(byte >= 0x80);
        symbols += u64::from(byte.is_ascii_punctuation() | byte.is_ascii_digit());
        spaces += u64::from(space);
        words += u64::from(!space & !in_word);
        in_word = !space;
    }
    size.bytes = size.bytes.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
    size.wide_bytes = size.wide_bytes.saturating_add(wide);
    size.symbol_bytes = size.symbol_bytes.saturating_add(symbols);
    size.space_bytes = size.space_bytes.saturating_add(spaces);
    size.words = size.words.saturating_add(words);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_measured_by_its_bytes() {
        let size = text("Gr\u{fc}\u{df} Gott,  12\n");
        // ü and ß have two bytes each.
        let expected = TextSize {
            bytes: 17,
            wide_bytes: 4,
            symbol_bytes: 3,
            space_bytes: 4,
            words: 3,
            ..TextSize::default()
        };
        assert_eq!(size, expected);
    }

    #[test]
    fn a_chat_is_its_messages_tools_and_pictures_but_not_their_data() {
        let json = br#"{"messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},
            {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}]}],
            "tools":[{"type":"function"}]}"#;
        let size = body(&Body::read(json).unwrap(), 500);
        assert_eq!((size.messages, size.assumed, size.bytes), (1, Tokens(500), 13 + 21 + 2 * 9));
    }
}
