"""Lengths: what each distribution gives over many requests, within which bounds, and what is refused."""

import statistics

import pytest

from loadgen.workload.draws import Draws
from loadgen.workload.lengths import Distribution, Fixed, LogNormal, Normal, Uniform, distribution, expected
from loadgen.workload.request_class import Observed, Prefixes

N = 20_000


def drawn(lengths: Distribution, purpose: str = "input_tokens") -> list[int]:
    draws = Draws(7, purpose)
    return [lengths.at(draws.at(3, k)) for k in range(N)]


def test_numbers_are_spread_evenly_and_those_of_two_purposes_have_nothing_to_do_with_each_other() -> None:
    ins, outs = ([Draws(7, purpose).at(0, k) for k in range(N)] for purpose in ("input_tokens", "output_tokens"))
    for numbers in (ins, outs):
        assert all(0 <= u < 1 for u in numbers)
        tenths = [sum(i / 10 <= u < (i + 1) / 10 for u in numbers) for i in range(10)]
        assert max(abs(count - N / 10) for count in tenths) < 5 * (N * 0.09) ** 0.5
    assert abs(statistics.correlation(ins, outs)) < 0.04
    assert abs(statistics.correlation(ins[1:], ins[:-1])) < 0.04


def test_a_number_depends_on_seed_purpose_level_and_k_alone() -> None:
    one = Draws(7, "class").at(2, 5)
    assert Draws(7, "class").at(2, 5) == one == 0.9816943883849195
    others = (
        Draws(8, "class").at(2, 5),
        Draws(7, "prefix").at(2, 5),
        Draws(7, "class").at(1, 5),
        Draws(7, "class").at(2, 4),
    )
    assert len({one, *others}) == 5


@pytest.mark.parametrize(
    ("lengths", "mean", "stddev"),
    [
        (Uniform(100, 300), 200, 58.0),
        (Normal(512, 64), 512, 64),
        (LogNormal(512, 128), 512, 128),
        (LogNormal(300, 300, 1, 1_000_000), 300, 300),
    ],
)
def test_mean_and_spread_are_those_that_were_asked_for(lengths: Distribution, mean: float, stddev: float) -> None:
    values = drawn(lengths)
    assert statistics.fmean(values) == pytest.approx(mean, rel=0.02)
    assert statistics.pstdev(values) == pytest.approx(stddev, rel=0.06)


def test_a_lognormal_is_the_logarithm_of_a_normal() -> None:
    values = sorted(drawn(LogNormal(512, 512, 1, 1_000_000)))
    median, p84, p16 = (values[int(N * share)] for share in (0.5, 0.8413, 0.1587))
    assert median == pytest.approx(512 / 2**0.5, rel=0.03)
    assert p84 / median == pytest.approx(median / p16, rel=0.06)


@pytest.mark.parametrize("kind", [Normal, LogNormal])
def test_bounds_are_kept_and_nothing_piles_up_at_them(kind: type[Normal]) -> None:
    values = drawn(kind(100, 60, min=40, max=180))
    assert (min(values), max(values)) == (40, 180)
    for bound, inward in ((40, 1), (180, -1)):
        neighbours = statistics.fmean(values.count(bound + inward * i) for i in range(1, 6))
        assert values.count(bound) < 2 * neighbours + 20


@pytest.mark.parametrize("lengths", [Normal(100, 60, min=40, max=180), LogNormal(512, 512), Normal(50, 40, min=19)])
def test_the_mean_within_the_bounds_is_the_one_that_is_stated(lengths: Normal) -> None:
    values = drawn(lengths)
    assert statistics.fmean(values) == pytest.approx(expected(lengths), rel=0.02)
    assert expected(lengths) != pytest.approx(lengths.mean, rel=0.005)
    assert f"({expected(lengths):.0f} within its bounds)" in str(lengths)


def test_every_length_of_a_uniform_comes_up_both_ends_among_them() -> None:
    values = drawn(Uniform(9, 12))
    assert set(values) == {9, 10, 11, 12}
    assert min(values.count(length) for length in (9, 10, 11, 12)) > N / 4 * 0.9


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
@pytest.mark.parametrize(
    "lengths", [Fixed(5), Uniform(2, 9), Normal(50, 20), LogNormal(50, 20), LogNormal(50, 20, 20, 80)]
)
def test_the_ends_of_the_numbers_give_lengths_within_the_bounds(lengths: Distribution, u: float) -> None:
    assert lengths.shortest <= lengths.at(u) <= lengths.longest


