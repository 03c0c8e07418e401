"""Takes the levels of one server setting, gives what a prompt takes of the server, where one of them was light enough to tell; pure.

A first token comes after the prompt's prefill and one step of decoding, if nothing else was in the way. With others in flight it
also waits for their prompts and their steps, so only a lightly loaded level tells what a prompt takes by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.stats.asked import asked_of
from loadgen.stats.digits import digits

LIGHT = 2.05
"""Requests in flight, on average and for each engine, up to which a level is light: a user, or two that hardly meet."""
IMPLAUSIBLE_SHARE = 1.15
"""Of the server's time: more than all of it, and than noise explains, cannot go to prompts, so it was no prefill."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """What the prefill of a prompt of the mean length takes of one engine."""

    ms: float | None
    """None where it is not known."""
    why_unknown: str | None
    """In words, with the remedy; None where it is known."""


def prefill_cost(levels: Sequence[Any]) -> PrefillCost:
    """From the valid levels of one server setting: the lightest one's P50 of TTFT less its P50 of TPOT, the step that gives the token.

    Not known without a level that is light, nor where prompts would then take more than all of an engine's time at the most
    requests/s that any of the levels served.
    """
    told = [level for level in levels if level["valid"] and level["p50_ttft_ms"] is not None and _in_flight(level) > 0]
    if not told:
        return PrefillCost(None, "no valid level of this sweep measured the time to first token")
    lightest = min(told, key=_in_flight)
    if _in_flight(lightest) > LIGHT:
        here = f"at the lightest, {asked_of(lightest)}, {digits(_in_flight(lightest), 3)} requests were in flight"
        return PrefillCost(None, f"no lightly loaded level in this sweep ({here}); add concurrency 1")
    cost_ms = max(0.0, lightest["p50_ttft_ms"] - (lightest["p50_tpot_ms"] or 0.0))
    share = cost_ms / 1e3 * max((level["served_request_rate"] or 0.0) / _engines(level) for level in told)
    if share > IMPLAUSIBLE_SHARE:
        return PrefillCost(
            None,
            f"prompts would take {share:.0%} of the server's time by the first token of {asked_of(lightest)}, which waits "
            "for something else than its prefill",
        )
    return PrefillCost(cost_ms, None)


def _in_flight(level: Any) -> float:
    return float(level["achieved_concurrency"] or 0.0) / _engines(level)


def _engines(level: Any) -> int:
    return int((level.get("server_metrics") or {}).get("engines") or 1)
