"""The `soak` and `safety` sections: how a long level is watched, and what keeps a run from harming a server in use.

They look at no server: whose address it is, is found out where the run begins.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from loadgen.scenario.load_section import Load
from loadgen.scenario.load_values import PositiveNumber
from loadgen.scenario.quantities import Count, Kind, PositiveDuration, Share
from loadgen.scenario.section import Section


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
        "which more end over safety.period stops.",
    )
    max_in_flight: Count | None = Field(
        None,
        description="Requests in flight that must never be exceeded: a scenario that may have more is refused.",
    )
    stop_on_error_rate: Share | None = Field(
        None, description="Stop the run when more than this share of the requests failed over safety.period."
    )
    stop_on_server_ttft: PositiveDuration | None = Field(
        None,
        description="Stop the run when the mean TTFT of all the server's requests, other people's too, was longer over "
        "safety.period, by the server's own metrics.",
    )
    period: PositiveDuration = Field(30.0, description="The time that the stops above look back.")


def check_soak(soak: Soak, load: Load) -> None:
    """Raises ValueError where a soak has no length, or windows that do not fit."""
    if soak.window is None:
        return
    if load.duration is None:
        raise ValueError("With soak.window, load.duration says how long the soak lasts; it is not given.")
    if load.duration < soak.window:
        raise ValueError(f"load.duration is {load.duration:g} s, shorter than soak.window, {soak.window:g} s.")


def check_caps(safety: Safety, load: Load) -> None:
    """Raises ValueError where the load may be more than the caps allow."""
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
        if asked > rate:
            raise ValueError(
                f"The load asks for {asked:g} requests a second, more than safety.max_request_rate, {rate:g}."
            )


def _highest_rate(load: Load) -> float | None:
    if load.burst_size is not None:
        return None
    if load.searches:
        return load.search_bounds[2]
    if load.stages is not None:
        return max(max(stage.from_rate, stage.to_rate) for stage in load.stages)
    return max(load.request_rate) if load.request_rate else None
