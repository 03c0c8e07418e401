"""Lengths, prefixes and classes for any numbers: bounds are kept, order is kept, what travels arrives whole."""

import json

from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.lengths import Distribution, Fixed, LogNormal, Normal, Uniform, distribution
from loadgen.workload.request_class import Independent, Observed, Prefixes, RequestClass, shares_until

numbers = st.floats(0, 1, exclude_max=True)


@st.composite
def bounded(draw: st.DrawFn) -> Distribution:
    kind = draw(st.sampled_from([Normal, LogNormal]))
    mean = draw(st.floats(1, 100_000))
    low = draw(st.none() | st.integers(1, int(mean)))
    high = draw(st.none() | st.integers(int(mean) + 1, 1_000_000))
    return kind(mean, draw(st.floats(0, 100_000)), low, high)


distributions = (
    st.integers(1, 10**6).map(Fixed)
    | st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)).map(lambda pair: Uniform(pair[0], pair[0] + pair[1]))
    | bounded()
)


@given(distributions, numbers)
def test_every_length_lies_within_its_bounds(lengths: Distribution, u: float) -> None:
    assert 1 <= lengths.shortest <= lengths.at(u) <= lengths.longest


@given(distributions, numbers, numbers)
def test_a_larger_number_never_gives_a_shorter_length(lengths: Distribution, u: float, v: float) -> None:
    assert lengths.at(min(u, v)) <= lengths.at(max(u, v))


@given(distributions, st.integers(1, 50_000), numbers)
def test_a_lower_bound_is_kept_unless_the_distribution_has_its_own_or_a_mean_below(
    lengths: Distribution, least: int, u: float
) -> None:
    bound = lengths.at_least(least)
    assert bound.longest == lengths.longest
    if isinstance(lengths, Normal) and lengths.min is None and lengths.mean >= least:
        assert bound.at(u) >= least
    elif not isinstance(lengths, Normal) or lengths.min is not None:
        assert bound == lengths


@given(distributions)
def test_a_distribution_survives_json(lengths: Distribution) -> None:
    assert distribution(json.loads(json.dumps(lengths.to_dict()))) == lengths


@given(st.integers(1, 500), st.floats(0, 10), numbers)
def test_a_prefix_is_one_of_those_that_there_are(count: int, zipf: float, u: float) -> None:
    assert 0 <= Prefixes(10, count, zipf).at(u) < count


@given(
    st.dictionaries(st.tuples(st.integers(1, 9000), st.integers(1, 9000)), st.integers(1, 50), min_size=1),
    numbers,
    numbers,
)
def test_a_pair_is_one_that_was_seen(counts: dict[tuple[int, int], int], u: float, v: float) -> None:
    assert Observed(tuple(counts), tuple(counts.values())).at(u, v) in counts


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=9), distributions, distributions)
def test_classes_survive_json_and_their_shares_end_at_one(
    shares: list[float], ins: Distribution, outs: Distribution
) -> None:
    classes = [
        RequestClass(f"c{i}", share, Independent(ins, outs), Prefixes(3, 4, 1.5)) for i, share in enumerate(shares)
    ]
    until = shares_until(classes)
    assert until == sorted(until) and until[-1] == 1.0
    assert [RequestClass.from_dict(json.loads(json.dumps(one.to_dict()))) for one in classes] == classes
