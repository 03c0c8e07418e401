"""Takes level objects, says of each what kept the server from doing more, with the evidence in words and numbers; pure.

What waits, and for what, the server tells itself. That more load brings little more shows only against a level below, so
levels of one server setting are looked at together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.stats.asked import asked_of
from loadgen.stats.digits import digits
from loadgen.stats.prefill import IMPLAUSIBLE_SHARE, prefill_cost

Level = Mapping[str, Any]

KINDS = ("scheduler", "kv_cache", "compute", "prefill", "client", "gateway", "none", "unknown")
OF_THE_CLIENT = frozenset({"client_late", "client_cpu", "sends_late", "worker_stalled"})
"""Rules that say that the generator did not keep up: what came then is its limit, not the server's."""
SOME_WAIT = 0.5
"""Requests that wait on average, from which on something holds them back; a request that is let in with the next step
is seen waiting now and then."""
AT_CAP = 0.8
OFTEN_AT_CAP = 0.3
"""Of the cap that must run on average, or share of the scrapes that must have seen all of it run: a step that ended some
requests is seen without them until the next one is over, which takes long where prompts are in it."""
KV_FULL = 0.9
"""A prompt waits when its blocks do not fit into what is left, so the cache is never quite full."""
MANY_PREEMPTIONS = 0.01
"""Of the requests: work that is done twice, whatever else may limit."""
APART = 1.1
"""A level below is one with less than 1/1.1 of the requests in flight; a time that grew by less is flat."""
LITTLE_GAINED = 0.5
"""At its limit is a level of whose added load, against the level below, less than this share became throughput."""
MOSTLY_PREFILL = 0.5
"""Of the time, from which on prompts are what takes it."""
OUTSIDE_MS = 20.0
OUTSIDE_FACTOR = 2.0
FEWER_AT_SERVER = 0.9


def with_limits(levels: Sequence[Level]) -> list[dict[str, Any]]:
    """The levels, each with its `limit`; in their order, and of any settings."""
    return [{**level, "limit": limit_of(level, levels)} for level in levels]


def limit_of(level: Level, levels: Sequence[Level]) -> dict[str, Any]:
    """{kind, text, evidence} of one level. `levels` are those of the run, itself among them or not."""
    beside = [one for one in levels if one["level"] != level["level"] and _alike(one, level) and _can_be_compared(one)]
    below = [one for one in beside if one["achieved_concurrency"] * APART < level["achieved_concurrency"]]
    above = [one for one in beside if one["achieved_concurrency"] > level["achieved_concurrency"] * APART]
    lower = max(below, key=lambda one: one["achieved_concurrency"], default=None)
    lowest = min(below, key=lambda one: one["achieved_concurrency"], default=None)
    higher = min(above, key=lambda one: one["achieved_concurrency"], default=None)
    evidence = {**_evidence(level, lower), "prefill_share": _prefill_share(level, lowest)}
    kind, why = _judged(level, evidence, lower, higher)
    return {"kind": kind, "text": why, "evidence": evidence}


def _alike(one: Level, other: Level) -> bool:
    return bool(one["server"] == other["server"] and one["run"] == other["run"])


def _can_be_compared(level: Level) -> bool:
    return bool(level["valid"] and level["achieved_concurrency"] > 0 and level["output_throughput"] > 0)


def _evidence(level: Level, lower: Level | None) -> dict[str, Any]:
    server = level["server_metrics"] or {}
    found = server.get("reconciliation") or {}
    ttft, in_flight = found.get("ttft", {}), found.get("in_flight", {})
    return {
        **{
            name: server.get(name)
            for name in (
                "mean_running",
                "max_running",
                "at_max_running_share",
                "mean_waiting",
                "max_kv_usage",
                "preemptions",
            )
        },
        "running_cap": _cap(level, server),
        "server_ttft_ms": ttft.get("server_ms"),
        "client_ttft_ms": ttft.get("client_ms"),
        "server_in_flight": in_flight.get("server"),
        "client_in_flight": in_flight.get("client"),
        "compared_with": None if lower is None else lower["level"],
        "load_ratio": _ratio(level, lower, "achieved_concurrency"),
        "throughput_ratio": _ratio(level, lower, "output_throughput"),
        "ttft_ratio": _ratio(level, lower, "p50_ttft_ms"),
        "tpot_ratio": _ratio(level, lower, "p50_tpot_ms"),
        "ttft_ms_per_input_token": level["ttft_ms_per_input_token"],
    }


