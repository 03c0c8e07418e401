"""Which events are recognised by their shape; those far longer than a token cost neither the memory nor the time of a
pattern."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import accumulate
from typing import Any

import orjson
import pytest

from loadgen.wire.shape import ShapeMemory, shape_of
from tests.sse_events import CU, FIN, ROLE, TEXT, C, R, choice, event, usage

PEAK_OF_A_LONG_EVENT = """
import re
from pathlib import Path
from loadgen.wire.stream import read_stream
from tests.sse_events import C, END

def peak_kb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

read_stream(C("a") + END(1), body_complete=True, keep_text=False)
body = C("a") + C("y" * 3_000_000) + END(2)
before_kb = peak_kb()
assert len(read_stream(body, body_complete=True, keep_text=False).ends) == 2
print(peak_kb() - before_kb)
"""


def event_of(text: str, **beside: Any) -> dict[str, Any]:
    return {**beside, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def cpu_s(event: dict[str, Any]) -> float:
    data = json.dumps(event).encode()
    began = time.process_time()
    shape_of(data, event)
    return time.process_time() - began


def test_a_long_event_of_a_known_shape_costs_little_more_than_its_bytes() -> None:
    ended = subprocess.run([sys.executable, "-c", PEAK_OF_A_LONG_EVENT], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 60_000  # the engine alone took 300,000 for it


def test_a_hole_that_could_be_anywhere_is_not_looked_for_everywhere() -> None:
    assert cpu_s(event_of("q", junk=["q"] * 8000)) < 0.3  # it took 1.9 s


def test_a_long_first_text_makes_no_shape() -> None:
    event = event_of("y" * 3_000_000)
    assert shape_of(json.dumps(event).encode(), event) is None
    assert shape_of(json.dumps(event_of("y")).encode(), event_of("y")) is not None


def memory_of(event: bytes) -> ShapeMemory:
    memory = ShapeMemory()
    data = event.removeprefix(b"data: ").removesuffix(b"\n\n")
    assert memory.find(data, json.loads(data)) is not None
    return memory


@pytest.mark.parametrize(
    "events",
    [
        [C("a"), C(" b"), C('say "c"\n'), C("\\"), C('"'), C("data: [DONE]\n\n")],
        [C("中文"), C("é"), C("😀"), C("e")],
        [C("?").replace(b"?", half) for half in (b"a", b"\xe4", b"\xed\xa0\xbd", b"\\ud83d", b"\\ude00", b"\xf0\x9f")],
        [CU("a", 1), CU("b", 2), CU("中", 4)],
        [C("a", id="other"), C("b", id="another"), C("c", created=7), C("d", created=8)],
        [TEXT("a"), TEXT("b")],
        [R("a"), R("b")],
        [event({"usage": usage(9, k), "id": "c", "choices": [choice({"content": "a"})]}) for k in (1, 2, 12)],
    ],
)
def test_a_run_is_as_long_as_its_events_are_alike(events: list[bytes]) -> None:
    memory = memory_of(events[0])
    for first in (b"", ROLE):
        found = memory.first_run(first + b"".join(events) + FIN("stop"))
        assert found is not None
        _, start, run = found
        assert (start, run.ends) == (len(first), list(accumulate(map(len, events), initial=len(first)))[1:])


@pytest.mark.parametrize("broken", [b'"', b"\\", b"\\x", b"\\u12", b"\n", b"\x00"])
def test_a_text_that_may_end_elsewhere_is_parsed(broken: bytes) -> None:
    found = memory_of(C("a")).first_run(C("a") + C("?").replace(b"?", broken) + C("b"))
    assert found is None or found[2].ends == [len(C("a"))]


def test_an_event_of_several_lines_makes_no_shape() -> None:
    lines = b'{"choices":\n[{"index":0,"delta":{"content":"a"}}]}'
    assert shape_of(lines, json.loads(lines)) is None  # the second line without `data: ` would be no part of the event


@pytest.mark.parametrize("depth", [600, 1000])
def test_an_event_that_only_one_reader_reads_makes_no_shape(depth: int) -> None:
    data = b'{"deep":%b,"choices":[{"index":0,"delta":{"content":"a"}}]}' % (b"[" * depth + b"]" * depth)
    assert shape_of(data, orjson.loads(data)) is None  # the other one, for broken texts, does not read so deep


def test_half_a_character_is_looked_for_where_a_question_mark_stands() -> None:
    half = event_of("\ud83d", model="?")
    assert shape_of(json.dumps(half).encode(), half) is None


@pytest.mark.parametrize("text", ["\\n" * 15_000, "data: " * 7_000, '\\"},' * 8_000, "中" * 13_000])
def test_a_crafted_text_costs_little(text: str) -> None:
    body = C("?").replace(b"?", text.encode())
    crafted = (body[:-3] + b"!" + body[-3:]) * 10  # all but its end is of the shape
    memory = memory_of(C("a"))
    began = time.process_time()
    memory.first_run(crafted)
    memory.first_run(C("a") + crafted)
    assert time.process_time() - began < 0.3
