"""The log-linear histogram's promises: bounded error, exact merge, a wire form that loses nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.stats.histogram import MAX_VALUE_NS, RELATIVE_ERROR, LogLinearHistogram
from loadgen.stats.percentile import nearest_rank

durations = st.one_of(st.integers(0, 1000), st.integers(0, 10**9), st.integers(0, MAX_VALUE_NS))
samples = st.lists(st.tuples(durations, st.integers(0, 9)), max_size=60)


def histogram(pairs: list[tuple[int, int]]) -> LogLinearHistogram:
    made = LogLinearHistogram()
    made.add(np.array([value for value, _ in pairs], np.int64), np.array([weight for _, weight in pairs], np.int64))
    return made


@given(samples, st.sampled_from([1, 25, 50, 90, 95, 99, 99.9, 100]))
def test_percentile_is_within_0_39_percent_of_the_nearest_rank(pairs: list[tuple[int, int]], percent: float) -> None:
    values = np.repeat([value for value, _ in pairs], [weight for _, weight in pairs]).astype(np.int64)
    [true] = nearest_rank(values, [percent])
    found = histogram(pairs).percentile_ns(percent)
    if true is None:
        assert found is None
    else:
        assert found is not None
        assert abs(found - true) <= RELATIVE_ERROR * true
        assert RELATIVE_ERROR < 0.0040


@given(samples, samples, samples)
def test_merge_is_associative_and_equals_recording_everything_in_one(
    a: list[tuple[int, int]], b: list[tuple[int, int]], c: list[tuple[int, int]]
) -> None:
    left = histogram(a)
    left.merge(histogram(b))
    left.merge(histogram(c))
    tail = histogram(b)
    tail.merge(histogram(c))
    right = histogram(a)
    right.merge(tail)
    backwards = histogram(c)
    backwards.merge(histogram(b))
    backwards.merge(histogram(a))
    assert left == right == backwards == histogram(a + b + c)
    assert left.n == right.n == sum(weight for _, weight in a + b + c)


@given(samples)
def test_wire_form_loses_nothing(pairs: list[tuple[int, int]]) -> None:
    original = histogram(pairs)
    received = LogLinearHistogram.from_wire(original.to_wire())
    assert received == original
    assert (received.n, received.mean_ns()) == (original.n, original.mean_ns())


@given(st.lists(durations, min_size=1, max_size=60))
def test_mean_min_and_max_are_exact(values: list[int]) -> None:
    made = LogLinearHistogram()
    made.add(np.array(values, np.int64))
    assert (made.min_ns, made.max_ns, made.n) == (min(values), max(values), len(values))
    assert made.mean_ns() == sum(values) / len(values)


def test_chunk_of_k_tokens_counts_as_k_samples() -> None:
    made = LogLinearHistogram()
    made.add(np.array([15_000_000, 20_000_000]), np.array([3, 4]))
    assert made.n == 7
    assert made.percentile_ns(50) == pytest.approx(20_000_000, rel=RELATIVE_ERROR)
    assert made.mean_ns() == 125_000_000 / 7


def test_two_workers_merge_to_the_percentiles_of_all_requests() -> None:
    # T22: the mean of the workers' P95 would be 1.05 s, their maximum 2.0 s.
    a, b = LogLinearHistogram(), LogLinearHistogram()
    a.add(np.full(1000, 100_000_000))
    b.add(np.full(10, 2_000_000_000))
    a.merge(LogLinearHistogram.from_wire(b.to_wire()))
    for percent in (50, 95, 99):
        assert a.percentile_ns(percent) == pytest.approx(100_000_000, rel=RELATIVE_ERROR)
    assert a.max_ns == 2_000_000_000


def test_value_that_does_not_fit_is_refused_and_nothing_is_counted() -> None:
    made = LogLinearHistogram()
    for value in (-1, MAX_VALUE_NS + 1):
        with pytest.raises(ValueError, match="a duration must lie in"):
            made.add(np.array([5, value]))
    with pytest.raises(ValueError, match="must not be negative"):
        made.add(np.array([5]), np.array([-1]))
    with pytest.raises(ValueError, match="whole nanoseconds"):
        made.add(np.array([0.5]))  # type: ignore[arg-type]
    assert made == LogLinearHistogram()


def test_wire_form_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        LogLinearHistogram.from_wire({"version": 2})
