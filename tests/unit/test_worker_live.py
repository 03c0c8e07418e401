"""What finished requests tell of their worker, live: the worst since the last report, and nothing where nothing told."""

from __future__ import annotations

from loadgen.worker.live import LiveSends
from tests.level_records import normal


def test_lag_gap_and_coalescing_are_those_of_the_requests_since_they_were_last_taken() -> None:
    sends = LiveSends()
    assert sends.take() == {"send_lag_ns": None, "send_gap_ns": None, "coalesced_share": None}

    sends.add(
        [normal(4, 50, 10, sent_ms=100, scheduled_ms=97, send_gap_ns=9_000, coalesced=[True, True, False, False])]
    )
    sends.add([normal(4, 50, 10, sent_ms=200, scheduled_ms=199, send_gap_ns=20_000)])
    sends.add([normal(4, 50, 10, status="truncated", coalesced=[True] * 4)])  # no event of a failed request counts
    assert sends.take() == {"send_lag_ns": 3_000_000, "send_gap_ns": 20_000, "coalesced_share": 0.25}

    sends.add([normal(4, 50, 10, sent_ms=300)])  # of a closed loop
    assert sends.take() == {"send_lag_ns": None, "send_gap_ns": None, "coalesced_share": 0.0}


def test_a_wait_for_a_place_in_flight_is_no_lag_of_the_worker() -> None:
    sends = LiveSends()
    sends.add([normal(4, 50, 10, sent_ms=600, scheduled_ms=97, waited_ns=500_000_000)])
    assert sends.take()["send_lag_ns"] == 3_000_000
