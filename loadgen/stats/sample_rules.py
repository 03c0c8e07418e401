"""Takes a level object, gives evidence that its samples do not carry its figures: too few, cut off, failed, uncounted, or of
another load than the one asked for; pure. The rules are in `validity`."""

from __future__ import annotations

import math

from loadgen.stats import open_rules
from loadgen.stats.client_rules import Level, percent
from loadgen.stats.digits import digits
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.soak_rules import TOO_SHORT, is_shorter_soak

FEWEST_OK = 10
"""Below it not even the median has five samples beyond it."""
FEWEST_OK_FOR_P95 = 20
"""Below it the nearest-rank P95 is simply the largest sample."""
MOST_LOAD = 1.05
LEAST_LOAD = 0.9
"""Share of the asked concurrency that must have been in flight."""
MOST_CUT_OFF = 0.05
"""From this share on the true P95 lies among the requests that were cut off."""
FEW_CUT_OFF = 0.01
MOST_WITHOUT_N = 0.01
MOST_ERRORS = 0.01
MOST_AFTER_CHANGE = 0.05
"""Below this share P95 is not theirs."""


def _ok(level: Level) -> int:
    return int(level["requests"]["ok"])


def _begun(level: Level) -> int:
    return int(sum(level["requests"].values()))


_CUT_OFF = "The level was interrupted before its requests had ended."


def interrupted(level: Level) -> str | None:
    if not level["interrupted"] or is_shorter_soak(level):
        return None
    if level["interrupted_by"]:
        return f"The level was ended early. {level['interrupted_by']}"
    return _CUT_OFF if level["soak"] is None else f"{_CUT_OFF} {TOO_SHORT}"


def worker_lost(level: Level) -> str | None:
    lost = level["lost_workers"]
    return f"{lost} of {level['workers']} workers went missing, their requests with them." if lost else None


def worker_late(level: Level) -> str | None:
    late = level["late_workers"]
    return f"{late} workers tried to join during the level, and users may have moved to them." if late else None


def records_missing(level: Level) -> str | None:
    missing = level["missing_records"]
    return f"{missing} records that workers had written are damaged or gone." if missing else None


def load_exceeded(level: Level) -> str | None:
    asked, achieved, peak = level["concurrency"], level["achieved_concurrency"], level["peak_concurrency"]
    if asked is None or achieved is None or achieved <= MOST_LOAD * asked:
        return None
    return f"{digits(achieved, 3)} requests in flight on average and {peak} at most, {asked} asked for: others were still open."


def none_succeeded(level: Level) -> str | None:
    if _ok(level):
        return None
    if not _begun(level):
        return "No request was sent in the window."
    worst = _most_often(level)
    return f"None of {_begun(level)} requests succeeded{f': {worst}' if worst else ''}."


def _most_often(level: Level) -> str | None:
    """The failure that there was most of; None without one."""
    if not level["error_reasons"]:
        return None
    worst = level["error_reasons"][0]
    return f"{worst['count']} × {worst['status']} ({worst['reason']})"


def too_few(level: Level) -> str | None:
    n = _ok(level)
    return f"{n} ok requests; at least {FEWEST_OK} are needed for a median." if 0 < n < FEWEST_OK else None


def not_settled(level: Level) -> str | None:
    reason = level["settle_reason"]
    # Of a level that cannot settle `saturated` tells more.
    return f"{reason[:1].upper()}{reason[1:]}." if level["settled"] is False and not is_saturated(level) else None


def drifting(level: Level) -> str | None:
    steady = level["steady_state"]
    if not steady["drifting"] or is_saturated(level) or open_rules.meant_to_change(level):
        return None
    drift, p = steady["drift_per_window"], steady["p_value"]
    return f"{steady['figure']} changed by {percent(drift)} of its mean over the window (p = {p:.2g})."


def few(level: Level) -> str | None:
    n = _ok(level)
    return f"{n} ok requests: P95 and P99 are the largest sample." if FEWEST_OK <= n < FEWEST_OK_FOR_P95 else None


def load_not_reached(level: Level) -> str | None:
    asked, achieved = level["concurrency"], level["achieved_concurrency"]
    if asked is None:
        return None
    # A user is in flight or thinks: N = X · (R + Z), the interactive response time law. Where tasks decide how long it
    # thinks, nobody knows what should be in flight.
    known = level["think_time_s"] is not None
    thinks = level["think_time_s"] * level["completed_request_rate"] if known else 0.0
    busy = achieved + thinks if known else asked
    # Think times are drawn, and the rate of so few requests is that uncertain: two standard errors of an exponential mean.
    chance = 2 * thinks / math.sqrt(level["completed_request_rate"] * level["window_s"]) if thinks else 0.0
    if busy + chance < LEAST_LOAD * asked:
        thinking = f" and {digits(busy - achieved, 3)} users thinking" if level["think_time_s"] else ""
        return f"{digits(achieved, 3)} requests in flight on average{thinking}, {asked} asked for ({percent(busy / asked)})."
    if level["users_seen"] < asked and level["peak_concurrency"] < asked:
        return (
            f"Only {level['users_seen']} of {asked} users sent requests, at most {level['peak_concurrency']} at once."
        )
    return None


def _without_n(level: Level) -> int:
    return int(level["output_tokens_source"].get("none", 0))


def no_token_counts(level: Level) -> str | None:
    missing = _without_n(level)
    if missing <= MOST_WITHOUT_N * _ok(level):
        return None
    return f"{missing} of {_ok(level)} ok requests have no token count; events are not tokens."


def some_token_counts(level: Level) -> str | None:
    missing = _without_n(level)
    if not missing or no_token_counts(level):
        return None
    return f"{missing} of {_ok(level)} ok requests have no token count and were credited one token an event."


def _cut_off_share(level: Level) -> float:
    cut = level["requests"].get("censored", 0) + level["requests"].get("cancelled", 0)
    return cut / _begun(level) if _begun(level) else 0.0


def cut_off(level: Level) -> str | None:
    share = _cut_off_share(level)
    return (
        f"{percent(share)} of the window's requests were cut off before they ended."
        if share > MOST_CUT_OFF and not is_saturated(level)
        else None
    )


def some_cut_off(level: Level) -> str | None:
    share = _cut_off_share(level)
    if not FEW_CUT_OFF < share <= MOST_CUT_OFF or is_saturated(level):
        return None
    return f"{percent(share)} of the window's requests, probably the slowest, were cut off before they ended."


def errors(level: Level) -> str | None:
    rate = level["error_rate"]
    if rate is None or rate <= MOST_ERRORS or not _ok(level):
        return None
    worst = _most_often(level)
    return f"{percent(rate)} of requests failed{f', most often {worst}' if worst else ''}; latencies are those of the others."


def input_mismatch(level: Level) -> str | None:
    wrong = level["input_tokens_mismatched"]
    return f"{wrong} of {_ok(level)} prompts had another length at the server than was asked for." if wrong else None


def tokenized(level: Level) -> str | None:
    n = level["output_tokens_source"].get("tokenized", 0)
    return f"Output tokens of {n} of {_ok(level)} requests are an estimate: the server sent no usage." if n else None


def load_changed(level: Level) -> str | None:
    after = level["ended_after_change"]
    if not after or after <= MOST_AFTER_CHANGE * _begun(level):
        return None
    return f"{after} of {_begun(level)} requests of the window ended after the load had been changed."


def dataset_repeated(level: Level) -> str | None:
    passes = level["dataset_passes"]
    if passes is None or passes <= 1:
        return None
    return f"The dataset was gone through {passes:.3g} times: a prefix cache knows the prompts that came before."
