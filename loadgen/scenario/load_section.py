"""The `load` section: a closed loop's users or an open loop's arrivals, and how long a level is measured."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from loadgen.arrivals.pattern import Pattern
from loadgen.scenario.load_values import OpenRates, PositiveNumber, Stages, ThinkTimeValue
from loadgen.scenario.quantities import Count, Duration, FileName, Kind, PositiveDuration
from loadgen.scenario.search_section import (
    LEAST_RATE,
    MOST_RATE,
    MOST_USERS,
    AutoCounts,
    AutoRates,
    Order,
    SearchSection,
    check_search,
)
from loadgen.scenario.section import Section

LEAST_SETTLING_S = 5.0
"""A level is watched at least so long before it counts as steady (loadgen.stats.steady)."""
LEAST_WINDOW_S = 15.0
"""A window whose length follows from the work is at least so long (loadgen.stats.window)."""

RATES = ("request_rate", "stages", "rate_file", "replay_speed")
"""Keys that make an open loop."""
LOADS = ("concurrency", *RATES)
"""Keys of which a load has one."""
OPEN_ONLY = ("arrival", "burstiness", "burst_size", "burst_period", "max_in_flight", "overflow")
"""Keys that mean something in an open loop alone."""


class Load(Section):
    """How hard and how long. A level is warm-up (with the ramp), measuring window and drain.

    One of `concurrency` (a closed loop: each user asks again when its answer has come) and `request_rate`, `stages` or
    `rate_file` (an open loop: requests come when the schedule says, whatever the server does).
    """

    concurrency: AutoCounts | None = Field(
        (1, 2, 4, 8),
        description="Requests in flight at once: one number, or a list, which is a sweep of levels; `auto` finds the most "
        "that keep the limits.",
    )
    request_rate: AutoRates | None = Field(
        None,
        description="Requests a second of an open loop, in place of concurrency: one number, or a list, which is a sweep; "
        "`auto` finds the most that keep the limits.",
    )
    stages: Stages | None = Field(
        None,
        description="Request rate of an open loop that changes: DURATION:RATE, or DURATION:RATE-RATE for a ramp, one after "
        "another, such as 30s:2,60s:2-10; the last rate stays. One level.",
    )
    rate_file: FileName | None = Field(
        None,
        description="CSV file of an open loop's request rate, a line `seconds,rate`; straight lines lie between them. One "
        "level. A relative path counts from the scenario's folder.",
    )
    replay_speed: OpenRates | None = Field(
        None,
        description="Open loop: replay the instants of workload.dataset, so many times as fast as they were recorded; a "
        "list is a sweep.",
    )
    arrival: Annotated[Pattern, Kind("poisson|constant|gamma")] | None = Field(
        None,
        description="How an open loop's arrivals are spread; null is poisson, and gamma where burstiness is given.",
    )
    burstiness: PositiveNumber | None = Field(
        None,
        description="Shape of gamma arrivals: 1 is poisson, less comes in clumps, more is more regular; null is 1.",
    )
    burst_size: Count | None = Field(
        None, description="Requests that an open loop sends at once, beside its rate, every burst_period."
    )
    burst_period: PositiveDuration | None = Field(None, description="Time from one burst to the next.")
    max_in_flight: Count | None = Field(
        None, description="Most requests of an open loop that may be in flight, over all workers; null is no limit."
    )
    overflow: Annotated[Literal["queue", "drop"], Kind("queue|drop")] = Field(
        "queue", description="What becomes of an arrival beyond max_in_flight: it waits for its turn, or is dropped."
    )
    think_time: ThinkTimeValue | None = Field(
        None,
        description="How long a closed loop's user waits after an answer: a duration, or {distribution: exponential, "
        "mean: DURATION}, on the command line exponential:DURATION.",
    )
    warmup: Duration | None = Field(
        None,
        description="Time under load before the measuring window of a level opens; null waits until the level is steady, "
        "and with stages, rate_file or bursts it is 0.",
    )
    duration: PositiveDuration | None = Field(
        None,
        description="Length of the measuring window of a level; null is as long as 200 requests and 3 × the P95 of E2E "
        "latency take, at least 15s, and with stages or rate_file as long as those.",
    )
    max_warmup: PositiveDuration = Field(
        120.0,
        description="How long to wait at most until a level is steady; it is measured then all the same, and marked.",
    )
    max_duration: PositiveDuration = Field(120.0, description="Longest window where duration is null.")
    num_runs: Annotated[int, Kind("N"), Field(ge=1, le=100)] = Field(
        1, description="How often the whole sweep is run; more than once gives median and spread of each level."
    )
    order: Annotated[Order, Kind("ascending|shuffled|aba")] | None = Field(
        None,
        description="Order in which the levels of a sweep run: `ascending`, `shuffled` by the seed, or `aba`, which repeats the "
        "first at the end, so that drift shows; null is as they are listed.",
    )
    confirm: bool = Field(
        False,
        description="Offer the rate that the capacity within the limits completed once more as Poisson arrivals, which do "
        "not wait for answers as users do.",
    )
    search: SearchSection = Field(default_factory=SearchSection)
    drain_timeout: Duration = Field(
        30.0, description="How long requests of the window may take to end afterwards; later ones count as censored."
    )
    ramp: Duration = Field(
        1.0,
        description="Time over which the first requests of a closed loop's level are spread; at most a warm-up that is "
        "given.",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_rate_takes_the_place_of_the_default_users(cls, values: Any) -> Any:
        if (
            isinstance(values, dict)
            and "concurrency" not in values
            and any(values.get(key) is not None for key in RATES)
        ):
            return {**values, "concurrency": None}
        return values

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        given = [f"load.{key}" for key in LOADS if getattr(self, key) is not None]
        if not given:
            raise ValueError("Nothing says how much load there is: give load.concurrency or load.request_rate.")
        if len(given) > 1:
            limit = "; arrivals are limited by load.max_in_flight" if self.concurrency is not None else ""
            raise ValueError(f"{' and '.join(given)} are given, and a level has one of them{limit}.")
        if self.open_loop and self.think_time is not None:
            raise ValueError(f"load.think_time is for users, and with {given[0]} there are none.")
        idle = [f"load.{key}" for key in OPEN_ONLY if getattr(self, key) != type(self).model_fields[key].default]
        if not self.open_loop and idle:
            raise ValueError(
                f"{' and '.join(idle)} has no meaning in a closed loop: give load.request_rate for an open one."
            )
        return self

    @model_validator(mode="after")
    def _keys_that_belong_together(self) -> Self:
        if self.burstiness is not None and self.arrival in ("poisson", "constant"):
            raise ValueError(f"load.burstiness is for gamma arrivals, and load.arrival is {self.arrival}.")
        shape = [f"load.{key}" for key in ("arrival", "burstiness", "burst_size") if getattr(self, key) is not None]
        if self.replay_speed is not None and shape:
            raise ValueError(
                f"load.replay_speed takes the trace's own instants, so {shape[0]} has no effect: keep one."
            )
        if (self.burst_size is None) != (self.burst_period is None):
            raise ValueError("load.burst_size and load.burst_period are given together, or neither is.")
        if self.overflow == "drop" and self.max_in_flight is None:
            raise ValueError("With load.overflow drop, load.max_in_flight says from when on; it is not given.")
        return self

    @model_validator(mode="after")
    def _search_and_order(self) -> Self:
        if self.searches:
            key = "load.concurrency" if self.concurrency is not None else "load.request_rate"
            if self.num_runs > 1 or self.order is not None:
                other = "load.num_runs" if self.num_runs > 1 else "load.order"
                raise ValueError(f"With {key} auto the search says which levels run, so {other} has no effect.")
            check_search(self.search, users=self.concurrency is not None)
        if self.confirm and self.open_loop:
            raise ValueError(
                "load.confirm offers the capacity of users as arrivals, and without load.concurrency there are none."
            )
        return self

    @property
    def searches(self) -> bool:
        """Whether levels are found by a search."""
        return () in (self.concurrency, self.request_rate)

    @property
    def search_bounds(self) -> tuple[float, float, float]:
        """(first, lowest, highest) load of a search."""
        first = self.search.min or 1.0
        of_users = self.concurrency is not None
        least = self.search.min or (1.0 if of_users else LEAST_RATE)
        return first, least, max(first, self.search.max or (MOST_USERS if of_users else MOST_RATE))

    @property
    def open_loop(self) -> bool:
        """Whether arrivals follow a schedule."""
        return self.concurrency is None

    @property
    def follows_a_course(self) -> bool:
        """Whether the load is meant to change within a level, so that no level of it is ever steady."""
        return any(value is not None for value in (self.stages, self.rate_file, self.replay_speed, self.burst_size))

    @property
    def pattern(self) -> Pattern:
        """How arrivals are spread, with the default worked out."""
        return self.arrival or ("poisson" if self.burstiness is None else "gamma")

    @property
    def given_warmup_s(self) -> float | None:
        """The warm-up; None where it lasts until the level is steady."""
        return 0.0 if self.warmup is None and self.follows_a_course else self.warmup

    def steps(self) -> list[tuple[int | None, float | None, float | None]]:
        """(concurrency, request rate, replay speed) of each level of a sweep; all None for a rate that changes. Of a search
        the first one."""
        if self.searches:
            first = self.search_bounds[0]
            return [(round(first), None, None) if self.concurrency is not None else (None, first, None)]
        if self.concurrency is not None:
            return [(users, None, None) for users in self.concurrency]
        if self.replay_speed is not None:
            return [(None, None, speed) for speed in self.replay_speed]
        return [(None, rate, None) for rate in self.request_rate or (None,)]

    def least_s(self, window_s: float | None) -> float:
        """How long a level takes at least, without its drain; `window_s`: None where that follows from the work."""
        warmup_s = LEAST_SETTLING_S if self.given_warmup_s is None else self.given_warmup_s
        return warmup_s + (LEAST_WINDOW_S if window_s is None else window_s)

    def most_in_flight(self) -> int | None:
        """How many requests there can be at once; None where nothing limits them, or a search finds it out."""
        return max(self.concurrency, default=None) if self.concurrency is not None else self.max_in_flight
