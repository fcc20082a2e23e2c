//! Request bodies of many kinds and sizes, the same at every run.

use serde_json::{Value, json};

/// A request.
pub(crate) struct Case {
    /// Where it goes.
    pub(crate) path: &'static str,
    /// What kind of body it is.
    pub(crate) kind: &'static str,
    /// The body, without `model` and `max_tokens`.
    pub(crate) body: Value,
}

/// Bodies of each kind.
const EACH: u64 = 45;
/// Bytes of the shortest and the longest text: the test models' tokenizer makes up to a token of each.
const BYTES: (f64, f64) = (3.0, 1500.0);
/// Ids of ordinary tokens.
const TOKEN_IDS: std::ops::Range<u64> = 3..512;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

type Make = fn(&mut Dice) -> Value;
/// Kinds of bodies.
const KINDS: [(&str, &str, Make); 12] = [
    (COMPLETIONS, "prose", |dice| json!({ "prompt": dice.text(prose) })),
    (COMPLETIONS, "other scripts", |dice| json!({ "prompt": dice.text(scripts) })),
    (COMPLETIONS, "code", |dice| json!({ "prompt": dice.text(code) })),
    (COMPLETIONS, "symbols and blanks", |dice| json!({ "prompt": dice.text(symbols) })),
    (
        COMPLETIONS,
        "no special tokens",
        |dice| json!({ "prompt": dice.text(prose), "add_special_tokens": false }),
    ),
    (COMPLETIONS, "token ids", |dice| {
        let count = dice.size().max(1);
        json!({ "prompt": (0..count).map(|_| TOKEN_IDS.start + dice.below(TOKEN_IDS.end - TOKEN_IDS.start)).collect::<Vec<_>>() })
    }),
    (CHAT, "a question", |dice| json!({ "messages": [{ "role": "user", "content": dice.text(prose) }] })),
    (
        CHAT,
        "other scripts in a chat",
        |dice| json!({ "messages": [{ "role": "system", "content": dice.part(scripts) }, { "role": "user", "content": dice.part(scripts) }] }),
    ),
    (CHAT, "several turns", turns),
    (CHAT, "several parts", parts),
    (CHAT, "tools", |dice| {
        let messages = json!([{ "role": "user", "content": dice.part(prose) }]);
        json!({ "messages": messages, "tools": tools(dice), "tool_choice": "none" })
    }),
    (CHAT, "calls of tools", calls),
];

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    let mut dice = Dice(1);
    let mut cases = Vec::new();
    for _ in 0..EACH {
        for (path, kind, make) in KINDS {
            cases.push(Case { path, kind, body: make(&mut dice) });
        }
    }
    cases
}

fn turns(dice: &mut Dice) -> Value {
    let mut messages = vec![json!({ "role": "system", "content": "Answer briefly." })];
    for turn in 0..1 + 2 * dice.below(4) {
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        let write = if dice.below(3) == 0 { code } else { prose };
        messages.push(json!({ "role": role, "content": dice.piece(write, 6) }));
    }
    json!({ "messages": messages })
}

fn parts(dice: &mut Dice) -> Value {
    let count = 1 + dice.below(4);
    let parts = (0..count).map(|_| json!({ "type": "text", "text": dice.piece(prose, 4) }));
    let parts: Vec<_> = parts.collect();
    json!({ "messages": [{ "role": "user", "content": parts }] })
}

fn tools(dice: &mut Dice) -> Value {
    let tool = |dice: &mut Dice| {
        let described = dice.below(2) == 0;
        let parameters = json!({
            "type": "object",
            "properties": { "city": { "type": "string", "description": dice.piece(prose, 20) }, "days": { "type": "integer", "default": 3 } },
            "required": ["city"],
        });
        let mut function = json!({ "name": "weather", "parameters": parameters });
        if described {
            function["description"] = dice.piece(prose, 20).into();
        }
        json!({ "function": function, "type": "function" })
    };
    (0..=dice.below(2)).map(|_| tool(dice)).collect()
}

