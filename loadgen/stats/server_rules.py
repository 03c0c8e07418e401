"""Takes a level object, gives evidence that the server was not what the level says, or not ours alone; pure.

The rules are in `validity`; where the server tells nothing, none of these fires.
"""

from __future__ import annotations

from loadgen.stats.client_rules import Level, percent
from loadgen.stats.digits import digits
from server.effective import mismatches

MOST_OTHER_TRAFFIC = 0.05
"""As `load_exceeded`: with more of others' work in the server, the load is not the one that was asked for, and the
throughput is too low by about that share."""
SOME_OTHER_TRAFFIC = 0.01
MOST_TOKENS_APART = 0.01
MOST_HITS_BEYOND = 0.1
"""So much more of the prompts' tokens came from the cache than was intended: so much less prefill, and TTFT with it. A
chat template's beginning, which all prompts share, stays below for prompts of some hundred tokens."""
LEAST_DELIVERED = 0.9
MOST_CLOCK_ERROR = 0.01
"""Of the window: what a clock is off at its ends is missing from, or too much in, its counts."""
MOST_CLOCK_CHANGE_MS = 20.0
MOST_CLOCK_DRIFT = 500e-6
"""Monotonic clocks of two hosts drift apart by 500 ppm at most, which is what NTP slews; beyond that, the error
of both measurements and a few milliseconds, a clock jumped: its host was suspended."""


def server_restarted(level: Level) -> str | None:
    server = level["server_metrics"]
    if server is None or not server["restarts"]:
        return None
    times = "once" if server["restarts"] == 1 else f"{server['restarts']} times"
    return f"The server began anew {times} in the level: its counters fell, or its process is another one."


def _share_of_others(level: Level) -> float:
    server = level["server_metrics"]
    found = None if server is None else server["reconciliation"]
    return 0.0 if found is None else found["other_traffic_share"] or 0.0


def other_traffic(level: Level) -> str | None:
    return _others(level) if not level["shared_target"] and _share_of_others(level) > MOST_OTHER_TRAFFIC else None


def some_other_traffic(level: Level) -> str | None:
    some = SOME_OTHER_TRAFFIC < _share_of_others(level) <= MOST_OTHER_TRAFFIC
    return _others(level) if some and not level["shared_target"] else None


def beside_other_traffic(level: Level) -> str | None:
    """Of a server that is stated to be shared, however much others ask of it."""
    if not level["shared_target"] or _share_of_others(level) <= SOME_OTHER_TRAFFIC:
        return None
    return f"{_others(level)} The target is shared, as stated: every figure is one beside that traffic, not the server's own."


def told_beside(level: Level) -> str:
    """What an answer that rests on a level of a shared target adds: a sentence with a space before it, or nothing."""
    if not level.get("shared_target") or _share_of_others(level) <= SOME_OTHER_TRAFFIC:
        return ""
    return f" That is beside other traffic: about {percent(_share_of_others(level))} of what the server did was for others."


def _others(level: Level) -> str:
    found = level["server_metrics"]["reconciliation"]
    requests, tokens, in_flight = found["first_tokens"], found["output_tokens"], found["in_flight"]
    told = [
        f"{both['server']:,.0f} {what} by its own count and {both['client']:,.0f} by ours"
        for what, both in (("first tokens", requests), ("output tokens", tokens))
        if both["difference"] is not None
    ]
    if in_flight["difference"] is not None:
        told.append(
            f"{digits(in_flight['server'], 3)} requests ran or waited there on average, {digits(in_flight['client'], 3)} ours"
        )
    share = percent(found["other_traffic_share"])
    return f"About {share} of what the server did was for others: {'; '.join(told)}."


def tokens_disagree(level: Level) -> str | None:
    server = level["server_metrics"]
    found = None if server is None else server["reconciliation"]
    if found is None or _share_of_others(level) > SOME_OTHER_TRAFFIC:
        return None
    beyond, tokens = found["tokens_beyond_tolerance"], found["output_tokens"]
    if beyond is None or abs(beyond) <= MOST_TOKENS_APART * max(tokens["server"], tokens["client"]):
        return None
    return (
        f"The server generated {tokens['server']:,.0f} output tokens and {tokens['client']:,.0f} arrived here in the same "
        f"time; {found['tolerance_tokens']:,.0f} could be on their way."
    )


def prefix_cache_did_the_work(level: Level) -> str | None:
    server, intended = level["server_metrics"], level["intended_prefix_share"]
    rate = None if server is None else server["prefix_cache_hit_share"]
    if rate is None or intended is None or rate - intended <= MOST_HITS_BEYOND:
        return None
    return (
        f"{percent(rate)} of the prompts' tokens came from the server's prefix cache, {percent(intended)} were meant to: "
        "prompts were answered that it knew."
    )


def settings_mismatch(level: Level) -> str | None:
    wrong = mismatches(level["server"], level.get("effective") or {})
    return f"The server runs with other settings than the level asked for: {'; '.join(wrong)}." if wrong else None


def short_outputs(level: Level) -> str | None:
    asked, delivered = level["output_tokens_requested"], level["output_tokens_delivered"]
    # What a file asks for is what its users asked for, and how they were answered is the model's affair.
    if level["dataset_passes"] is not None or not asked or delivered >= LEAST_DELIVERED * asked:
        return None
    return (
        f"Answers had {percent(delivered / asked)} of the output tokens that were asked for "
        f"({digits(level['mean_output_tokens'])} on average): they ended by themselves."
    )


def clock_drift(level: Level) -> str | None:
    error_ms, changed_ms = level["client"]["clock_error_max_ms"], level.get("clock_change_ms")
    window_ms = level["window_s"] * 1e3
    allowed_ms = MOST_CLOCK_CHANGE_MS + MOST_CLOCK_DRIFT * window_ms + 2 * (error_ms or 0.0)
    if changed_ms is not None and changed_ms > allowed_ms:
        return f"A worker's clock moved by {changed_ms:.3g} ms against the controller's while the level ran."
    if error_ms is not None and error_ms > MOST_CLOCK_ERROR * window_ms:
        return f"A worker's clock is known to ±{error_ms:.3g} ms only, in a window of {level['window_s']:.3g} s."
    return None
