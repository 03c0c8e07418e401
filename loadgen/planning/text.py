"""Takes a plan, gives the lines that people read; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loadgen.planning.replica_count import count_text
from loadgen.stats.digits import digits

Plan = Mapping[str, Any]


def plan_lines(plan: Plan) -> list[str]:
    """The plan in words, a line each."""
    if plan["replicas"] is None:
        return [plan["text"]]
    parts = (_replicas, _cost, _sensitivity, _alternatives, _deploy, _notes)
    return [plan["text"], *(line for part in parts for line in part(plan))]


def _replicas(plan: Plan) -> Iterator[str]:
    demand, basis, load = plan["demand"], plan["basis"], plan["load_at_peak"]
    yield ""
    yield f"demand        {demand['target_rps']:g} requests/s, at the peak {demand['peak_rps']:g}"
    interval = plan["replicas_interval"]
    counts = "" if interval is None else f" ({_range(interval)} over the 95 % interval of the measured capacity)"
    yield f"replicas      {plan['replicas']}{counts}; with one to spare (N+1) {plan['replicas_with_spare']}"
    yield f"GPUs          {plan['gpus']} in all, {plan['gpus_per_replica']} a replica ({plan['gpus_per_replica_from']})"
    yield (
        f"load at peak  {_each(load['all_up'])} with all {plan['replicas_with_spare']} up, "
        f"{_each(load['one_lost'])} with one lost"
    )
    measured = basis["intervals"].get("served_request_rate")
    between = "" if measured is None else f" ({digits(measured[0])} to {digits(measured[1])})"
    at = f", {basis['setting']}" if basis["setting"] else ""
    yield (
        f"rests on      level {basis['level'] + 1}{at}: {digits(basis['served_request_rate'])}{between} requests/s, "
        f"{basis['output_throughput']:,.1f} output tokens/s"
    )
    if basis["limit"] is not None and basis["limit"]["kind"] not in ("none", "unknown"):
        yield f"limited by    {basis['limit']['kind']}: {basis['limit']['text']}"
    if plan["upper_bound"] and plan["replicas_at_missed_level"] not in (None, plan["replicas"]):
        yield f"at least      {plan['replicas_at_missed_level']} replicas, at the most that the lowest level that misses a limit may have served"


def _range(interval: list[int]) -> str:
    return str(interval[0]) if interval[0] == interval[1] else f"{interval[0]} to {interval[1]}"


def _each(load: Mapping[str, float]) -> str:
    return f"{digits(load['requests_per_s'], 3)} requests/s each ({load['utilization']:.0%} of what was measured)"


def _cost(plan: Plan) -> Iterator[str]:
    cost = plan["cost"]
    if cost is None:
        return
    full, deployed = cost["at_capacity"], cost["as_deployed"]
    yield ""
    yield f"cost          {cost['fleet_cost_per_hour']:,.2f} an hour for all, {cost['replica_cost_per_hour']:,.2f} a replica"
    interval = full["per_million_output_tokens_interval"]
    between = "" if interval is None else f" ({_money(interval[0])} to {_money(interval[1])})"
    yield (
        f"at the limit  {_money(full['per_million_output_tokens'])}{between} per million output tokens, "
        f"{_money(full['per_million_total_tokens'])} per million of input and output: one replica, as loaded as the limits allow"
    )
    yield (
        f"as deployed   {_money(deployed['per_million_output_tokens'])} per million output tokens, "
        f"{_money(deployed['per_million_total_tokens'])} per million of input and output: all replicas, at the average rate"
    )


def _money(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _sensitivity(plan: Plan) -> Iterator[str]:
    found = plan["sensitivity"]
    yield ""
    yield "if lengths change    input  output  requests/s  replicas"
    for case in found["cases"]:
        changes = f"{case['input_factor'] - 1:+.0%} / {case['output_factor'] - 1:+.0%}".replace("+0%", "0%")
        row = f"{changes:<18} {_tokens(case['input_tokens']):>7} {_tokens(case['output_tokens']):>7}"
        if case["capacity_rps"] is None:
            yield f"{row}           –         –  not known"
            continue
        told = f"measured in {case['run']}" if case["from"] == "measured" else "modelled"
        yield f"{row} {case['capacity_rps']:>11.4g} {case['replicas']:>9}  {told}"
    if found["model"] is not None:
        yield f"model: {found['model']}."
    if any(case["from"] is None for case in found["cases"]):
        yield f"not known: {found['not_modelled']}, or measure other lengths (--other-lengths)."


def _tokens(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _alternatives(plan: Plan) -> Iterator[str]:
    if plan["alternatives"] or plan["unanswered"]:
        yield ""
        yield "settings compared, by requests/s within the limits for each GPU:"
    for one in plan["alternatives"]:
        counted = count_text(one["replicas"], one["replicas_interval"], upper_bound=one["upper_bound"])
        price = (
            ""
            if one["per_million_output_tokens"] is None
            else f", {_money(one['per_million_output_tokens'])} per million output tokens"
        )
        yield (
            f"  {one['setting']}: {digits(one['served_request_rate'])} requests/s, {counted}, "
            f"{one['gpus']} GPUs with one replica to spare{price}"
        )
    for text in plan["unanswered"]:
        yield f"  {text}"


def _deploy(plan: Plan) -> Iterator[str]:
    made = plan["deploy"]
    yield ""
    if made is None:
        yield "deploy: the server's settings are not known, since the run did not start it; deploy it as it was measured."
        return
    if made["simulated"]:
        yield "deploy (measured on the simulator: the settings are vLLM's, the speed is not):"
    else:
        yield "deploy:"
    yield f"  {made['command']}"
    yield "or as a file for `vllm serve --config FILE`:"
    yield from (f"  {line}" for line in made["yaml"].splitlines())


def _notes(plan: Plan) -> Iterator[str]:
    if plan["notes"]:
        yield ""
    yield from (f"note: {text}." for text in plan["notes"])
