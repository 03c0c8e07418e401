"""Whatever the wall clock does, a converted stamp lies between the arrival before it and the read."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from loadgen.wire.kernel_clock import KernelClock

READS = st.lists(
    st.tuples(
        st.integers(0, 300_000_000),  # from the read before until the bytes arrive
        st.integers(0, 30_000_000),  # from the arrival until the read
        st.sampled_from([0, 0, 0, 1, -1, 50_000, -50_000, 5_000_000, -5_000_000, 3_600 * 10**9, -3_600 * 10**9]),
        st.booleans(),  # whether the clock steps before the bytes arrive, or before they are read
    ),
    max_size=30,
)


@given(READS)
def test_arrivals_are_in_order_and_never_after_the_read(reads: list[tuple[int, int, int, bool]]) -> None:
    now = [5_000_000_000]
    wall = [1_700_000_000_000_000_000]
    clock = KernelClock(lambda: now[0], lambda: now[0] + wall[0])
    latest_ns, last_step_ns = 0, -KernelClock.REFRESH_NS
    for gap_ns, delay_ns, step_ns, early in reads:
        now[0] += gap_ns
        wall[0] += step_ns if early else 0
        true_ns, stamp_ns = now[0], now[0] + wall[0]
        wall[0] += 0 if early else step_ns
        if step_ns:
            last_step_ns = now[0]
        now[0] += delay_ns
        arrival_ns = clock.to_monotonic(stamp_ns, not_before_ns=latest_ns, now_ns=now[0])
        assert latest_ns <= arrival_ns <= now[0]
        # A clock that has not stepped since the offset was measured surely gives the truth.
        if now[0] - delay_ns - last_step_ns >= 2 * KernelClock.REFRESH_NS:
            assert arrival_ns == max(true_ns, latest_ns)
        latest_ns = arrival_ns


@given(st.lists(st.integers(-KernelClock.SLACK_NS, KernelClock.SLACK_NS), min_size=2, max_size=20))
def test_a_clock_that_is_slewed_a_little_refuses_nothing(slews_ns: list[int]) -> None:
    now = [5_000_000_000]
    offset = [1_700_000_000_000_000_000]
    clock = KernelClock(lambda: now[0], lambda: now[0] + offset[0])
    latest_ns = 0
    for before_ns, after_ns in itertools.pairwise(slews_ns):
        offset[0] += (after_ns - before_ns) // 2
        now[0] += 1_000
        latest_ns = clock.to_monotonic(now[0] + offset[0], not_before_ns=latest_ns, now_ns=now[0])
        now[0] += KernelClock.REFRESH_NS
    assert clock.refused == 0
