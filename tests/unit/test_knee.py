"""The knee, and curves that are none: public tables of GPU servers, and made-up ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

from loadgen.stats.curve import Point, curve
from loadgen.stats.isotonic import monotonic
from loadgen.stats.knee import find_knee, knees
from tests.public_sweeps import LEVELS_OFF_NEAR_512, PEAKS_NEAR_64, Row, sweep, written_level


def loads(points: Any) -> list[float]:
    return [point.load for point in points]


def points(*rows: tuple[float, float]) -> list[Point]:
    return [Point(load, throughput, level=number) for number, (load, throughput) in enumerate(rows)]


def told(rows: tuple[Row, ...]) -> dict[str, Any]:
    (entry,) = knees(sweep(rows))
    return entry


def test_the_first_public_table_levels_off_at_512_and_its_point_at_32_is_not_smooth() -> None:
    entry = told(LEVELS_OFF_NEAR_512)
    assert (entry["concurrency"], entry["interval"]) == (512, [256, 1024])
    assert (entry["unstable"], entry["falling"], entry["outliers"]) == ([], [], [32])
    assert entry["text"].startswith("Throughput stops rising at concurrency 512 (18,746 output tokens/s)")
    assert "something before the server holds requests back" in entry["text"]


def test_the_second_public_table_peaks_at_64_and_its_bistable_points_are_unstable() -> None:
    entry = told(PEAKS_NEAR_64)
    assert (entry["concurrency"], entry["interval"]) == (64, [32, 128])
    assert entry["unstable"] == [256, 512, 1024]
    assert entry["falling"] == []
    assert "UNSTABLE at concurrency 256, 512, 1024: 1,586, 3,775, 1,587 output tokens/s" in entry["text"]


def test_one_bad_point_is_unstable_when_a_higher_load_is_back() -> None:
    found = curve(points((1, 100), (2, 200), (4, 390), (8, 150), (16, 780), (32, 790)))
    assert loads(found.unstable) == [8]
    knee = find_knee(found)
    assert knee is not None
    assert knee.point.load == 16


def test_throughput_that_falls_for_good_is_falling_and_its_peak_the_knee() -> None:
    found = curve(points((1, 100), (2, 195), (4, 380), (8, 250), (16, 120)))
    assert (loads(found.falling), loads(found.unstable)) == ([8, 16], [])
    knee = find_knee(found)
    assert knee is not None
    assert (knee.point.load, knee.before.load if knee.before else None) == (4, 2)


def test_repeats_that_disagree_make_a_load_unstable() -> None:
    both = [
        written_level(n, load, rate, 50, 10) for n, (load, rate) in enumerate([(1, 100), (2, 200), (2, 120), (4, 390)])
    ]
    (entry,) = knees(both)
    assert entry["unstable"] == [2]


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("places", [8, 16, 64])
def test_a_server_of_so_many_places_has_its_knee_there(places: int, noise: float) -> None:
    # Step time 10 + 0.2 a sequence; a load beyond the places only waits. Noise alternates, so that it does not cancel.
    rows = [
        (load, min(load, places) / (10 + 0.2 * min(load, places)) * (1 + noise * (-1) ** i))
        for i, load in enumerate((1, 2, 4, 8, 16, 32, 64, 128, 256))
    ]
    knee = find_knee(curve(points(*rows)))
    assert knee is not None
    assert knee.point.load == places


def test_a_knee_between_two_loads_lies_in_its_interval() -> None:
    knee = find_knee(curve(points((4, 40), (8, 78), (24, 120), (48, 120))))
    assert knee is not None
    assert knee.before is not None
    assert (knee.before.load, knee.point.load, knee.after.load) == (8, 24, 48)


def test_throughput_that_still_rises_has_no_knee() -> None:
    assert find_knee(curve(points((1, 100), (2, 199), (4, 390)))) is None
    (entry,) = knees(sweep(LEVELS_OFF_NEAR_512[:4]))
    assert (entry["level"], entry["interval"]) == (None, None)
    assert entry["text"].startswith("No knee up to concurrency 32: throughput still rises there.")


def test_throughput_that_never_rises_has_its_knee_at_or_below_the_lowest_load() -> None:
    knee = find_knee(curve(points((8, 100), (16, 100.5), (32, 99))))
    assert knee is not None
    assert (knee.point.load, knee.before) == (8, None)


def test_one_level_shows_no_knee_and_invalid_levels_are_not_looked_at() -> None:
    (entry,) = knees([written_level(0, 4, 100, 50, 10)])
    assert entry["text"] == "One stable load (concurrency 4) shows no knee."
    assert knees([written_level(0, 4, 100, 50, 10, valid=False)]) == []
    rows = [
        written_level(n, load, rate, 50, 10, valid=load != 4)
        for n, (load, rate) in enumerate([(1, 10), (2, 20), (4, 5)])
    ]
    (entry,) = knees(rows)
    assert (entry["unstable"], entry["falling"]) == ([], [])


def test_each_server_setting_has_its_own_knee() -> None:
    rows = [
        written_level(n, load, min(load, places) * 10.0, 50, 10, server={"max_num_seqs": places})
        for n, (places, load) in enumerate((places, load) for places in (4, 8) for load in (2, 4, 8, 16))
    ]
    assert [(entry["server"], entry["concurrency"]) for entry in knees(rows)] == [
        ({"max_num_seqs": 4}, 4),
        ({"max_num_seqs": 8}, 8),
    ]


def test_in_an_open_loop_the_knee_is_a_rate() -> None:
    rows = [
        written_level(n, rate, min(rate, 5) * 512.0, 50, 10, open_loop=True) for n, rate in enumerate((1, 2, 4, 8, 16))
    ]
    (entry,) = knees(rows)
    assert (entry["concurrency"], entry["request_rate"], entry["interval"]) == (None, 8, [4, 16])
    assert "stops rising at 8 requests/s" in entry["text"]


def test_monotonic_series_is_the_closest_that_never_falls() -> None:
    assert monotonic([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]
    assert monotonic([4, 3, 2]) == [3, 3, 3]
    assert monotonic([]) == []
    assert math.isclose(sum(monotonic([5, 1, 7, 2])), 15)