def _cap(level: Level, server: Level) -> int | None:
    """Requests that may run at once: of each engine `max_num_seqs`."""
    most = _setting(level, "max_num_seqs")
    return None if most is None else most * (server.get("engines") or 1)


def _setting(level: Level, name: str) -> int | None:
    """Of the server: as it runs, else as it was asked for."""
    settings = {**level["server"], **{k: v for k, v in (level.get("effective") or {}).items() if v is not None}}
    try:
        return int(settings[name])
    except (KeyError, TypeError, ValueError):
        return None


def _ratio(level: Level, lower: Level | None, field: str) -> float | None:
    if lower is None or not lower[field] or level[field] is None:
        return None
    return float(level[field] / lower[field])


def _prefill_share(level: Level, lowest: Level | None) -> float | None:
    """Share of an engine's time that goes to prompts: requests a second times what a prompt takes on the idle server.

    At most 1. None unless the lowest level was light: in a TTFT that holds others' prompts and their decoding the prompt's
    own time does not show. A prompt takes what further tokens add to TTFT where lengths differ, else what TTFT is longer
    than decoding.
    """
    alone_ms = None if lowest is None else prefill_cost([lowest]).ms
    if lowest is None or alone_ms is None:
        return None
    slope_ms, tokens = lowest["ttft_ms_per_input_token"], level["mean_input_tokens"]
    prefill_ms = alone_ms if slope_ms is None or tokens is None else slope_ms * tokens
    engines = (level["server_metrics"] or {}).get("engines") or 1
    share = float(prefill_ms / 1e3 * level["served_request_rate"] / engines)
    return min(share, 1.0) if 0 < share <= IMPLAUSIBLE_SHARE else None


def _judged(level: Level, seen: Level, lower: Level | None, higher: Level | None) -> tuple[str, str]:
    late = [reason for reason in level["reasons"] if reason["rule"] in OF_THE_CLIENT]
    if late:
        return "client", f"the generator did not keep up: {late[0]['evidence'].rstrip('.')}"
    if level["server_metrics"] is None:
        return "unknown", f"{level['no_server_metrics']}, so what holds it back is not known"
    if level["server_metrics"]["restarts"]:
        return "unknown", "the server began anew in the level"
    if seen["mean_running"] is None:
        return "unknown", "the server does not tell what runs and waits"
    return _waiting(level, seen) or _outside(seen) or _scaling(level, seen, lower, higher)


def _waiting(level: Level, seen: Level) -> tuple[str, str] | None:
    """The limit of a server in which requests wait, or are thrown out of the cache; None where none of that happens."""
    waits = (seen["mean_waiting"] or 0.0) >= SOME_WAIT
    preempted = seen["preemptions"] or 0
    full = (seen["max_kv_usage"] or 0.0) >= KV_FULL
    ended = sum(level["requests"].values())
    if full and preempted > MANY_PREEMPTIONS * ended:
        return "kv_cache", f"{_kv(seen)}, and {preempted} requests were preempted to make room; {_batch(seen)}"
    if waits and _at_cap(seen):
        most = seen["max_running"]
        guess = "" if seen["running_cap"] else f"; never more than {most} ran, which is probably max_num_seqs"
        return "scheduler", f"{_batch(seen)}{guess}; {_kv(seen)}"
    if full and (waits or preempted):
        lost = f", and {preempted} requests were preempted" if preempted else ""
        return "kv_cache", f"{_kv(seen)}{lost}; {_batch(seen)}"
    if waits and not _prompts_fill_a_step(level, seen):
        return "scheduler", (
            f"{_batch(seen)}; {_kv(seen)}, and prompts of {digits(level['mean_input_tokens'])} tokens do not fill a step "
            f"({_setting(level, 'max_num_batched_tokens')} tokens), so it is a place that they wait for"
        )
    if waits:
        return "prefill", (
            f"{_batch(seen)}, although batch and cache have room ({_kv(seen)}): a step's tokens "
            f"(max_num_batched_tokens) go to the prompts{_slope(seen)}"
        )
    return None


def _at_cap(seen: Level) -> bool:
    cap = seen["running_cap"] or seen["max_running"]
    if not cap:
        return False
    # Where a request ends in every step, no scrape ever sees all of the cap run.
    often = seen["max_running"] >= cap and seen["at_max_running_share"] >= OFTEN_AT_CAP
    return bool(seen["mean_running"] >= AT_CAP * cap or often)


