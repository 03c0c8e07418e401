"""Events far longer than a token cost neither the memory nor the time of a pattern."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from loadgen.wire.shape import shape_of

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
