"""Takes a judged run and a demand, gives the plan: replicas, load, cost, sensitivity, settings to deploy; pure.

A plan never rests on an invalid level, and says where what it rests on is only a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.comparison.conditions import conditions_of, differences
from loadgen.errors import UsageError
from loadgen.measured_run import MeasuredRun
from loadgen.planning.capacity import Capacity, capacities
from loadgen.planning.demand import Demand, per_million_tokens
from loadgen.planning.deployment import deployment, gpus_of, settings_of
from loadgen.planning.replica_count import count_text
from loadgen.planning.sensitivity import sensitivity
from loadgen.stats.answers import ALL_FAILED, NONE_VALID
from loadgen.stats.asked import asked_of, is_open
from loadgen.stats.digits import digits
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.server_rules import told_beside
from loadgen.stats.settings import swept_settings

PLAN_VERSION = 1
NO_LEVEL_KEEPS_THE_LIMITS = 99


def make_plan(
    run: MeasuredRun,
    demand: Demand,
    *,
    gpu_cost_per_hour: float | None = None,
    gpus_per_replica: int | None = None,
    other_lengths: Sequence[MeasuredRun] = (),
) -> dict[str, Any]:
    """The plan as JSON-able values; `exit_code` is 0, or says why there is none (1 all failed, 3 no valid level, 99 no
    valid level keeps the limits), with `replicas` None and `text` in words.

    `gpus_per_replica` None takes what the measured settings say, else 1. Raises UsageError for a run without limits.
    """
    if not run.scenario.slo.objectives():
        raise UsageError(
            f"The run in {run.path} has no limits, so nothing says how much load is too much.",
            hint="give them, such as --slo 'ttft_p95<500ms,tpot_p95<50ms'",
        )
    found = capacities(run.levels)
    head = {
        "plan_version": PLAN_VERSION,
        "run": str(run.path),
        "model": run.target.get("model"),
        "demand": {
            "target_rps": demand.target_rps,
            "peak_factor": demand.peak_factor,
            "peak_rps": demand.peak_rps,
            "headroom": demand.headroom,
        },
    }
    options = [_Option(run, demand, one, gpus_per_replica) for one in found if one.level is not None and one.rps > 0]
    if not options:
        exit_code, text = _no_plan(run, found)
        return {**head, "replicas": None, "text": text, "exit_code": exit_code}
    alike, unlike = _alike(run, other_lengths)
    best = _best(options, run.answers.get("recommended"))
    return {
        **head,
        **best.replicas(),
        "text": best.text(),
        "basis": best.basis(),
        "cost": None if gpu_cost_per_hour is None else best.cost(gpu_cost_per_hour),
        "sensitivity": sensitivity(best.capacity, demand, alike),
        "alternatives": [option.summary(gpu_cost_per_hour) for option in options] if len(found) > 1 else [],
        "unanswered": [one.text for one in found if one.level is None or one.rps <= 0],
        "deploy": best.deployment(),
        "notes": [*best.notes(), *unlike],
        "exit_code": 0,
    }


def _alike(run: MeasuredRun, others: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], list[str]]:
    """(runs that differ in lengths alone, why each of the others does not count)."""
    swept = swept_settings(run.levels)
    alike, unlike = [], []
    for other in others:
        found, _ = differences(conditions_of(run, swept), conditions_of(other, swept), ["lengths"])
        why = [one.text() for one in found if not one.allowed]
        if why:
            unlike.append(f"{other.path} does not say what other lengths do: {'; '.join(why)}")
        else:
            alike.append(other)
    return alike, unlike


def _best(options: Sequence[_Option], recommended: Mapping[str, Any] | None) -> _Option:
    """The setting that serves most for each GPU; where all take as many, the one that the run recommends."""
    if recommended is not None and len({option.gpus for option in options}) == 1:
        for option in options:
            if option.level["level"] == recommended["level"]:
                return option
    return max(options, key=lambda option: option.capacity.rps / option.gpus)


def _no_plan(run: MeasuredRun, found: Sequence[Capacity]) -> tuple[int, str]:
    if run.verdict["exit_code"] == ALL_FAILED:
        return ALL_FAILED, "There is no plan: no request of the run succeeded."
    if not run.verdict["valid_levels"]:
        rules = sorted({reason["rule"] for level in run.levels for reason in level["reasons"]})
        return NONE_VALID, f"There is no plan: no level of the run is valid ({', '.join(rules)})."
    why = " ".join(one.text for one in found)
    if any(level["valid"] and _misses(level) for level in run.levels):
        return NO_LEVEL_KEEPS_THE_LIMITS, f"There is no plan, whatever the number of replicas. {why}"
    return NONE_VALID, f"There is no plan, since too little was measured to say whether a limit holds. {why}"


def _misses(level: Mapping[str, Any]) -> bool:
    return is_saturated(level) or any(one["holds"] is False for one in level["slo"].values())


class _Option:
    """One server setting of the run, planned for."""

    def __init__(self, run: MeasuredRun, demand: Demand, capacity: Capacity, gpus: int | None) -> None:
        assert capacity.level is not None
        self.run = run
        self.demand = demand
        self.capacity = capacity
        self.level = capacity.level
        effective = self.level.get("effective") or run.target.get("effective")
        asked = run.server_settings(capacity.server)
        self.flags = settings_of(run.scenario.target.server, asked, effective)
        told = gpus_of({**(effective or {}), **asked})
        self.gpus = gpus or told or 1
        self.gpus_source = "given" if gpus else "the measured settings" if told else "assumed"
        self.count = demand.replicas(capacity.rps)

    def _count_at(self, rps: float | None) -> int | None:
        return self.demand.replicas(rps) if rps else None

    def counts(self) -> list[int] | None:
        """[fewest, most] replicas over the 95 % interval of the capacity's requests/s; None where it has none above 0."""
        interval = self.capacity.interval("served_request_rate")
        if interval is None or interval[0] <= 0:
            return None
        return [self.demand.replicas(interval[1]), self.demand.replicas(interval[0])]

    def replicas(self) -> dict[str, Any]:
        above = self.capacity.above
        least = None if above is None else self._count_at(max(self.capacity.rps, self.capacity.most_rps, _most(above)))
        return {
            "replicas": self.count,
            "replicas_interval": self.counts(),
            "replicas_at_missed_level": least,
            "upper_bound": not self.capacity.resolved,
            "replicas_with_spare": self.count + 1,
            "gpus_per_replica": self.gpus,
            "gpus_per_replica_from": self.gpus_source,
            "gpus": (self.count + 1) * self.gpus,
            "load_at_peak": {
                "one_lost": self.demand.load(self.count, self.capacity.rps),
                "all_up": self.demand.load(self.count + 1, self.capacity.rps),
            },
        }

    def text(self) -> str:
        d = self.demand
        shown = count_text(self.count, self.counts(), upper_bound=not self.capacity.resolved)
        return (
            f"{shown[0].upper()}{shown[1:]}, {self.count + 1} with one to spare, for {digits(d.peak_rps)} requests/s at the peak: each served "
            f"{digits(self.capacity.rps)} requests/s within the limits at {asked_of(self.level)}, of which "
            f"{1 - d.headroom:.0%} are planned with."
        )

    def basis(self) -> dict[str, Any]:
        level = self.level
        fields = ("served_request_rate", "output_throughput", "input_throughput")
        return {
            **{name: level[name] for name in ("level", "concurrency", "request_rate", "server", *fields)},
            "intervals": {name: list(found) for name in fields if (found := self.capacity.interval(name)) is not None},
            "mean_input_tokens": level["mean_input_tokens"],
            "mean_output_tokens": level["mean_output_tokens"],
            "slo": level["slo"],
            "setting": self.capacity.setting,
            "resolved": self.capacity.resolved,
            "text": self.capacity.text,
            "limit": (self.capacity.above or level).get("limit"),
            "unresolved": self.capacity.unresolved(),
            "warnings": [warning["rule"] for warning in level["warnings"]],
        }

    def cost(self, gpu_cost_per_hour: float) -> dict[str, Any]:
        replica = gpu_cost_per_hour * self.gpus
        level, output = self.level, self.capacity.output_tps
        total = None if level["input_throughput"] is None else output + level["input_throughput"]
        interval = self.capacity.interval("output_throughput")
        fleet = replica * (self.count + 1)
        asked_output = _product(self.demand.target_rps, level["mean_output_tokens"])
        asked_input = _product(self.demand.target_rps, level["mean_input_tokens"])
        asked_total = None if asked_input is None or asked_output is None else asked_output + asked_input
        return {
            "gpu_cost_per_hour": gpu_cost_per_hour,
            "replica_cost_per_hour": replica,
            "fleet_cost_per_hour": fleet,
            "at_capacity": {
                "per_million_output_tokens": per_million_tokens(replica, output),
                "per_million_output_tokens_interval": None
                if interval is None
                else [per_million_tokens(replica, interval[1]), per_million_tokens(replica, interval[0])],
                "per_million_total_tokens": per_million_tokens(replica, total),
            },
            "as_deployed": {
                "per_million_output_tokens": per_million_tokens(fleet, asked_output),
                "per_million_total_tokens": per_million_tokens(fleet, asked_total),
            },
        }

    def summary(self, gpu_cost_per_hour: float | None) -> dict[str, Any]:
        cost = None if gpu_cost_per_hour is None else self.cost(gpu_cost_per_hour)
        return {
            "server": self.capacity.server,
            "setting": self.capacity.setting,
            "served_request_rate": self.capacity.rps,
            "output_throughput": self.capacity.output_tps,
            "replicas": self.count,
            "replicas_interval": self.counts(),
            "gpus": (self.count + 1) * self.gpus,
            "upper_bound": not self.capacity.resolved,
            "per_million_output_tokens": None if cost is None else cost["at_capacity"]["per_million_output_tokens"],
        }

    def deployment(self) -> dict[str, Any] | None:
        if not self.flags:
            return None
        simulated = self._simulated()
        made = deployment(None if simulated else self._model(), self.flags)
        return {**made, "simulated": simulated}

    def _simulated(self) -> bool:
        """Whether the run started the simulator, or its target said that it is one."""
        told = self.level.get("effective") or self.run.target.get("effective") or {}
        version = str(told.get("version") or self.run.target.get("server_version") or "")
        return self.run.scenario.target.server == "sim" or version.endswith("+simulator")

    def _untold(self) -> list[str]:
        """The setting that limits, where the deploy line cannot have it because the server did not tell it."""
        limit = (self.capacity.above or self.level).get("limit") or {}
        if limit.get("kind") != "scheduler" or self.flags.get("max_num_seqs") is not None:
            return []
        seen = (limit.get("evidence") or {}).get("max_running")
        ran = "" if seen is None else f"; never more than {seen:g} requests ran, which is probably its value"
        return [f"the deploy line lacks max_num_seqs, which limits here, since the server did not tell it{ran}"]

    def _model(self) -> str | None:
        """What the server loads, where it told: the name that it answers to may be another."""
        told = (self.level.get("effective") or {}).get("model") or self.run.target.get("model")
        return None if told is None else str(told)

    def notes(self) -> list[str]:
        unresolved = self.capacity.unresolved()
        found = [] if unresolved is None else [unresolved]
        confirmed = [
            one for one in self.run.answers.get("confirmation") or () if one["closed"]["level"] == self.level["level"]
        ]
        if confirmed:
            found += [one["text"].rstrip(".") for one in confirmed]
        elif not is_open(self.level):
            found.append(
                "the capacity was measured in a closed loop, where requests never come in bursts; confirm it with an open "
                f"loop at the equal rate: --request-rate {self.capacity.rps:.4g}"
            )
        if self.level["warnings"]:
            doubts = f"the level is in doubt: {', '.join(w['rule'] for w in self.level['warnings'])}"
            found.append(f"{doubts}.{told_beside(self.level)}".rstrip("."))
        found += self._untold()
        if self.gpus_source == "assumed":
            found.append("one GPU for each replica is assumed; give --gpus-per-replica where it is another number")
        if self.run.cut_off:
            found.append("the run was cut off: not every planned level was measured")
        return found


def _most(level: Mapping[str, Any]) -> float:
    """The upper end of a level's requests/s."""
    low_high = (level.get("intervals") or {}).get("served_request_rate") or (None, None)
    return float(low_high[1] or level["served_request_rate"] or 0)


def _product(a: float, b: float | None) -> float | None:
    return None if b is None else a * b
