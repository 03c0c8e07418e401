"""Takes the columns of a level's requests, gives their lengths as asked for and as they came; pure."""

from __future__ import annotations

from typing import Any

from loadgen.stats.columns import MISSING, Columns, Flags, Ints


def token_counts(c: Columns, begun: Flags) -> dict[str, Any]:
    """Lengths of the ok requests among those that `begun` flags, shape (n,)."""
    ok = c.ok & begun
    produced = ok & (c.output_tokens != MISSING)
    compared = produced & (c.output_tokens_requested != MISSING)
    counted = ok & (c.input_tokens != MISSING)
    asked = counted & (c.input_tokens_requested != MISSING)
    return {
        "output_tokens_requested": int(c.output_tokens_requested[compared].sum()) if compared.any() else None,
        "output_tokens_delivered": int(c.output_tokens[compared].sum()) if compared.any() else None,
        "mean_output_tokens": _mean(c.output_tokens[produced]),
        "mean_input_tokens": _mean(c.input_tokens[counted]),
        "input_tokens_mismatched": int((c.input_tokens != c.input_tokens_requested)[asked].sum())
        if asked.any()
        else None,
    }


def _mean(values: Ints) -> float | None:
    return float(values.mean()) if values.size else None
