"""Writes cases.jsonl: request bodies and how many tokens transformers makes of them.

usage: cases.py, with a Python that has transformers (that of tests/vllm/vllm-cpu)
"""

import json
import os

from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_file=HERE + "/tokenizer.json", bos_token="<s>", eos_token="</s>"
)
with open(HERE + "/chat_template.jinja") as template:
    TOKENIZER.chat_template = template.read()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather in a city, <now> & then",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "default": 3},
                    "f": {"type": "number", "default": 1.0},
                },
                "required": ["city"],
            },
        },
    }
]
CALL = [
    {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Z\u00fcrich", "days":2}'},
    }
]
TEXTS = [
    "Hello, world!",
    "",
    "  two  blanks\t\n\n",
    "Z\u00fcrich \u2013 na\u00efve caf\u00e9",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "<s>special</s> <pad>",
    "0123456789 3.14159 -1e9",
    "def f(x):\n    return x ** 2\n",
    "a" * 300,
    "\u0000\u0001",
    "e\u0301 \u00e9",
]
USER = {"role": "user", "content": "weather?"}
CHATS = [
    {"messages": [{"role": "user", "content": "Hi"}]},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello.\n</think>\n\nYes"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            },
        ]
    },
    {"messages": [USER], "tools": TOOLS},
    {
        "messages": [
            {"role": "system", "content": "S"},
            USER,
            {"role": "assistant", "content": None, "tool_calls": CALL},
            {"role": "tool", "tool_call_id": "c1", "content": " 21 \u00b0C\n"},
            {"role": "user", "content": "ok"},
        ],
        "tools": TOOLS,
    },
    {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [USER], "add_generation_prompt": False},
]


def as_vllm_has_it(message):
    """Parts joined, nothing as an empty text, arguments of calls as objects."""
    message = dict(message)
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    message["content"] = content
    if "tool_calls" in message:
        message["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return message


def chat_tokens(body):
    ids = TOKENIZER.apply_chat_template(
        [as_vllm_has_it(message) for message in body["messages"]],
        tools=body.get("tools"),
        add_generation_prompt=body.get("add_generation_prompt", True),
        tokenize=True,
        return_dict=False,
        **body.get("chat_template_kwargs", {}),
    )
    return len(ids)


with open(HERE + "/cases.jsonl", "w") as out:
    for text in TEXTS:
        case = {"body": {"prompt": text}, "tokens": len(TOKENIZER(text)["input_ids"])}
        out.write(json.dumps(case) + "\n")
    for body in CHATS:
        out.write(json.dumps({"body": body, "tokens": chat_tokens(body)}) + "\n")
