"""An open loop whose worker dies or stands still: the level says so, no request is lost, the next level is whole."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.busy_machine import sound
from tests.fault.test_workers import assert_nothing_lost_or_double, running

# Each is a fleet of its own that is measured: two at once would spoil each other's levels.
pytestmark = pytest.mark.alone


def rules(level: dict[str, object]) -> set[str]:
    return {reason["rule"] for reason in level["reasons"]}  # type: ignore[attr-defined]


def test_a_dead_worker_marks_its_level_and_the_others_send_the_whole_next_schedule(tmp_path: Path) -> None:
    options = ["--request-rate", "6,7", "--workers", "2", "--duration", "5s", "--arrival-pattern", "constant"]
    with running(tmp_path, *options) as run:
        run.await_window()
        os.kill(run.workers()[0], signal.SIGKILL)
        code, stderr = run.end(90)
    first, second = run.levels()
    assert code == (0 if second["valid"] else 3), stderr
    assert {"worker_lost", "rate_not_reached"} <= rules(first), first["reasons"]
    # What the dead worker did not send was offered all the same.
    assert first["open_loop"]["offered"] == 30 and first["sent_request_rate"] < 5
    assert sound(second) and second["workers"] == 1, second["reasons"]
    assert second["open_loop"]["offered"] == 35
    assert second["sent_request_rate"] == second["offered_request_rate"] == 7
    assert_nothing_lost_or_double(run)


def test_a_worker_that_stood_still_sends_late_and_its_level_is_invalid(tmp_path: Path) -> None:
    options = ["--request-rate", "8", "--workers", "2", "--duration", "4s", "--arrival-pattern", "constant"]
    with running(tmp_path, *options) as run:
        run.await_window()
        frozen = run.workers()[0]
        os.kill(frozen, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(frozen, signal.SIGCONT)
        run.end(90)
    (level,) = run.levels()
    assert {"worker_stalled", "sends_late"} <= rules(level), level["reasons"]
    # The schedule stood: what was late was sent all the same, and its lateness is in the latency from the schedule.
    assert level["open_loop"]["late"] >= 3 and level["requests"]["ok"] == level["open_loop"]["offered"] == 32
    assert level["client"]["send_lag_max_ms"] > 500
    assert level["max_ttft_from_schedule_ms"] > level["max_ttft_ms"] + 300
    assert_nothing_lost_or_double(run)
