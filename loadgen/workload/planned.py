"""The seam between what is asked for and who sends it: a workload makes numbered requests, and knows no pace or socket.

A workload is the same on every worker: request k of a level is a function of what the workload was made from, the level
and k. Who builds which k is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request, ready to be sent."""

    k: int
    """Its number within the level."""
    body: bytes
    """The JSON body."""
    kind: int
    """Index of its class in the workload; 0 where there is only one."""
    input_tokens: int | None
    """Tokens of the prompt as the server should count them; None where nobody has counted them."""
    output_tokens: int | None
    """Tokens that it asks for; None where it leaves the length to the server."""
    output_forced: bool
    """Whether the server is told to give exactly so many tokens (`ignore_eos` and `min_tokens`)."""
    streamed: bool = True
    """Whether it asks for a stream; else the answer comes whole."""
    session: int | None = None
    """Of a turn of a conversation, as the next three; see `loadgen.record.RequestRecord`."""
    turn: int | None = None
    prefix_tokens: int | None = None
    turn_input_tokens: int | None = None


class Workload(Protocol):
    """Requests by number."""

    def build(self, level: int, k: int) -> PlannedRequest:
        """Request `k` of `level`. Called in the hub and on the loop at the same time: it changes nothing."""
