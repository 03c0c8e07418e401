"""Each rule of an open loop fires on its own case and on no healthy level; backlog and settling in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.arrivals.schedule import Schedule
from loadgen.record import LevelPlan, RequestRecord
from loadgen.stats.backlog import Offered, backlog
from loadgen.stats.level import level_object
from loadgen.stats.sample_rules import load_not_reached
from loadgen.stats.steady import SettleDetector
from loadgen.virtual import open_loop
from server.simulator.settings import SimulatorSettings
from tests.level_records import MS, health, normal, plan
from tests.virtual_fleet import told

SECOND = 1_000_000_000
TEN_A_SECOND = [
    normal(5, 50, 10, sent_ms=k * 100, scheduled_ms=k * 100, index=k, kernel_stamps=True, waited_ns=0)
    for k in range(-5, 40)
]


def open_plan(**fields: Any) -> LevelPlan:
    return plan(end_ms=3000, concurrency=None, request_rate=10.0, **fields)


def fired(level_plan: LevelPlan, records: list[RequestRecord], **of_worker: Any) -> set[str]:
    level = level_object(level_plan, records, [health(**{"dropped": 0, **of_worker})])
    return {found["rule"] for found in (*level["reasons"], *level["warnings"])}


def waiting(record: RequestRecord, ms: float) -> RequestRecord:
    """The same, sent so much later because it had no place."""
    later_ns = round(ms * MS)
    names = ("dispatched_ns", "sent_ns", "finished_ns", "first_token_ns", "first_visible_ns", "last_token_ns")
    moved = {name: getattr(record, name) + later_ns for name in names}
    return replace(record, waited_ns=later_ns, arrivals_ns=record.arrivals_ns + later_ns, **moved)


def test_a_healthy_open_loop_fires_no_rule() -> None:
    assert fired(open_plan(), TEN_A_SECOND) == set()


def test_a_wait_for_a_place_is_the_caps_and_not_the_clients() -> None:
    held = [waiting(record, 20) if record.index % 20 == 0 else record for record in TEN_A_SECOND]
    capped = open_plan(max_in_flight=1, overflow="queue")
    assert fired(capped, held) == {"cap_reached"}
    # The same delay without a place to wait for is the client's own.
    late = [replace(record, waited_ns=0) for record in held]
    assert fired(capped, late) == {"sends_late"}
    level = level_object(capped, late, [health(dropped=0)])
    assert level["open_loop"]["late"] == 2 and level["open_loop"]["waited"] == 0


def test_requests_that_were_to_be_sent_and_were_not_make_the_level_invalid() -> None:
    held = [waiting(record, 500) for record in TEN_A_SECOND if record.index < 25]
    level = level_object(open_plan(max_in_flight=5, overflow="queue"), held, [health(dropped=10)])
    assert [reason["rule"] for reason in level["reasons"]] == ["rate_not_reached"]
    assert level["open_loop"]["offered"] == 35


def test_dropped_arrivals_are_told() -> None:
    dropping = open_plan(max_in_flight=1, overflow="drop")
    assert fired(dropping, TEN_A_SECOND, dropped=0) == set()
    assert fired(dropping, TEN_A_SECOND, dropped=1) == {"cap_reached"}
    assert fired(dropping, TEN_A_SECOND, dropped=3) == {"rate_not_reached"}


def test_a_worker_that_never_came_shows_in_what_the_schedule_offers() -> None:
    schedule = Schedule("constant", 1.0, (0.0,), (10.0,), seed=7, level=0)
    told_plan = open_plan(arrivals=schedule.to_dict(), arrivals_start_ns=-500 * MS)
    every = level_object(told_plan, TEN_A_SECOND, [health(dropped=0)])
    assert every["open_loop"]["offered"] == 30 and every["offered_request_rate"] == 10
    half = [record for record in TEN_A_SECOND if record.index % 2]
    assert "rate_not_reached" in fired(told_plan, half)


@pytest.mark.parametrize(("requests", "reached"), [(61, True), (2000, False)])
def test_few_drawn_think_times_may_fall_short_by_chance_and_many_may_not(requests: int, reached: bool) -> None:
    # Eight users: half a request in flight and 6.1 thinking, 82 %.
    level = {
        "concurrency": 8,
        "achieved_concurrency": 0.53,
        "peak_concurrency": 8,
        "users_seen": 8,
        "think_time_s": 0.5,
        "completed_request_rate": 12.2,
        "window_s": requests / 12.2,
    }
    assert (load_not_reached(level) is None) == reached


def test_think_time_counts_as_load() -> None:
    # Two users, 90 ms a request and 60 ms of thinking.
    records = [
        normal(5, 50, 10, sent_ms=k * 150 - user, user=user, index=2 * k + user, kernel_stamps=True)
        for user in range(2)
        for k in range(-1, 30)
    ]
    users = plan(end_ms=3000, concurrency=2)
    assert "load_not_reached" in {r["rule"] for r in level_object(users, records, [health()])["reasons"]}
    thinking = level_object(replace(users, think_time_s=0.06), records, [health()])
    assert thinking["valid"] and thinking["achieved_concurrency"] == pytest.approx(1.2, rel=0.02)


def test_a_backlog_that_fills_up_once_does_not_grow() -> None:
    begun = np.arange(0, 1000) * 10 * MS
    span = (0, 10 * SECOND)
    assert not backlog(begun, begun + 500 * MS, span, 0.0).grew
    assert not backlog(begun, begun + 3 * SECOND, (4 * SECOND, 10 * SECOND), 0.0).grew
    # A fifth more comes than goes.
    grown = backlog(begun, np.arange(0, 1000) * 12 * MS + 100 * MS, span, 1.0)
    assert grown.grew and grown.at_end == pytest.approx(1000 / 6 + 100 / 12, abs=2)
    assert grown.arrived == 1000


def test_a_shrinking_backlog_is_none() -> None:
    begun = np.concatenate((np.zeros(300, np.int64), np.arange(0, 1000) * 10 * MS))
    ended = np.sort(np.concatenate((np.arange(1, 301) * 30 * MS, np.arange(0, 1000) * 10 * MS + 50 * MS)))
    assert not backlog(begun, ended, (0, 10 * SECOND), 0.0).grew


def test_offered_draws_no_further_than_it_is_asked() -> None:
    schedule = Schedule("constant", 1.0, (0.0, 1.0, 1.0), (10.0, 10.0, 0.0), seed=7, level=0)
    offered = Offered(schedule, 5 * SECOND)
    assert offered.before(5 * SECOND).size == 0
    assert offered.before(5 * SECOND + 200 * MS).size == 2
    assert offered.before(60 * SECOND).size == 10
    assert offered.before(5 * SECOND + 200 * MS).size == 2


def settled(rate: float, pattern: Any = "poisson", **fields: Any) -> tuple[float, bool, str]:
    """(seconds from the first arrival until the window may open, whether it had settled, why)."""
    schedule = Schedule(pattern, 1.0, (0.0,), (rate,), seed=7, level=0)
    start_ns = SECOND
    records = open_loop(
        SimulatorSettings(),
        offsets_s=schedule.arrivals().offsets(),
        input_tokens=64,
        output_tokens=32,
        duration_ns=100 * SECOND,
        start_ns=start_ns,
    )
    detector = SettleDetector(
        workers=1,
        users=1,
        began_ns=start_ns,
        all_there_ns=start_ns,
        most_s=60,
        arrivals=Offered(schedule, start_ns, **fields),
    )
    for now_ns, verdict in told(detector, records, workers=1, until_ns=101 * SECOND):
        if verdict.measure:
            return (now_ns - start_ns) / 1e9, verdict.settled, verdict.reason
    raise AssertionError("it was never measured")


@pytest.mark.parametrize(("rate", "pattern"), [(5, "poisson"), (10, "poisson"), (15, "poisson"), (10, "constant")])
def test_an_open_loop_below_capacity_settles_soon_although_arrivals_scatter(rate: float, pattern: str) -> None:
    after_s, steady, reason = settled(rate, pattern)
    assert steady and after_s < 30, (after_s, reason)
    assert "a user" not in reason


def test_an_overloaded_server_is_not_waited_for() -> None:
    after_s, steady, reason = settled(35)
    assert not steady and after_s < 25
    assert "more is offered than completed: 3" in reason and "under way" in reason


def test_where_arrivals_are_dropped_nothing_piles_up() -> None:
    _, _, reason = settled(35, all_sent=False)
    assert "offered" not in reason