fn calls(dice: &mut Dice) -> Value {
    let arguments = json!({ "city": dice.piece(scripts, 30), "days": 2 }).to_string();
    let call = json!([{ "id": "c1", "type": "function", "function": { "name": "weather", "arguments": arguments } }]);
    json!({
        "messages": [
            { "role": "user", "content": dice.piece(prose, 4) },
            { "role": "assistant", "content": null, "tool_calls": call },
            { "role": "tool", "tool_call_id": "c1", "content": dice.piece(symbols, 8) },
            { "role": "user", "content": dice.piece(prose, 4) },
        ],
        "tools": tools(dice),
        "tool_choice": "none",
    })
}

fn prose(dice: &mut Dice, to: &mut String) {
    const WORDS: [&str; 24] = [
        "the",
        "a",
        "of",
        "and",
        "engine",
        "memory",
        "which",
        "is",
        "request",
        "answer",
        "however",
        "to",
        "it",
        "nevertheless",
        "was",
        "Tuesday",
        "I",
        "block",
        "scheduler",
        "in",
        "before",
        "fits",
        "understanding",
        "we",
    ];
    const ENDS: [&str; 8] = [" ", " ", " ", " ", " ", ", ", ". ", ".\n\n"];
    to.push_str(dice.one_of(&WORDS));
    to.push_str(dice.one_of(&ENDS));
}

fn scripts(dice: &mut Dice, to: &mut String) {
    const PIECES: [&str; 12] = [
        "\u{41f}\u{440}\u{438}\u{432}\u{435}\u{442} ",
        "\u{65e5}\u{672c}\u{8a9e}\u{306e}",
        "\u{4f60}\u{597d}\u{ff0c}",
        "Stra\u{df}e ",
        "na\u{ef}ve ",
        "\u{1f600}",
        "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} ",
        "\u{645}\u{631}\u{62d}\u{628}\u{627} ",
        "e\u{301}",
        "\u{926}\u{947}\u{935}\u{928}\u{93e}\u{917}\u{930}\u{940} ",
        "\u{d55c}\u{ad6d}\u{c5b4} ",
        "\u{a0}\u{2026}",
    ];
    to.push_str(dice.one_of(&PIECES));
}

fn code(dice: &mut Dice, to: &mut String) {
    const LINES: [&str; 8] = [
        "def area(width, height):\n",
        "    return width * height  # m\u{b2}\n",
        "\tif (x != 0x1F) { y += 1; }\n",
        "let total: u64 = parts.iter().map(|p| p.len()).sum();\n",
        "SELECT id, name FROM users WHERE age >= 18;\n",
        "{\"key\": [1, 2.5, null], \"on\": true}\n",
        "        \n",
        "#include <stdio.h>\n",
    ];
    to.push_str(dice.one_of(&LINES));
}

fn symbols(dice: &mut Dice, to: &mut String) {
    const PIECES: [&str; 12] = [
        "   ", "\t\t", "\n\n\n", "====", "3.14159", "-1e9", "<|x|>", "\\\"", "$%&/()", "\r\n", "0000", "</s>",
    ];
    to.push_str(dice.one_of(&PIECES));
}

/// Numbers without end from a fixed congruence (Knuth's MMIX).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        let at = usize::try_from(self.below(u64::try_from(all.len()).unwrap_or(1))).unwrap_or(0);
        all[at]
    }

    /// As often below twice the shortest as below twice any other.
    fn size(&mut self) -> u64 {
        let share = f64::from(u32::try_from(self.below(1 << 16)).unwrap_or(0)) / f64::from(1 << 16);
        let size = BYTES.0 * (BYTES.1 / BYTES.0).powf(share);
        // No size is as large as 2^53.
        format!("{size:.0}").parse().unwrap_or(1)
    }

    /// A text of one kind.
    fn text(&mut self, write: fn(&mut Self, &mut String)) -> String {
        let size = self.size();
        self.written(write, size)
    }

    /// A shorter one.
    fn part(&mut self, write: fn(&mut Self, &mut String)) -> String {
        self.piece(write, 2)
    }

    /// A text of a share of the usual size.
    fn piece(&mut self, write: fn(&mut Self, &mut String), share: u64) -> String {
        let size = self.size() / share;
        self.written(write, size)
    }

    fn written(&mut self, write: fn(&mut Self, &mut String), bytes: u64) -> String {
        let mut text = String::new();
        while u64::try_from(text.len()).unwrap_or(u64::MAX) < bytes {
            write(self, &mut text);
        }
        text
    }
}