def _prompts_fill_a_step(level: Level, seen: Level) -> bool:
    """Whether the tokens of a step may be what prompts wait for: not where all that may run at once fit into one."""
    tokens, most, cap = level["mean_input_tokens"], _setting(level, "max_num_batched_tokens"), seen["running_cap"]
    return None in (tokens, most, cap) or cap * tokens > most


def _outside(seen: Level) -> tuple[str, str] | None:
    """The limit before the server's engine; None where the time is spent in it."""
    server_ms, client_ms = seen["server_ttft_ms"], seen["client_ttft_ms"]
    there, ours = seen["server_in_flight"], seen["client_in_flight"]
    if None in (server_ms, client_ms, there, ours):
        return None
    if client_ms < OUTSIDE_FACTOR * server_ms or client_ms - server_ms < OUTSIDE_MS or there > FEWER_AT_SERVER * ours:
        return None
    return "gateway", (
        f"the first token takes {digits(client_ms)} ms on average, of which the server knows {digits(server_ms)} ms, and of "
        f"{digits(ours, 3)} requests in flight {digits(there, 3)} are in the server: the rest is with the network, a gateway, or the "
        "server's front end"
    )


def _scaling(level: Level, seen: Level, lower: Level | None, higher: Level | None) -> tuple[str, str]:
    """The limit of a server in which nothing waits: it shows in what more load brings."""
    if lower is None:
        return _lowest(level, seen, higher)
    gained = _gained(level, lower)
    against = (
        f"{seen['load_ratio']:.3g} times the load of {asked_of(lower)} brought {seen['throughput_ratio']:.3g} times the "
        "throughput"
    )
    if gained >= LITTLE_GAINED:
        return "none", f"not at its limit: {against}; {_batch(seen)}"
    grew = f"{_grew(level, lower, 'TTFT', 'p50_ttft_ms')}, {_grew(level, lower, 'TPOT', 'p50_tpot_ms')}"
    slower_decode = (seen["tpot_ratio"] or 0.0) >= APART
    if (seen["prefill_share"] or 0.0) >= MOSTLY_PREFILL:
        return "prefill", (
            f"{against}, and prompts alone take {seen['prefill_share']:.0%} of the server's time: {grew}{_slope(seen)}; "
            f"{_batch(seen)}"
        )
    if (seen["ttft_ratio"] or 0.0) >= APART and not slower_decode:
        return "prefill", f"{against}: {grew}, so decoding is not what takes the time{_slope(seen)}; {_batch(seen)}"
    if slower_decode:
        return "compute", f"{against}: {grew}; {_batch(seen)}"
    return "unknown", f"{against}, but no time grew with it: {grew}; {_batch(seen)}"


def _lowest(level: Level, seen: Level, higher: Level | None) -> tuple[str, str]:
    if higher is None:
        return "unknown", f"{_batch(seen)}; whether more load would bring more shows only against another level"
    brought = higher["output_throughput"] / level["output_throughput"]
    if brought >= APART:
        return (
            "none",
            f"not at its limit: {asked_of(higher)} brought {brought:.3g} times the throughput; {_batch(seen)}",
        )
    return "unknown", f"{_batch(seen)}; {asked_of(higher)} brought no more, and there is no level below to compare with"


def _gained(level: Level, lower: Level) -> float:
    """Share of the added load that became throughput: 1 where it rises in proportion, 0 where it stays."""
    more_load = level["achieved_concurrency"] / lower["achieved_concurrency"] - 1
    more_done = level["output_throughput"] / lower["output_throughput"] - 1
    return float(more_done / more_load)


def _grew(level: Level, lower: Level, name: str, field: str) -> str:
    if level[field] is None or lower[field] is None:
        return f"{name} is not measured"
    return f"P50 {name} went from {digits(lower[field])} to {digits(level[field])} ms"


def _batch(seen: Level) -> str:
    of_cap = f" of the {seen['running_cap']} that may (max_num_seqs)" if seen["running_cap"] else ""
    waiting = "" if seen["mean_waiting"] is None else f", {digits(seen['mean_waiting'], 3)} wait"
    return f"on average {digits(seen['mean_running'], 3)} requests run{of_cap}{waiting}"


def _kv(seen: Level) -> str:
    usage = seen["max_kv_usage"]
    return "how full the KV cache is, is not told" if usage is None else f"the KV cache is at most {usage:.0%} full"


def _slope(seen: Level) -> str:
    slope = seen["ttft_ms_per_input_token"]
    return "" if slope is None else f"; TTFT grows by {slope:.3g} ms an input token"
