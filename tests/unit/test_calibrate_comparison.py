"""What calibration says of records whose truth is known: written down by hand, no server and no clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadgen.calibrate.comparison import compare
from loadgen.record import RequestRecord
from loadgen.stats.level import level_object
from server.metronome.truth import COMPLETE, KERNEL_ARRIVAL, STREAMED, Truth
from tests.level_records import MS, closed_loop, health, plan

PLAN = plan(100, 900, concurrency=4)
NONCE = "abc"


def records(
    *, late_ms: float = 0, first_late_ms: float = 0, sent_late_ms: float = 0, **fields: Any
) -> list[RequestRecord]:
    """Four users; the client says that all tokens came `late_ms`, the first of each `first_late_ms`, too late."""
    made = []
    for record in closed_loop(4, 12, **fields):
        arrivals = record.arrivals_ns + round(late_ms * MS)
        arrivals[0] += round(first_late_ms * MS)
        values = {
            name: getattr(record, name)
            for name in record.__dataclass_fields__
            if name not in ("arrivals_ns", "sent_ns")
        }
        values["first_token_ns"], values["last_token_ns"] = int(arrivals[0]), int(arrivals[-1])
        assert record.sent_ns is not None
        made.append(RequestRecord(**values, arrivals_ns=arrivals, sent_ns=record.sent_ns + round(sent_late_ms * MS)))
    return made


def truth_of(made: list[RequestRecord]) -> Truth:
    """A server that did exactly what these records say."""
    sends = [record.arrivals_ns for record in made]
    n = len(made)
    arrived_ns = np.array([record.sent_ns for record in made], np.int64)
    return Truth(
        ttft_ns=50 * MS,
        itl_ns=10 * MS,
        numbers=np.arange(n),
        request_ids=[f"{NONCE}-{record.level}-{record.index}" for record in made],
        arrived_ns=arrived_ns,
        read_ns=arrived_ns,
        tokens=np.full(n, 5),
        flags=np.full(n, COMPLETE | STREAMED | KERNEL_ARRIVAL),
        starts=np.concatenate([[0], np.cumsum([len(instants) for instants in sends])]),
        sends_ns=np.concatenate(sends),
    )


def compared(made: list[RequestRecord], truth: Truth, **of_worker: Any) -> dict[str, Any]:
    level = level_object(PLAN, made, [health(**of_worker)])
    return compare(level, PLAN, made, truth, NONCE)


def test_a_perfect_client_has_no_error() -> None:
    made = records()
    step = compared(made, truth_of(made))
    for name, true_ms in (("ttft", 50), ("itl", 10)):
        for percentile in ("p50", "p95", "p99"):
            assert step[name][percentile] == {
                "reported_ms": true_ms,
                "true_ms": true_ms,
                "error_ms": 0,
                "error_percent": 0,
            }
    assert step["arrival_error"]["max_us"] == 0
    assert step["tokens_per_s"]["error"] == 0
    assert step["requests_unmatched"] == 0
    assert step["tokens"] == step["arrival_error"]["n"] > 100
    assert step["client_bound"] is False


def test_a_token_that_is_stamped_late_is_an_error_of_the_arrival_and_of_ttft() -> None:
    step = compared(records(late_ms=2), truth_of(records()))
    assert step["ttft"]["p50"]["error_ms"] == pytest.approx(2)
    assert step["ttft"]["p50"]["error_percent"] == pytest.approx(4)
    assert step["ttft_error_of_a_request"]["p99_us"] == pytest.approx(2000)
    assert step["arrival_error"]["p50_us"] == pytest.approx(2000)
    assert step["itl"]["p50"]["error_ms"] == pytest.approx(0)  # all alike, so the gaps are true


def test_a_late_first_token_shortens_the_gap_after_it() -> None:
    step = compared(records(first_late_ms=4), truth_of(records()))
    assert step["ttft"]["p95"]["error_ms"] == pytest.approx(4)
    assert step["itl"]["p50"]["error_ms"] == pytest.approx(0)
    assert step["itl"]["p50"]["true_ms"] == pytest.approx(10)
    assert step["arrival_error"]["p50_us"] == 0
    assert step["arrival_error"]["p99_us"] == pytest.approx(4000)


def test_a_send_that_is_stamped_too_late_makes_ttft_too_short() -> None:
    step = compared(records(sent_late_ms=3), truth_of(records()))
    assert step["ttft"]["p50"]["error_ms"] == pytest.approx(-3)
    assert step["sent_early"]["p50_us"] == pytest.approx(-3000)


def test_a_request_that_the_server_does_not_know_is_counted_and_not_compared() -> None:
    made = records()
    inside = [record for record in made if 100 * MS <= (record.sent_ns or 0) < 900 * MS]
    step = compared(made, truth_of([record for record in made if record is not inside[0]]))
    assert step["requests_unmatched"] == 1
    assert step["ttft"]["n_true"] == len(inside) - 1
    assert step["ttft"]["n_reported"] == len(inside)


def test_a_token_that_has_no_event_leaves_its_request_unmatched() -> None:
    made = records()
    short = truth_of(records(tokens=4))
    step = compared(made, short)
    assert step["requests_unmatched"] == step["requests"]
    assert step["arrival_error"] == {"n": 0} | dict.fromkeys(("p50_us", "p95_us", "p99_us", "p99_9_us", "max_us"))
    assert step["ttft"]["p50"]["true_ms"] is None
    assert step["ttft"]["p50"]["error_percent"] is None


def test_events_that_were_read_together_are_counted_and_kept_apart() -> None:
    made = records(coalesced=[False, False, False, True, True])
    step = compared(made, truth_of(made))
    assert step["coalesced_share"] == pytest.approx(0.4, abs=0.05)
    assert step["arrival_error_not_coalesced"]["n"] < step["arrival_error"]["n"]


def test_an_answer_of_another_run_is_not_this_ones() -> None:
    made = records()
    truth = truth_of(made)
    level = level_object(PLAN, made, [health()])
    step = compare(level, PLAN, made, truth, "another")
    assert step["tokens"] == 0
    assert step["tokens_per_s"]["true"] == 0
    assert step["cpu_us_per_token"] is None
    assert step["server_late_p99_ms"] is None


def test_cpu_is_given_for_each_token_of_the_window() -> None:
    made = records()
    step = compared(made, truth_of(made), cpu_process=0.5)
    assert step["cpu_us_per_token"] == pytest.approx(0.5 * 0.8e6 / step["tokens"])


def test_a_level_that_the_client_could_not_keep_up_with_is_client_bound() -> None:
    made = records()
    step = compared(made, truth_of(made), cpu_loop_thread=0.99)
    assert step["client_bound"] is True
    assert "client_cpu" in {found["rule"] for found in step["reasons"]}


def test_few_samples_mark_a_percentile_as_weak() -> None:
    made = records()
    step = compared(made, truth_of(made))
    assert step["ttft"]["n_true"] < 100
    assert "p95" in step["ttft"]["weak"]
    assert "p50" not in step["ttft"]["weak"]