def test_without_a_spread_a_distribution_is_its_mean() -> None:
    assert {Normal(50, 0).at(u / 10) for u in range(10)} == {LogNormal(50, 0).at(u / 10) for u in range(10)} == {50}


def test_a_lower_bound_is_taken_only_where_there_is_none() -> None:
    assert Normal(50, 20).at_least(30) == Normal(50, 20, min=30)
    assert Normal(50, 20, min=10).at_least(30) == Normal(50, 20, min=10)
    assert (Fixed(5).at_least(30), Uniform(2, 9).at_least(30)) == (Fixed(5), Uniform(2, 9))
    assert Normal(50.7, 20).at_least(60) == Normal(50.7, 20, min=50)


@pytest.mark.parametrize(
    "lengths", [Fixed(5), Uniform(2, 9), Normal(50, 20.5, min=3), LogNormal(50.5, 20, 20, 80), LogNormal(50, 20)]
)
def test_a_distribution_that_travelled_is_the_same(lengths: Distribution) -> None:
    assert distribution(lengths.to_dict()) == lengths


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        ({}, "distribution is None; it must be fixed, uniform, normal or lognormal."),
        ({"distribution": "poisson"}, "distribution is 'poisson'"),
        ({"distribution": "uniform", "min": 4}, "A uniform distribution needs max."),
        ({"distribution": "uniform", "min": 9, "max": 4}, "1 ≤ min ≤ max"),
        ({"distribution": "uniform", "min": 0, "max": 4}, "1 ≤ min ≤ max"),
        ({"distribution": "normal", "mean": 9}, "A normal distribution needs stddev."),
        ({"distribution": "normal", "mean": 9, "stddev": -1}, "stddev ≥ 0"),
        ({"distribution": "normal", "mean": 9, "stddev": 1, "max": 5}, "does not lie between min and max (1 to 5)"),
        ({"distribution": "normal", "mean": 9, "stddev": 1, "min": 0}, "no length is below 1"),
        ({"distribution": "normal", "mean": 9, "stddev": 1, "min": 1.5}, "min is 1.5; it must be a whole number."),
        ({"distribution": "normal", "mean": "9", "stddev": 1}, "mean is '9'; it must be a number."),
        ({"distribution": "normal", "mean": True, "stddev": 1}, "mean is True; it must be a number."),
        ({"distribution": "lognormal", "mean": float("nan"), "stddev": 1}, "it must be a number."),
        (
            {"distribution": "lognormal", "mean": 9, "std": 1},
            "std is not a key of a lognormal distribution; its keys are",
        ),
    ],
)
def test_a_distribution_that_is_none_is_refused(data: dict[str, object], wrong: str) -> None:
    with pytest.raises(ValueError) as refusal:
        distribution(data)
    assert wrong in str(refusal.value)


def test_pairs_come_up_together_and_as_often_as_they_were_seen() -> None:
    seen = Observed(((100, 10), (100, 20), (9000, 500)), (5, 3, 2))
    u, v = Draws(7, "input_tokens"), Draws(7, "output_tokens")
    values = [seen.at(u.at(0, k), v.at(0, k)) for k in range(N)]
    assert set(values) == set(seen.pairs)
    for pair, count in zip(seen.pairs, seen.counts, strict=True):
        assert values.count(pair) / N == pytest.approx(count / 10, abs=0.02)
    assert (seen.shortest_input, seen.longest, seen.expected_input()) == (100, (9000, 500), 1880)
    assert {seen.at(0.0, 0.5), seen.at(1 - 2**-53, 0.5)} == {(100, 10), (9000, 500)}


@pytest.mark.parametrize("zipf", [0.0, 1.0, 1.7])
def test_prefixes_are_as_popular_as_zipfs_law_says(zipf: float) -> None:
    prefixes = Prefixes(tokens=64, count=10, zipf=zipf)
    draws = Draws(7, "prefix")
    chosen = [prefixes.at(draws.at(0, k)) for k in range(N)]
    whole = sum(rank**-zipf for rank in range(1, 11))
    for number in range(10):
        assert chosen.count(number) / N == pytest.approx((number + 1) ** -zipf / whole, abs=0.012)
    assert {prefixes.at(0.0), prefixes.at(1 - 2**-53)} == {0, 9}
