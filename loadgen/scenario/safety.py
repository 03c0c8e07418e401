"""The `soak` and `safety` sections: how a long level is watched, and what keeps a run from harming a server in use.

They look at no server: whose address it is, is found out where the run begins.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from loadgen.scenario.load_section import Load
from loadgen.scenario.load_values import PositiveNumber
from loadgen.scenario.quantities import Count, Kind, PositiveDuration, Share
from loadgen.scenario.section import Section
from loadgen.scenario.target import Target

RATE_MARGIN = 1.1
"""A run stops when more than so many times the cap of the request rate are sent."""
_CHANCE = 4.0
"""Standard deviations of the count of arrivals over a period that a cap must leave room for."""


class Soak(Section):
    """A long level that is watched in windows as it goes on, see [soak.md](soak.md)."""

    window: PositiveDuration | None = Field(
        None,
        description="Length of the windows that a long level is cut into, such as 1m; null is no soak.",
    )
    max_drift: Share = Field(
        0.1,
        description="Change of a figure from the soak's beginning to its end that matters, as a share of its median over the "
        "windows.",
    )
    fail_on_drift: bool = Field(
        False, description="End with exit code 99 where a figure of the soak drifted for the worse."
    )


class Safety(Section):
    """Guardrails for a server that others use, see [soak.md](soak.md#a-server-in-use)."""

    own_target: bool = Field(
        False,
        description="You may load the target, though its address is neither this host's nor private; without this such a run "
        "is refused.",
    )
    max_request_rate: Annotated[PositiveNumber, Kind("RATE")] | None = Field(
        None,
        description="Requests a second that must never be exceeded: a scenario that asks for more is refused, and a run in "
        "which more are sent over safety.period stops. Above the rate it leaves room for what chance adds to it.",
    )
    max_in_flight: Count | None = Field(
        None,
        description="Requests in flight that must never be exceeded: a scenario that may have more is refused.",
    )
    stop_on_error_rate: Share | None = Field(
        None, description="Stop the run when more than this share of the requests failed over safety.period."
    )
    stop_on_stall: PositiveDuration | None = Field(
        None,
        description="Stop the run when requests are in flight and for so long no token and no answer has come from the target.",
    )
    stop_on_ttft: PositiveDuration | None = Field(
        None,
        description="Stop the run when the mean TTFT of its own requests over safety.period was longer; those that have waited "
        "longer for a first token count with their wait so far.",
    )
    stop_on_server_ttft: PositiveDuration | None = Field(
        None,
        description="Stop the run when the mean TTFT of all the server's requests, other people's too, was longer over "
        "safety.period, by the server's own metrics.",
    )
    period: PositiveDuration = Field(
        30.0, description="The time that the stops above look back, all but stop_on_stall."
    )

    @property
    def looks_at_reports(self) -> bool:
        """Whether a stop needs to know when the target was last heard, what waits, or what was sent."""
        return (self.stop_on_stall, self.stop_on_ttft, self.max_request_rate) != (None, None, None)


def check_soak(soak: Soak, load: Load) -> None:
    """Raises ValueError where a soak has no length, or windows that do not fit."""
    if soak.window is None:
        return
    if load.duration is None:
        raise ValueError("With soak.window, load.duration says how long the soak lasts; it is not given.")
    if load.duration < soak.window:
        raise ValueError(f"load.duration is {load.duration:g} s, shorter than soak.window, {soak.window:g} s.")


def check_stops(safety: Safety, target: Target, *, streams: bool) -> None:
    """Raises ValueError where a stop could see nothing. `streams`: whether any answer comes as a stream."""
    if safety.stop_on_server_ttft is not None and target.server_metrics == "off":
        raise ValueError(
            "safety.stop_on_server_ttft looks at the server's own metrics, and target.server_metrics is off: give their address, "
            "or safety.stop_on_ttft, which looks at what is measured here."
        )
    if safety.stop_on_ttft is not None and not streams:
        raise ValueError(
            "safety.stop_on_ttft looks at first tokens, and no answer is asked for as a stream: give safety.stop_on_stall, or "
            "limits in timeouts and safety.stop_on_error_rate."
        )


def check_caps(safety: Safety, load: Load, *, turns: float = 1.0) -> None:
    """Raises ValueError where the load may be more than the caps allow. `turns`: requests an arrival stands for on average."""
    cap = safety.max_in_flight
    if cap is not None:
        most = load.search_bounds[2] if load.searches and not load.open_loop else load.most_in_flight()
        if most is None:
            raise ValueError(
                "With safety.max_in_flight, an open loop's own limit, load.max_in_flight, must be given; it is not."
            )
        if load.confirm and load.max_in_flight is None:
            raise ValueError("With safety.max_in_flight, load.confirm cannot be used: its arrivals have no such limit.")
        if most > cap:
            key = "load.max_in_flight" if load.open_loop else "load.concurrency"
            raise ValueError(f"{key} allows {most:g} requests in flight, more than safety.max_in_flight, {cap}.")
    rate = safety.max_request_rate
    if rate is not None and load.open_loop:
        asked = _highest_rate(load)
        if asked is None:
            raise ValueError(
                "With safety.max_request_rate, the rate must be given by load.request_rate or load.stages, and without bursts: "
                "how high another comes is not known beforehand."
            )
        needed = asked + _chance(load, asked, safety.period, turns)
        if needed <= rate:
            return
        least = _rounded_up(needed)
        if asked > rate:
            raise ValueError(
                f"The load asks for {asked:g} requests a second, more than safety.max_request_rate, {rate:g}; with "
                f"safety.period {safety.period:g} s the cap that would do is {least}."
            )
        raise ValueError(
            f"The load asks for {asked:g} requests a second, and over safety.period, {safety.period:g} s, up to {least} a "
            f"second come by chance, so that safety.max_request_rate, {rate:g}, would stop the run: the cap that would do is "
            f"{least}, less with a longer safety.period or load.arrival constant."
        )


def _chance(load: Load, rate: float, period_s: float, turns: float) -> float:
    """By how much a rate that is looked at over a period exceeds its mean by chance, requests a second.

    The count of a renewal process over a long period has the variance mean · CV² of its gaps (Cox 1962, 4.2): 1 for Poisson,
    1 / shape for gamma. Arrivals that bring several requests have as much more.
    """
    if load.pattern == "constant":
        return 0.0
    variation = turns if load.pattern == "poisson" else turns / (load.burstiness or 1.0)
    return _CHANCE * math.sqrt(rate * variation / period_s)


def _rounded_up(rate: float) -> str:
    """To three digits."""
    step = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return f"{math.ceil(rate / step - 1e-9) * step:.10g}"


def _highest_rate(load: Load) -> float | None:
    if load.burst_size is not None:
        return None
    if load.searches:
        return load.search_bounds[2]
    if load.stages is not None:
        return max(max(stage.from_rate, stage.to_rate) for stage in load.stages)
    return max(load.request_rate) if load.request_rate else None
