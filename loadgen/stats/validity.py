"""Takes a level object, gives the reasons why it must not be trusted, and warnings; pure, all rules in one list.

An *invalid* rule makes the level count for nothing: no answer rests on it. A *suspect* rule leaves it valid and says
what to look at. Each rule says its evidence with numbers and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadgen.stats import audit_rules, client_rules, open_rules, server_rules
from loadgen.stats.client_rules import Level, percent
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.turns import turns_of_the_start

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


@dataclass(frozen=True, slots=True)
class Rule:
    """`evidence` gives a sentence with the numbers when the rule fires, else None."""

    name: str
    severity: Literal["invalid", "suspect"]
    evidence: Callable[[Level], str | None]
    remedy: str


def _ok(level: Level) -> int:
    return int(level["requests"]["ok"])


def _begun(level: Level) -> int:
    return int(sum(level["requests"].values()))


_CUT_OFF = "The level was interrupted before its requests had ended."


def _interrupted(level: Level) -> str | None:
    if not level["interrupted"]:
        return None
    return f"The level was ended early. {level['interrupted_by']}" if level["interrupted_by"] else _CUT_OFF


def _worker_lost(level: Level) -> str | None:
    lost = level["lost_workers"]
    return f"{lost} of {level['workers']} workers went missing, their requests with them." if lost else None


def _worker_late(level: Level) -> str | None:
    late = level["late_workers"]
    return f"{late} workers tried to join during the level, and users may have moved to them." if late else None


def _records_missing(level: Level) -> str | None:
    missing = level["missing_records"]
    return f"{missing} records that workers had written are damaged or gone." if missing else None


def _load_exceeded(level: Level) -> str | None:
    asked, achieved, peak = level["concurrency"], level["achieved_concurrency"], level["peak_concurrency"]
    if asked is None or achieved is None or achieved <= MOST_LOAD * asked:
        return None
    return (
        f"{achieved:.3g} requests in flight on average and {peak} at most, {asked} asked for: others were still open."
    )


def _none_succeeded(level: Level) -> str | None:
    if _ok(level):
        return None
    if not _begun(level):
        return "No request was sent in the window."
    worst = level["error_reasons"][0] if level["error_reasons"] else None
    why = f": {worst['count']} × {worst['status']} ({worst['reason']})" if worst else ""
    return f"None of {_begun(level)} requests succeeded{why}."


def _too_few(level: Level) -> str | None:
    n = _ok(level)
    return f"{n} ok requests; at least {FEWEST_OK} are needed for a median." if 0 < n < FEWEST_OK else None


def _not_settled(level: Level) -> str | None:
    reason = level["settle_reason"]
    # Of a level that cannot settle `saturated` tells more.
    return f"{reason[:1].upper()}{reason[1:]}." if level["settled"] is False and not is_saturated(level) else None


def _drifting(level: Level) -> str | None:
    steady = level["steady_state"]
    if not steady["drifting"] or is_saturated(level) or open_rules.meant_to_change(level):
        return None
    drift, p = steady["drift_per_window"], steady["p_value"]
    return f"{steady['figure']} changed by {percent(drift)} of its mean over the window (p = {p:.2g})."


def _few(level: Level) -> str | None:
    n = _ok(level)
    return f"{n} ok requests: P95 and P99 are the largest sample." if FEWEST_OK <= n < FEWEST_OK_FOR_P95 else None


def _load_not_reached(level: Level) -> str | None:
    asked, achieved = level["concurrency"], level["achieved_concurrency"]
    if asked is None:
        return None
    # A user is in flight or thinks: N = X · (R + Z), the interactive response time law. Where tasks decide how long it
    # thinks, nobody knows what should be in flight.
    known = level["think_time_s"] is not None
    busy = achieved + level["think_time_s"] * level["completed_request_rate"] if known else asked
    if busy < LEAST_LOAD * asked:
        thinking = f" and {busy - achieved:.3g} users thinking" if level["think_time_s"] else ""
        return f"{achieved:.3g} requests in flight on average{thinking}, {asked} asked for ({percent(busy / asked)})."
    if level["users_seen"] < asked and level["peak_concurrency"] < asked:
        return (
            f"Only {level['users_seen']} of {asked} users sent requests, at most {level['peak_concurrency']} at once."
        )
    return None


def _without_n(level: Level) -> int:
    return int(level["output_tokens_source"].get("none", 0))


def _no_token_counts(level: Level) -> str | None:
    missing = _without_n(level)
    if missing <= MOST_WITHOUT_N * _ok(level):
        return None
    return f"{missing} of {_ok(level)} ok requests have no token count; events are not tokens."


def _some_token_counts(level: Level) -> str | None:
    missing = _without_n(level)
    if not missing or _no_token_counts(level):
        return None
    return f"{missing} of {_ok(level)} ok requests have no token count and were credited one token an event."


def _cut_off_share(level: Level) -> float:
    cut = level["requests"].get("censored", 0) + level["requests"].get("cancelled", 0)
    return cut / _begun(level) if _begun(level) else 0.0


def _cut_off(level: Level) -> str | None:
    share = _cut_off_share(level)
    return (
        f"{percent(share)} of the window's requests were cut off before they ended."
        if share > MOST_CUT_OFF and not is_saturated(level)
        else None
    )


def _some_cut_off(level: Level) -> str | None:
    share = _cut_off_share(level)
    if not FEW_CUT_OFF < share <= MOST_CUT_OFF or is_saturated(level):
        return None
    return f"{percent(share)} of the window's requests, probably the slowest, were cut off before they ended."


def _errors(level: Level) -> str | None:
    rate = level["error_rate"]
    if rate is None or rate <= MOST_ERRORS or not _ok(level):
        return None
    return f"{percent(rate)} of requests failed; latencies are those of the others."


def _input_mismatch(level: Level) -> str | None:
    wrong = level["input_tokens_mismatched"]
    return f"{wrong} of {_ok(level)} prompts had another length at the server than was asked for." if wrong else None


def _tokenized(level: Level) -> str | None:
    n = level["output_tokens_source"].get("tokenized", 0)
    return f"Output tokens of {n} of {_ok(level)} requests are an estimate: the server sent no usage." if n else None


def _load_changed(level: Level) -> str | None:
    after = level["ended_after_change"]
    if not after or after <= MOST_AFTER_CHANGE * _begun(level):
        return None
    return f"{after} of {_begun(level)} requests of the window ended after the load had been changed."


def _dataset_repeated(level: Level) -> str | None:
    passes = level["dataset_passes"]
    if passes is None or passes <= 1:
        return None
    return f"The dataset was gone through {passes:.3g} times: a prefix cache knows the prompts that came before."


RULES: tuple[Rule, ...] = (
    Rule("interrupted", "invalid", _interrupted, "Run the level again."),
    Rule(
        "worker_lost",
        "invalid",
        _worker_lost,
        "Read the worker's log (out of memory? killed?), then run the level again.",
    ),
    Rule("worker_late", "invalid", _worker_late, "Start every worker before the run, then run the level again."),
    Rule(
        "worker_stalled",
        "invalid",
        client_rules.worker_stalled,
        "Look for what stopped it (suspended? swapping? a debugger?), then run the level again.",
    ),
    Rule(
        "records_missing",
        "invalid",
        _records_missing,
        "Restore the spools of the run folder from a copy (`loadgen recover --spool`), or run the level again.",
    ),
    Rule(
        "load_exceeded",
        "invalid",
        _load_exceeded,
        "Lengthen the warm-up, so that requests of the level before have ended when the window opens.",
    ),
    Rule(
        "no_request_succeeded",
        "invalid",
        _none_succeeded,
        "Send one request by hand to see what the target answers; check the URL, the model's name and the key.",
    ),
    Rule("too_few_samples", "invalid", _too_few, "Measure longer: raise `duration`, or shorten the outputs."),
    Rule(
        "load_not_reached",
        "invalid",
        _load_not_reached,
        "Lengthen the warm-up, or look for what holds users back: slow connects, failures, a limit on connections.",
    ),
    Rule(
        "rate_not_reached",
        "invalid",
        open_rules.rate_not_reached,
        "Allow more requests in flight, or use more workers; or ask for the rate that was reached.",
    ),
    Rule(
        "server_restarted",
        "invalid",
        server_rules.server_restarted,
        "Read the server's log (out of memory? killed by its supervisor?), then run the level again.",
    ),
    Rule(
        "settings_mismatch",
        "invalid",
        server_rules.settings_mismatch,
        "Read the server's log for why it took other settings; ask for those, or mend what keeps it from the wanted ones.",
    ),
    Rule(
        "other_traffic",
        "invalid",
        server_rules.other_traffic,
        "Keep others away from the server while it is measured, or measure one of its own.",
    ),
    Rule(
        "client_late",
        "invalid",
        client_rules.client_late,
        "Use more workers or more hosts, and stop what else runs on this one.",
    ),
    Rule(
        "sends_late",
        "invalid",
        client_rules.sends_late,
        "Use more workers or more hosts, or a lower rate: latencies from the schedule hold the client's own delay.",
    ),
    Rule("client_cpu", "invalid", client_rules.client_cpu, "Use more workers or more hosts: fewer users a worker."),
    Rule(
        "no_token_counts",
        "invalid",
        _no_token_counts,
        "Make the server send usage (`stream_options.include_usage`), or name a tokenizer.",
    ),
    Rule("cut_off", "invalid", _cut_off, "Give the drain more time, or shorten the outputs."),
    Rule(
        "stamps_disagree",
        "invalid",
        audit_rules.stamps_disagree,
        "Look for a wall clock that is being stepped and for lost packets on the way, then run the level again.",
    ),
    Rule(
        "saturated",
        "suspect",
        open_rules.saturated,
        "The most that the server does is the completed rate; latencies here only say how long the load lasted. Ask for less.",
    ),
    Rule(
        "cap_reached",
        "suspect",
        open_rules.cap_reached,
        "Raise max_in_flight, or read latencies from the schedule, which hold that wait.",
    ),
    Rule(
        "not_settled",
        "suspect",
        _not_settled,
        "Give it more time with max_warmup, or look for what makes the server change: a cache that fills, other traffic.",
    ),
    Rule(
        "drifting",
        "suspect",
        _drifting,
        "Lengthen the warm-up, or look for what changed meanwhile; the figures are a mean over that change.",
    ),
    Rule("few_samples", "suspect", _few, "Measure longer before trusting P95."),
    Rule("some_cut_off", "suspect", _some_cut_off, "Give the drain more time: the tail is longer than it looks."),
    Rule(
        "audit_incomplete",
        "suspect",
        audit_rules.audit_incomplete,
        "Audit a shorter or lighter run; see that nothing between client and target changes addresses or ports.",
    ),
    Rule(
        "load_changed",
        "suspect",
        _load_changed,
        "Make the steps longer than several end-to-end latencies.",
    ),
    Rule("errors", "suspect", _errors, "Look at the error reasons before comparing latencies."),
    Rule(
        "client_somewhat_late",
        "suspect",
        client_rules.client_somewhat_late,
        "Use more workers if throughput is the question.",
    ),
    Rule(
        "client_collected",
        "suspect",
        client_rules.client_collected,
        "Look at the worker's memory: use more workers, and see whether many connections fail. What the longest latencies "
        "hold may be that pause.",
    ),
    Rule(
        "coalesced",
        "suspect",
        client_rules.coalesced,
        "Look for a proxy that buffers, or a server that sends several tokens at once.",
    ),
    Rule(
        "some_other_traffic",
        "suspect",
        server_rules.some_other_traffic,
        "Look for who else uses the server: health checks that generate, another client, a run that did not end.",
    ),
    Rule(
        "prefix_cache_did_the_work",
        "suspect",
        server_rules.prefix_cache_did_the_work,
        "Use another seed, restart the server or switch its prefix cache off; or state the share that production shares.",
    ),
    Rule(
        "tokens_disagree",
        "suspect",
        server_rules.tokens_disagree,
        "See whether a gateway spreads requests over several servers (then the metrics are of one of them), or changes them.",
    ),
    Rule(
        "short_outputs",
        "suspect",
        server_rules.short_outputs,
        "Force the length (`ignore_eos`) to compare servers, or ask for as many tokens as answers really have.",
    ),
    Rule(
        "clock_drift",
        "suspect",
        server_rules.clock_drift,
        "See whether the worker's host was suspended, and how far it is; measure longer, or use workers nearer by.",
    ),
    Rule("some_token_counts", "suspect", _some_token_counts, "Make the server send usage for every request."),
    Rule("estimated_tokens", "suspect", _tokenized, "Make the server send usage (`stream_options.include_usage`)."),
    Rule(
        "dataset_repeated",
        "suspect",
        _dataset_repeated,
        "Give a larger dataset, measure shorter, or switch the server's prefix cache off.",
    ),
    Rule(
        "turns_of_the_start",
        "suspect",
        turns_of_the_start,
        "Lengthen the warm-up to the time that a conversation takes; latencies here are those of the first turns.",
    ),
    Rule(
        "input_length", "suspect", _input_mismatch, "Use the model's own tokenizer and chat template for the prompts."
    ),
    Rule(
        "client_not_watched",
        "suspect",
        client_rules.not_watched,
        "Update the workers: without it nobody knows whether the client kept up.",
    ),
)
"""Every reason to distrust a level, in the order in which they are reported."""


_BESIDE_INTERRUPTED = frozenset({"interrupted", "worker_lost", "worker_late", "worker_stalled", "records_missing"})


def judge(level: Level) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(reasons why the level is invalid, warnings), each {rule, evidence, remedy}."""
    reasons: list[dict[str, str]] = []
    warnings: list[dict[str, str]] = []
    for rule in RULES:
        if evidence := rule.evidence(level):
            found = {"rule": rule.name, "evidence": evidence, "remedy": rule.remedy}
            (reasons if rule.severity == "invalid" else warnings).append(found)
    if level["interrupted"]:
        # The rest follows from that, and its remedies would lead astray.
        return [found for found in reasons if found["rule"] in _BESIDE_INTERRUPTED], []
    return reasons, warnings
