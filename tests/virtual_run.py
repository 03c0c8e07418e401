"""Run folders whose levels were made in virtual time: as `loadgen run` leaves them, in milliseconds, for tests of commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.arrivals.schedule import Schedule
from loadgen.record import LevelPlan, RequestRecord
from loadgen.run_folder import RunFolder
from loadgen.scenario.model import Level, Scenario
from loadgen.spool import SpoolWriter, encode_health, encode_records
from loadgen.virtual import open_loop
from server.simulator.settings import SimulatorSettings
from tests.level_records import health
from tests.virtual_load import SECOND, drawn_load

TARGET = {
    "base_url": "http://127.0.0.1:8000",
    "model": "sim",
    "server_version": "0.11.0",
    "max_model_len": 8192,
    "precision": None,
    "arrival_stamps": "kernel",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRun:
    """What a run asks for; `seed` draws lengths and beginnings, `slower` makes every step take so many times as long."""

    concurrency: Sequence[int] = (1, 4, 8, 16, 32)
    request_rate: Sequence[float] = ()
    """Poisson arrivals in place of users; lengths are then all alike."""
    max_num_seqs: Sequence[int] = (16,)
    input_tokens: int = 128
    output_tokens: int = 64
    spread: float = 0.0
    """Lengths are uniform between 1 − spread and 1 + spread times those."""
    window_s: float = 20.0
    warmup_s: float = 4.0
    drain_s: float = 6.0
    num_runs: int = 1
    seed: int = 1
    slower: float = 1.0
    slo: dict[str, str] = field(default_factory=lambda: {"ttft_p95": "500ms", "tpot_p95": "50ms", "error_rate": "1%"})
    target: dict[str, Any] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    """Changes of what the worker reports of itself, such as a late loop."""
    failing: bool = False
    """Every request fails."""
    name: str = "virtual"

    def scenario(self) -> Scenario:
        lengths: dict[str, Any] = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        if self.spread:
            lengths["range_ratio"] = self.spread
        return Scenario.model_validate(
            {
                "name": self.name,
                "workload": lengths,
                "load": {
                    **(
                        {"request_rate": list(self.request_rate)}
                        if self.request_rate
                        else {"concurrency": list(self.concurrency)}
                    ),
                    "warmup": self.warmup_s,
                    "duration": self.window_s,
                    "num_runs": self.num_runs,
                },
                "slo": self.slo,
                "server": {"max_num_seqs": list(self.max_num_seqs)},
                "seed": self.seed,
            }
        )

    def write(self, path: Path) -> Path:
        """Makes the run folder; gives its path."""
        scenario = self.scenario()
        folder = RunFolder.create(path, scenario_yaml=scenario.to_yaml(), nonce="n")
        folder.write_provenance(
            {"started": "2026-01-05T10:00:00+00:00", "seed": self.seed, "target": {**TARGET, **self.target}}
        )
        spool = SpoolWriter(folder.spool(0))
        written = 0
        for level in scenario.levels():
            plan = self._plan(level)
            records = self._arrivals(plan) if self.request_rate else self._users(plan)
            spool.append(encode_records(records))
            spool.append(
                encode_health(
                    replace(health(level=level.level, dropped=0 if self.request_rate else None), **self.health)
                )
            )
            written += len(records)
            folder.note_level(plan, {0: 0}, {0: written})
        spool.close()
        return path

    def _plan(self, level: Level) -> LevelPlan:
        length_s = self.warmup_s + self.window_s + self.drain_s
        begin_ns = round((10 + level.level * length_s) * SECOND)
        start_ns = begin_ns + round(self.warmup_s * SECOND)
        end_ns = start_ns + round(self.window_s * SECOND)
        drained_ns = end_ns + round(self.drain_s * SECOND)
        plan = LevelPlan(
            level.level, level.concurrency, start_ns, end_ns, run=level.run, server=level.server, drained_ns=drained_ns
        )
        if level.request_rate is None:
            return plan
        schedule = Schedule("poisson", 1.0, (0.0,), (level.request_rate,), seed=self.seed, level=level.level)
        return replace(plan, request_rate=level.request_rate, arrivals=schedule.to_dict(), arrivals_start_ns=begin_ns)

    def _arrivals(self, plan: LevelPlan) -> list[RequestRecord]:
        assert plan.arrivals is not None and plan.arrivals_start_ns is not None and plan.drained_ns is not None
        return open_loop(
            SimulatorSettings(**plan.server),
            offsets_s=Schedule.from_dict(plan.arrivals).arrivals().offsets(),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            duration_ns=plan.drained_ns - plan.arrivals_start_ns,
            level=plan.level,
            start_ns=plan.arrivals_start_ns,
        )

    def _users(self, plan: LevelPlan) -> list[RequestRecord]:
        random = np.random.default_rng([self.seed, plan.level])
        begin_ns = plan.window_start_ns - round(self.warmup_s * SECOND)
        users = plan.concurrency or 0

        def drawn(middle: int) -> int:
            low, high = round(middle * (1 - self.spread)), round(middle * (1 + self.spread))
            return int(random.integers(low, high + 1))

        made = drawn_load(
            SimulatorSettings(**plan.server),
            begin_ns=sorted(begin_ns + int(at) for at in random.integers(0, SECOND, users)),
            lengths=lambda: (drawn(self.input_tokens), drawn(self.output_tokens)),
            end_ns=plan.drained_ns or 0,
            slowness=lambda now_ns: self.slower,
        )
        return [self._told(one, plan.level) for one in made]

    def _told(self, record: RequestRecord, level: int) -> RequestRecord:
        record = replace(
            record,
            level=level,
            send_gap_ns=10_000,
            input_tokens_requested=record.input_tokens,
            output_tokens_requested=record.output_tokens,
            finish_reason="length",
            http_status=200,
            kernel_stamps=True,
        )
        if not self.failing:
            return record
        return replace(
            record,
            status="http_503",
            reason="busy",
            http_status=503,
            output_tokens=None,
            output_tokens_source=None,
            arrivals_ns=np.empty(0, np.int64),
            coalesced=np.empty(0, np.bool_),
            first_token_ns=None,
            first_visible_ns=None,
            last_token_ns=None,
        )
