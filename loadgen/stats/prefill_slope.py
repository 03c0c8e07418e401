"""Takes the columns of a level's requests, gives how much longer a first token takes for each further prompt token; pure."""

from __future__ import annotations

import numpy as np

from loadgen.stats.columns import MISSING, Columns, Flags

FEWEST = 20
"""Requests, below which a slope is chance."""


def ttft_ms_per_input_token(c: Columns, begun: Flags) -> float | None:
    """Least-squares slope of TTFT over the prompt's tokens, of the ok requests that `begun` flags, shape (n,).

    None where the prompts are all of one length, or few.
    """
    known = c.ok & begun & (c.first_token_ns != MISSING) & (c.sent_ns != MISSING) & (c.input_tokens != MISSING)
    tokens = c.input_tokens[known].astype(np.float64)
    if tokens.size < FEWEST or np.ptp(tokens) == 0:
        return None
    ttft_ms = (c.first_token_ns - c.sent_ns)[known] / 1e6
    centred = tokens - tokens.mean()
    return float(centred @ (ttft_ms - ttft_ms.mean()) / (centred @ centred))
