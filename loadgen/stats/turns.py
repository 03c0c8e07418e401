"""Takes the columns of a level's requests, gives the figures of each turn of their conversations; pure.

Turn 1 meets a server that knows nothing of the conversation; what a prefix cache saves shows in the later ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.record import OK, LevelPlan
from loadgen.stats.columns import MISSING, Columns, Flags, Floats
from loadgen.stats.latency_fields import latency_fields, weak_fields
from loadgen.stats.percentile import Samples

TURN_LATENCIES = ("ttft", "ttft_from_schedule", "tpot", "e2el", "e2el_from_schedule")
MOST_FIRST_TURNS = 1.25
"""First turns may be so many times as many as in the long run …"""
SIGMAS = 3
"""… or so many standard deviations more, if that is more, before it is said."""
_SINGLE = 4
"""So many turns have figures of their own; those after them are taken together: 5-8, 9-16, …"""


def turn_figures(
    plan: LevelPlan, c: Columns, begun: Flags, statuses: Sequence[str], durations: Mapping[str, Floats]
) -> dict[str, Any] | None:
    """The `turns` object of a level; None where no request is a turn of a conversation.

    `begun` flags the requests of the window, `statuses` has one entry a request, and `durations` is what
    `loadgen.stats.latencies.per_request_ns` gives.
    """
    of_turns = begun & (c.turn != MISSING)
    if not of_turns.any():
        return None
    last = int(c.turn[of_turns].max())
    groups = [("later", 2, last)] if last > 1 else []
    return {
        "conversations": int(np.unique(c.session[of_turns]).size),
        "broken_conversations": int(np.unique(c.session[of_turns & c.failed]).size),
        "mean_turns": plan.mean_turns,
        "first_turn_share": float((c.turn[of_turns] == 1).mean()),
        **_recounted(c, of_turns),
        "by_turn": [
            _group(c, of_turns, statuses, durations, name, first, until)
            for name, first, until in [*_groups(last), *groups]
        ],
    }


def _groups(last: int) -> Iterator[tuple[str, int, int]]:
    """(name, first turn, last turn): `1`, `2`, `3`, `4`, `5-8`, `9-16`, …"""
    first = 1
    while first <= last:
        until = first if first <= _SINGLE else 2 * (first - 1)
        yield (str(first) if first == until else f"{first}-{until}"), first, until
        first = until + 1


def _group(
    c: Columns,
    of_turns: Flags,
    statuses: Sequence[str],
    durations: Mapping[str, Floats],
    name: str,
    first: int,
    until: int,
) -> dict[str, Any]:
    chosen = of_turns & (c.turn >= first) & (c.turn <= until)
    samples = {
        latency: Samples(durations[latency][chosen & ~np.isnan(durations[latency])]) for latency in TURN_LATENCIES
    }
    ends = Counter(statuses[i] for i in np.flatnonzero(chosen).tolist())
    counted = chosen & c.ok & (c.input_tokens != MISSING)
    produced = chosen & c.ok & (c.output_tokens != MISSING)
    return {
        "name": name,
        "first_turn": first,
        "last_turn": until,
        "requests": {OK: ends.pop(OK, 0), **dict(sorted(ends.items()))},
        **latency_fields(samples, TURN_LATENCIES),
        "weak_percentiles": weak_fields(samples, TURN_LATENCIES),
        "mean_input_tokens": float(c.input_tokens[counted].mean()) if counted.any() else None,
        "mean_output_tokens": float(c.output_tokens[produced].mean()) if produced.any() else None,
        "intended_prefix_share": prefix_share(c, counted),
    }


def prefix_share(c: Columns, counted: Flags) -> float | None:
    """Share of the prompt tokens that the server was given before, of the requests of `counted` that say so."""
    said = counted & (c.prefix_tokens != MISSING)
    if not said.any():
        return None
    return float(np.minimum(c.prefix_tokens[said], c.input_tokens[said]).sum() / c.input_tokens[said].sum())


def _recounted(c: Columns, of_turns: Flags) -> dict[str, Any]:
    """How the server's own answers were tokenised when they came back to it as part of a prompt.

    prompt = turn before + its answer + what the turn adds, where the answer's text gives the tokens again that it was
    made of. It need not: a model may spell a word otherwise than its tokenizer does, and special tokens have no text.
    """
    known = of_turns & c.ok & (c.input_tokens != MISSING) & (c.prefix_tokens != MISSING)
    carried = known & (c.turn_input_tokens != MISSING) & (c.input_tokens_requested == MISSING)
    difference = (c.input_tokens - c.prefix_tokens - c.turn_input_tokens)[carried]
    return {
        "carried_answers": int(carried.sum()),
        "carried_answers_recounted": int((difference != 0).sum()) if carried.any() else None,
        "mean_recount_tokens": float(difference.mean()) if carried.any() else None,
    }


def turns_of_the_start(level: Mapping[str, Any]) -> str | None:
    """A sentence where the window has far more first turns than it would have in the long run, one a conversation."""
    turns = level["turns"]
    if turns is None or turns["mean_turns"] <= 1:
        return None
    begun = sum(level["requests"].values())
    first, expected = turns["first_turn_share"] * begun, begun / turns["mean_turns"]
    if first <= max(MOST_FIRST_TURNS * expected, expected + SIGMAS * math.sqrt(expected)):
        return None
    broken = f"; {turns['broken_conversations']} broke off" if turns["broken_conversations"] else ""
    return (
        f"{turns['first_turn_share'] * 100:.0f} % of the requests were first turns, and of conversations of "
        f"{turns['mean_turns']:.3g} turns on average {100 / turns['mean_turns']:.0f} % are{broken}."
    )
