//! The size of a prompt's text, and what tells its kind: one pass over the bytes, nothing kept.

use gpuadmit_core::{count::TextSize, units::Tokens};

use super::{
    body::{Body, Input},
    message::{Content, Message, Part},
};

/// The size of `body`, where a picture or another medium is taken for `media_tokens`.
pub fn body(body: &Body<'_>, media_tokens: u64) -> TextSize {
    let mut size = TextSize::default();
    match &body.input {
        Input::Nothing => {}
        Input::Texts(texts) => texts.iter().for_each(|one| add(&mut size, one)),
        Input::Ids { tokens, .. } => size.known = Tokens(*tokens),
        Input::Chat(messages) | Input::Responses(messages) => {
            messages.iter().for_each(|one| message(&mut size, one, media_tokens));
            let chat = &body.chat;
            for raw in [chat.tools, chat.documents, chat.kwargs].into_iter().flatten() {
                add(&mut size, raw.get());
            }
        }
    }
    size
}

/// The size of a plain text.
pub fn text(text: &str) -> TextSize {
    let mut size = TextSize::default();
    add(&mut size, text);
    size
}

fn message(size: &mut TextSize, message: &Message<'_>, media_tokens: u64) {
    size.messages = size.messages.saturating_add(1);
    match &message.content {
        Content::None => {}
        Content::Text(text) => add(size, text),
        Content::Parts(parts) => {
            for part in parts {
                match part {
                    Part::Text(text) => add(size, text),
                    Part::Media => size.assumed += Tokens(media_tokens),
                    Part::Other(raw) => add(size, raw.get()),
                }
            }
        }
    }
    for (_, raw) in &message.extra {
        add(size, raw.get());
    }
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
        assert_eq!((size.messages, size.assumed, size.bytes), (1, Tokens(500), 13 + 21));
    }
}
