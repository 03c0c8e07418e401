"""What becomes of a replica's capacity when prompts or answers get longer or shorter; pure.

The model: a request takes a server W = 1 / X seconds, X being the requests/s that it completed at its capacity (with c
requests in flight W is their end-to-end time / c, by Little's law). Of W the prompt takes its prefill, which a lightly loaded
level tells (`loadgen.stats.prefill`), and which grows with the prompt's tokens; the rest grows with the answer's tokens.
Without such a level there is no model. It leaves out that longer contexts make every token slower (their KV cache is read), that fewer of them fit into memory, and
that a longer prompt may break the limit on TTFT below that load.
"""

from __future__ import annotations

from dataclasses import dataclass

MODEL = (
    "a request takes the server 1 / capacity seconds; of these the prompt takes the lightest level's TTFT P50 less one token's "
    "time and grows with its tokens, the rest grows with the answer's tokens. Left out: slower tokens and less room in longer "
    "contexts, and limits that longer prompts may break"
)
CHANGE = 0.25
FACTORS = (
    (1 - CHANGE, 1.0),
    (1 + CHANGE, 1.0),
    (1.0, 1 - CHANGE),
    (1.0, 1 + CHANGE),
    (1 - CHANGE, 1 - CHANGE),
    (1 + CHANGE, 1 + CHANGE),
)
"""(input, output): by what the lengths are multiplied."""
CLOSE = 0.05
"""How far the lengths of a measured level may be from those asked about."""


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds that one request takes of a server at its capacity."""

    prompt_s: float
    answer_s: float

    @classmethod
    def of(cls, capacity_rps: float, prefill_ms: float | None) -> Work | None:
        """From a capacity above 0 and what a prompt takes of the server; None where that is not known."""
        if prefill_ms is None:
            return None
        whole_s = 1 / capacity_rps
        prompt_s = min(prefill_ms / 1e3, whole_s)
        return cls(prompt_s, whole_s - prompt_s)

    def capacity_rps(self, input_factor: float, output_factor: float) -> float:
        """Requests/s with lengths multiplied so."""
        return 1 / (self.prompt_s * input_factor + self.answer_s * output_factor)


def is_close(tokens: float | None, wanted: float | None) -> bool:
    """Whether a measured mean length stands for the one asked about; never where either is unknown."""
    return tokens is not None and wanted is not None and abs(tokens - wanted) <= CLOSE * wanted
