"""Makes new streams of old ones: cuts, splices and repeats bytes, swaps lines ends, and puts odd values into the JSON."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

WORDS = [
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\r\n\r\n",
    b":",
    b" ",
    b"data: ",
    b"data:",
    b"event: error\n",
    b"event: ping\n",
    b"id: 1\n",
    b"data: [DONE]\n\n",
    b'data: "[DONE]"\n\n',
    b"\xef\xbb\xbf",
    b"\xe4",
    b"\x00",
    b"\\ud83d",
    b"\\u0000",
    b"NaN",
    b"1e999",
    b'{"error":"x"}\n\n',
    b"error: x\n\n",
    b'"usage":null,',
    b"[" * 50,
    b'{"a":' * 50,
]
ODD_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    2**31,
    2**63,
    2**70,
    1.5,
    float("nan"),
    "",
    "x",
    "\ud83d",
    "\x1b[31m",
    "null",
    "stop",
    "error",
    [],
    {},
    [None],
    [{}],
    {"message": "x"},
    {"content": "x"},
    {"prompt_tokens": 9, "completion_tokens": 2},
    {"completion_tokens": "2"},
]
KEYS = [
    "choices",
    "delta",
    "content",
    "reasoning",
    "reasoning_content",
    "refusal",
    "tool_calls",
    "function_call",
    "function",
    "arguments",
    "text",
    "index",
    "finish_reason",
    "usage",
    "x_groq",
    "prompt_tokens",
    "completion_tokens",
    "error",
    "object",
    "type",
    "message",
    "detail",
    "code",
    "token_ids",
    "logprobs",
]
_JSON_LINE = re.compile(rb"data: ?(\{[^\r\n]*\})")
_TEXT = re.compile(rb'(?<="content":")[^"]*|(?<="text":")[^"]*')

Mutation = Callable[[bytes, random.Random], bytes]


def mutate(body: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """`body` after one to six changes; some take a piece of one of the `others`."""
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        if rng.random() < 0.15:
            other = rng.choice(others)
            body = body[: _place(body, rng)] + other[_place(other, rng) :]
        else:
            body = rng.choice(_MUTATIONS)(body, rng)
    return body


def _place(body: bytes, rng: random.Random) -> int:
    """Any byte, or more often the start of an event."""
    starts = [match.end() for match in re.finditer(rb"\n\n|\r\r|\r\n\r\n", body)]
    return rng.choice(starts) if starts and rng.random() < 0.6 else rng.randint(0, len(body))


def _drop(body: bytes, rng: random.Random) -> bytes:
    start, end = sorted((_place(body, rng), _place(body, rng)))
    return body[:start] + body[end:]


def _repeat(body: bytes, rng: random.Random) -> bytes:
    start, end = sorted((_place(body, rng), _place(body, rng)))
    return body[:end] + body[start:end] + body[end:]


def _insert(body: bytes, rng: random.Random) -> bytes:
    at = _place(body, rng)
    return body[:at] + rng.choice(WORDS) + body[at:]


def _flip(body: bytes, rng: random.Random) -> bytes:
    if not body:
        return body
    at = rng.randrange(len(body))
    return body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]


def _line_ends(body: bytes, rng: random.Random) -> bytes:
    return body.replace(b"\n", rng.choice((b"\r", b"\r\n", b"\n\n")))


def _value(body: bytes, rng: random.Random) -> bytes:
    """Another value, or another key, somewhere in the JSON of one event."""
    lines = list(_JSON_LINE.finditer(body))
    if not lines:
        return body
    line = rng.choice(lines)
    try:
        event = json.loads(line[1])
    except ValueError:
        return body
    holders: list[Any] = [event]
    for holder in holders:
        inner = holder.values() if isinstance(holder, dict) else holder
        holders += [value for value in inner if isinstance(value, dict | list)]
    holder = rng.choice(holders)
    value = rng.choice(ODD_VALUES)
    if isinstance(holder, dict):
        holder[rng.choice([*holder, *rng.sample(KEYS, 3)])] = value
    elif holder:
        holder[rng.randrange(len(holder))] = value
    else:
        holder.append(value)
    changed = json.dumps(event, ensure_ascii=rng.random() < 0.8).encode(errors="surrogatepass")
    return body[: line.start(1)] + changed + body[line.end(1) :]


def _alike(body: bytes, rng: random.Random) -> bytes:
    """One event again, a few times, its text a piece of the stream itself, escaped or not."""
    lines = list(_JSON_LINE.finditer(body))
    if not lines:
        return body
    line = rng.choice(lines)
    again = b""
    for _ in range(rng.randint(2, 5)):
        at = _place(body, rng)
        text = body[at : at + rng.randrange(1, 200)]
        if rng.random() < 0.8:
            text = json.dumps(text.decode(errors="replace"), ensure_ascii=rng.random() < 0.5)[1:-1].encode()
        again += _TEXT.sub(lambda _, text=text: text, line[0]) + b"\n\n"  # type: ignore[misc]
    return body[: line.start()] + again + body[line.start() :]


_MUTATIONS: list[Mutation] = [_drop, _repeat, _insert, _flip, _line_ends, _value, _value, _value, _value, _alike]
