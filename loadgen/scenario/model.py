"""The scenario: what a run asks for, as checked and frozen values; it reads no file and starts nothing."""

from __future__ import annotations

import itertools
import os
import re
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Self

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from loadgen.scenario.load_section import Load
from loadgen.scenario.quantities import (
    Duration,
    Kind,
    Natural,
    Port,
    PositiveDuration,
    Text,
    parse_base_url,
)
from loadgen.scenario.request_rules import any_streams, check_requests
from loadgen.scenario.safety import Safety, Soak, check_caps, check_soak, check_stops
from loadgen.scenario.search_section import check_limits, ordered
from loadgen.scenario.section import Section
from loadgen.scenario.server import ServerSection, ServerSettings, VllmSettings
from loadgen.scenario.slo import Slo
from loadgen.scenario.target import Target
from loadgen.scenario.turns_section import refuse_conversations
from loadgen.scenario.workload import Workload


def _is_a_folder_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise ValueError("A name has at most 100 letters, digits and . _ - and begins with a letter or digit.")
    return value


Name = Annotated[str, AfterValidator(_is_a_folder_name), Kind("NAME")]


def _root_with_its_path(value: object) -> str:
    parse_base_url(value)  # for its refusals; it takes a /v1 off, which belongs to the API alone
    return str(value).strip().rstrip("/")


GatewayUrl = Annotated[str, BeforeValidator(_root_with_its_path), Kind("URL")]


class Timeouts(Section):
    """When a request is given up and counts as failed. Null is no limit."""

    connect: PositiveDuration | None = Field(10.0, description="Until the connection stands.")
    first_byte: PositiveDuration | None = Field(None, description="From sending until the first byte of the answer.")
    first_token: PositiveDuration | None = Field(120.0, description="From sending until the first token of a stream.")
    between_tokens: PositiveDuration | None = Field(60.0, description="From one token of a stream to the next.")
    total: PositiveDuration | None = Field(600.0, description="From sending until the end of the answer.")


class Workers(Section):
    """Which processes make the load."""

    local: Natural | None = Field(
        None,
        description="Workers to start on this host; null is one less than its cores, at least 1, and 0 with expect.",
    )
    expect: Natural = Field(0, description="Workers to await from elsewhere, started there with `loadgen worker`.")
    bind_host: Text | None = Field(
        None,
        description="Address on which workers are awaited; null is this host alone, and every address with expect.",
    )
    bind_port: Annotated[int, Kind("PORT"), Field(ge=1, le=65535)] = Field(
        5557, description="Port on which workers from elsewhere are awaited; a free one is taken without expect."
    )

    @model_validator(mode="after")
    def _someone_works(self) -> Self:
        if self.local == 0 and self.expect == 0:
            raise ValueError("No worker is left to make the load: both workers.local and workers.expect are 0.")
        return self

    def local_count(self) -> int:
        """Workers to start on this host, with the default worked out from the cores this process may use."""
        if self.local is not None:
            return self.local
        if self.expect:
            return 0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores - 1)


class Metrics(Section):
    """The Prometheus endpoint of the run."""

    host: Text = Field("127.0.0.1", description="Address that /metrics listens on.")
    port: Port = Field(9646, description="Port of /metrics; null or off for no endpoint.")
    linger: Duration | None = Field(
        None,
        description="How long /metrics stays up after the run, for a last scrape; null is two scrape intervals, "
        "at most 120s, when a scraper came during the run, and no time at all when none did.",
    )
    pushgateway: GatewayUrl | None = Field(
        None,
        description="Root of a Pushgateway that gets the finished levels' series when the run ends, "
        "such as http://127.0.0.1:9091.",
    )


@dataclass(frozen=True, slots=True)
class Level:
    """One step of the sweep."""

    level: int
    """Index in the order of running, from 0."""
    concurrency: int | None
    """Users of a closed loop; None in an open one."""
    run: int
    """Which repeat of the sweep of one server it belongs to, from 0."""
    server: dict[str, Any]
    """Every setting of the server that we start for it; empty for one that is there already."""
    request_rate: float | None = None
    """Of an open loop; None where its rate changes."""
    replay_speed: float | None = None
    """Of a replayed trace: how many times faster than recorded."""
    step: int | None = None
    """Which one it is of the levels that the scenario lists; another level that repeats it has the same. None of a level that was
    found out on the way."""


