# ruff: noqa: N802
"""Events as an OpenAI-compatible server writes them, by short names, and exchanges made of scripts with given instants.

A script is a list of writes `(at_ms, bytes)`, counted from the moment the whole request had been read. The names are upper
case because a test should read like the case it states: `[(50, ROLE), (400, C("Hel")), (450, C("lo") + END(2))]`.
"""

import json

from loadgen.wire.exchange import Exchange

Script = list[tuple[float, bytes]]

SENT_NS = 7_000_000_000
"""When the request of a scripted exchange was sent: not 0, so that a forgotten subtraction shows."""


def event(payload: object) -> bytes:
    """One event with `payload` as JSON, without spaces, in raw UTF-8."""
    return b"data: " + json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def chunk(*choices: object, **more: object) -> bytes:
    return event(
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": list(choices), **more}
    )


def choice(delta: object, finish_reason: str | None = None, index: int = 0, **more: object) -> dict[str, object]:
    return {"index": index, "delta": delta, "finish_reason": finish_reason, **more}


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


ROLE = chunk(choice({"role": "assistant", "content": ""}))
DONE = b"data: [DONE]\n\n"


def C(text: str, **more: object) -> bytes:
    """Content."""
    return chunk(choice({"content": text}), **more)


def R(text: str) -> bytes:
    """Reasoning."""
    return chunk(choice({"reasoning": text}))


def RC(text: str) -> bytes:
    """Reasoning under its older name."""
    return chunk(choice({"reasoning_content": text}))


def FIN(reason: str, **more: object) -> bytes:
    """The event that brings the finish reason."""
    return chunk(choice({}, reason), **more)


def U(prompt: int, completion: int) -> bytes:
    """Usage, without choices."""
    return chunk(usage=usage(prompt, completion))


def CU(text: str, completion: int) -> bytes:
    """Content with the tokens so far."""
    return C(text, usage=usage(9, completion))


def TEXT(text: str, finish_reason: str | None = None) -> bytes:
    """An event of the completions endpoint."""
    choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}]
    return event({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": choices})


def END(n: int) -> bytes:
    return FIN("stop") + U(9, n) + DONE


def NORMAL(n: int, first: float, gap: float) -> Script:
    """A role event at 10 ms, n content events from `first` every `gap` ms, the end together with the last one."""
    script: Script = [(10, ROLE)]
    script += [(first + k * gap, C("x")) for k in range(n)]
    at, last = script.pop()
    return [*script, (at, last + END(n))]


def exchange(script: Script, **fields: object) -> Exchange:
    """What the client would have seen of `script`: one read a write, a body that ended as it should with the last one."""
    chunk_ns = [SENT_NS + round(at * 1e6) for at, _ in script]
    seen: dict[str, object] = {
        "level": 0,
        "index": 0,
        "user": 0,
        "worker": 0,
        "endpoint": "chat",
        "dispatched_ns": SENT_NS - 1_000,
        "sent_ns": SENT_NS,
        "response_started_ns": SENT_NS,
        "http_status": 200,
        "content_type": "text/event-stream; charset=utf-8",
        "finished_ns": chunk_ns[-1] if script else SENT_NS,
        "body_complete": True,
    }
    made = Exchange(**(seen | fields))  # type: ignore[arg-type]
    for (_, data), arrival_ns in zip(script, chunk_ns, strict=True):
        made.add(data, arrival_ns)
    return made


def refused(status: int, message: str, at_ms: float = 1, **fields: object) -> Exchange:
    """What the client would have seen of an answer that is no stream but a JSON error."""
    body = json.dumps({"error": {"message": message, "type": "Error", "param": None, "code": status}}).encode()
    return exchange([(at_ms, body)], http_status=status, content_type="application/json", **fields)


def cuts(script: Script) -> list[Script]:
    """`script` cut in two at every byte inside every write, the second half 5 ms later (all else as it was)."""
    variants: list[Script] = []
    for k, (at, data) in enumerate(script):
        for cut in range(1, len(data)):
            variants.append([*script[:k], (at, data[:cut]), (at + 5, data[cut:]), *script[k + 1 :]])
    return variants
