"""What the two sides of a run under plain Locust say beside `loadgen.messages`: who is there, and names of requests."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.messages import Message

OPEN_END_NS = 1 << 62
"""End of a window that is told when it opens; the same window told again with its end closes it."""


@dataclass(frozen=True, slots=True)
class Call(Message):
    """A test begins, and the master asks who is there: every worker answers with its HELLO."""


@dataclass(frozen=True, slots=True)
class Names(Message):
    """All names that a worker's tasks have given their requests so far."""

    names: list[str]


CALL = "loadgen_call"
NAMES = "loadgen_names"