class Scenario(Section):
    """Everything a run asks for."""

    name: Name = Field("unnamed", description="Name of the experiment, and of the folder that its runs are kept in.")
    target: Target = Field(default_factory=Target)
    workload: Workload = Field(default_factory=Workload)
    load: Load = Field(default_factory=Load)
    timeouts: Timeouts = Field(default_factory=Timeouts)
    slo: Slo = Field(default_factory=Slo)
    soak: Soak = Field(default_factory=Soak)
    safety: Safety = Field(default_factory=Safety)
    server: SerializeAsAny[ServerSection] = Field(default_factory=dict, validate_default=True)
    workers: Workers = Field(default_factory=Workers)
    metrics: Metrics = Field(default_factory=Metrics)
    seed: Annotated[Natural, Field(lt=2**63)] | None = Field(
        None, description="Seed of the prompts and of every random choice; null draws one, which the run records."
    )
    audit: bool = Field(
        False,
        description="Capture the target's packets and compare arrival stamps with them; needs Linux, CAP_NET_RAW and "
        "plain HTTP.",
    )

    @field_validator("server", mode="before")
    @classmethod
    def _settings_of_the_server_that_is_started(cls, value: Any, info: ValidationInfo) -> Any:
        target = info.data.get("target")
        if not isinstance(value, dict) or target is None:  # a target that is refused says nothing of its settings
            return value if isinstance(value, ServerSection) else ServerSettings()
        return (VllmSettings if target.server == "vllm" else ServerSettings).model_validate(value)

    @model_validator(mode="after")
    def _vllm_has_a_model(self) -> Self:
        if (
            not isinstance(self.server, VllmSettings)
            or self.server.command is not None
            or self.target.model is not None
        ):
            return self
        if not all(settings.get("model") for settings in self.server.combinations()):
            raise ValueError("vLLM has no model to load: set server.model to a folder or a name on the hub.")
        return self

    @model_validator(mode="after")
    def _server_settings_need_a_server_of_ours(self) -> Self:
        if self.target.base_url is not None and self.server.model_fields_set:
            keys = ", ".join(f"server.{key}" for key in sorted(self.server.model_fields_set))
            raise ValueError(f"Settings of a server that is there already cannot be changed, so {keys} has no effect.")
        return self

    @model_validator(mode="after")
    def _a_search_has_limits(self) -> Self:
        check_limits(self.slo, search=self.load.searches, confirm=self.load.confirm)
        return self

    @model_validator(mode="after")
    def _the_load_is_safe(self) -> Self:
        check_soak(self.soak, self.load)
        check_caps(self.safety, self.load, turns=self.workload.mean_turns())
        check_stops(self.safety, self.target, streams=self.streams())
        return self

    @model_validator(mode="after")
    def _there_is_a_trace_to_replay(self) -> Self:
        if self.load.replay_speed is not None and self.workload.dataset.path is None:
            raise ValueError("load.replay_speed replays a trace, and workload.dataset.path names none.")
        return self

    @model_validator(mode="after")
    def _conversations_can_arrive(self) -> Self:
        if self.workload.has_conversations():
            refuse_conversations(self.load)
        return self

    @model_validator(mode="after")
    def _packets_can_be_audited(self) -> Self:
        if not self.audit:
            return self
        if (self.target.base_url or "").startswith("https:"):
            raise ValueError(
                "With audit, target.base_url must be http://: in TLS a packet does not show which event it ends."
            )
        if self.target.proxy is not None:
            raise ValueError(
                "With audit, target.proxy must be null: the packets would be the proxy's, not the target's."
            )
        if self.workers.expect:
            raise ValueError("With audit, workers.expect must be 0: packets are captured on this host only.")
        return self

    @model_validator(mode="after")
    def _requests_fit_the_server(self) -> Self:
        for arithmetic, needed, note in self.workload.needed():
            for settings in self.server_combinations():
                length = settings.get("max_model_len")
                if isinstance(length, int) and 0 < length < needed:  # vLLM takes auto, 32k and -1 too
                    raise ValueError(
                        f"{arithmetic} = {needed}, more than server.max_model_len, {length}: the server would refuse such a "
                        f"request.{note}"
                    )
        return self

    @model_validator(mode="after")
    def _requests_can_be_asked_for(self) -> Self:
        check_requests(self.target, self.workload, self.slo)
        return self

    def streams(self) -> bool:
        """Whether any answer is asked for as a stream."""
        return any_streams(self.target, self.workload)

    def levels(self) -> list[Level]:
        """The levels in the order of running: settings of the server outermost, then repeats, the load innermost. Of a search
        the first one for each setting.

        Repeats are whole sweeps, so that a slow drift shows as spread instead of favouring a level.
        """
        found: list[Level] = []
        for server, run in itertools.product(self.server_combinations(), range(self.load.num_runs)):
            for users, rate, speed in ordered(self.load.steps(), self.load.order, seed=self.seed or 0, run=run):
                found.append(Level(len(found), users, run, server, rate, speed, step=len(found)))
        return found

    def server_combinations(self) -> list[dict[str, Any]]:
        """Every setting of the server that we start, for each step of its sweep; one empty one for a server that is there."""
        return self.server.combinations() if self.target.server is not None else [{}]

    def with_seed(self) -> Scenario:
        """The same scenario with a seed: its own, or one drawn now."""
        return self if self.seed is not None else self.model_copy(update={"seed": secrets.randbelow(2**31)})

    def to_yaml(self) -> str:
        """The scenario with every default written out; loading it gives an equal one. It can hold no API key."""
        values = self.model_dump(mode="json")
        values["slo"] = self.slo.model_dump(mode="json", exclude_none=True)
        if self.target.server is None:
            del values["server"]
        if not values["slo"]:
            del values["slo"]
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
