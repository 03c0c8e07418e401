"""Takes a level object, gives evidence that an open loop was not the one asked for, or more than the server does; pure.

The rules are in `validity`.
"""

from __future__ import annotations

from loadgen.stats.client_rules import Level, percent
from loadgen.stats.digits import digits

LEAST_RATE = 0.95
"""Share of the offered requests that must have been sent."""
MOST_HELD = 0.01
"""Share of the arrivals that may have found no place before it is said."""


def is_saturated(level: Level) -> bool:
    """Whether requests piled up through the window."""
    return bool(level["open_loop"] and level["open_loop"]["saturated"])


def meant_to_change(level: Level) -> bool:
    """Whether the load was to be another at another time of the window."""
    return bool(level["open_loop"] and not level["open_loop"]["stationary"])


def rate_not_reached(level: Level) -> str | None:
    open_loop, offered, sent = level["open_loop"], level["offered_request_rate"], level["sent_request_rate"]
    if open_loop is None or not offered or sent >= LEAST_RATE * offered:
        return None
    evidence = (
        f"{digits(sent)} requests/s were sent of the {digits(offered)} that were to be ({percent(sent / offered)})"
    )
    if open_loop["waited"] or open_loop["dropped"]:
        evidence += f": {_held(level)}"
    return f"{evidence}."


def _held(level: Level) -> str:
    open_loop = level["open_loop"]
    fate = (
        f"{open_loop['dropped']} were dropped"
        if open_loop["overflow"] == "drop"
        else (f"{open_loop['waited']} waited, {digits(open_loop['mean_cap_wait_ms'])} ms on average over all")
    )
    return f"of {open_loop['offered']} arrivals {fate}, since at most {open_loop['max_in_flight']} requests may be in flight"


def cap_reached(level: Level) -> str | None:
    open_loop = level["open_loop"]
    if open_loop is None or not open_loop["offered"] or rate_not_reached(level):
        return None
    held = open_loop["dropped"] + open_loop["waited"]
    if held <= MOST_HELD * open_loop["offered"]:
        return None
    return f"{_held(level)[:1].upper()}{_held(level)[1:]}."


def saturated(level: Level) -> str | None:
    if not is_saturated(level):
        return None
    open_loop = level["open_loop"]
    cut = level["requests"].get("censored", 0)
    cut_off = f"; {cut} were still open at the end of the drain" if cut else ""
    return (
        f"Saturated: {digits(level['offered_request_rate'])} requests/s were offered and "
        f"{digits(level['completed_request_rate'])} completed, so those under way rose from "
        f"{open_loop['under_way_at_start']} to {open_loop['under_way_at_end']} in {level['window_s']:.4g} s{cut_off}."
    )
