"""From captured segments to the instant at which each byte was there: order, loss, repetition, wrap-around."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.audit_trail import SEGMENT, Segments
from loadgen.stats.segments import NOT_FOUND, Arrivals, Connections, arrivals

WRAP = 2**32
Sent = Sequence[tuple[int, int, int]]
"""(instant, first byte of the stream, bytes)."""


def staircase(sent: Sent, *, initial: int = 1000) -> Arrivals:
    stamps, offsets, lengths = (np.array(column, np.int64) for column in zip(*sent, strict=True))
    seq = ((initial + 1 + offsets) % WRAP).astype(np.uint32)
    return arrivals(initial, seq, lengths.astype(np.uint32), stamps)


def instants(sent: Sent, ends: Sequence[int], *, initial: int = 1000, about: int = 0) -> list[int]:
    return staircase(sent, initial=initial).of(np.array(ends, np.int64), about).tolist()


def test_an_event_arrives_with_the_segment_that_brings_its_last_byte() -> None:
    sent = [(10, 0, 100), (20, 100, 50), (30, 150, 50)]
    assert instants(sent, [1, 99, 100, 101, 150, 200]) == [10, 10, 10, 20, 20, 30]


def test_an_event_over_two_segments_arrives_with_the_second() -> None:
    assert instants([(10, 0, 100), (25, 100, 10)], [105]) == [25]


def test_several_events_in_one_segment_arrive_together() -> None:
    assert instants([(10, 0, 300)], [100, 200, 300]) == [10, 10, 10]


def test_a_segment_that_is_sent_again_counts_when_it_first_came() -> None:
    sent = [(10, 0, 100), (20, 100, 100), (50, 0, 100), (60, 100, 100), (70, 200, 10)]
    assert instants(sent, [100, 200, 210]) == [10, 20, 70]


def test_bytes_behind_a_lost_segment_are_there_when_it_has_been_sent_again() -> None:
    sent = [(10, 0, 100), (20, 200, 100), (30, 300, 100), (90, 100, 100), (95, 400, 10)]
    assert instants(sent, [100, 200, 300, 400, 410]) == [10, 90, 90, 90, 95]


def test_overlapping_segments_count_by_what_is_new_in_them() -> None:
    sent = [(10, 0, 100), (20, 50, 100), (30, 20, 200)]
    assert instants(sent, [100, 101, 150, 151, 220]) == [10, 20, 20, 30, 30]


def test_two_segments_that_changed_places_are_both_there_with_the_second() -> None:
    assert instants([(10, 100, 100), (12, 0, 100)], [50, 100, 200]) == [12, 12, 12]


def test_bytes_that_the_capture_missed_are_not_found_and_hide_nothing_behind_them() -> None:
    sent = [(10, 0, 100), (30, 200, 100), (40, 300, 100)]
    assert instants(sent, [100, 101, 150, 200, 201, 300, 400]) == [10, NOT_FOUND, NOT_FOUND, NOT_FOUND, 30, 30, 40]


def test_bytes_before_and_after_the_capture_are_not_found() -> None:
    assert instants([(10, 100, 100)], [100, 101, 200, 201]) == [NOT_FOUND, 10, 10, NOT_FOUND]
    nothing = arrivals(5, np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty(0, np.int64))
    assert nothing.of(np.array([1, 2]), 0).tolist() == [NOT_FOUND, NOT_FOUND]


@pytest.mark.parametrize("initial", [WRAP - 1, WRAP - 2, WRAP - 51, WRAP - 151])
def test_the_sequence_number_may_wrap_around_anywhere(initial: int) -> None:
    sent = [(10, 0, 100), (20, 100, 100), (30, 200, 100)]
    assert instants(sent, [50, 100, 150, 250, 300], initial=initial) == [10, 10, 20, 30, 30]


def test_a_connection_of_more_than_four_gigabytes_keeps_its_place() -> None:
    gigabyte = 2**30
    whole = [(k, k * gigabyte, gigabyte) for k in range(12)]
    ends = [k * gigabyte + 5 for k in (1, 5, 9)]
    assert instants(whole, ends, about=1) == [1, 5, 9]
    late = whole[9:]  # of the first levels nothing is kept
    assert instants(late, [9 * gigabyte + 5, 10 * gigabyte], about=9) == [9, 9]


@st.composite
def transmissions(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], int]:
    """Segments that bring a whole stream, in any order, some several times and cut otherwise; and its first number."""
    cuts = sorted(draw(st.sets(st.integers(1, 39), max_size=8)))
    edges = [0, *cuts, 40]
    pieces = [(a, b - a) for a, b in itertools.pairwise(edges)]
    extra = draw(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 10)), max_size=5))
    pieces += [(a, min(n, 40 - a)) for a, n in extra]
    shuffled = draw(st.permutations(pieces))
    return [(10 * (k + 1), a, n) for k, (a, n) in enumerate(shuffled)], draw(st.integers(0, WRAP - 1))


@given(transmissions())
def test_every_byte_is_there_when_it_and_all_before_it_have_come(case: tuple[list[tuple[int, int, int]], int]) -> None:
    sent, initial = case
    came = [min(at for at, a, n in sent if a <= byte < a + n) for byte in range(40)]
    expected = [max(came[:end]) for end in range(1, 41)]
    assert instants(sent, range(1, 41), initial=initial, about=10) == expected


def rows(*values: tuple[int, int, int, int, int, int]) -> Segments:
    return np.array(list(values), SEGMENT)


def test_connections_are_told_apart_by_port_peer_and_time() -> None:
    connections = Connections(
        rows(
            (10, 99, 0, 40_000, 0, 1),
            (11, 99, 0, 40_000, 0, 1),  # the opening was sent again
            (20, 100, 50, 40_000, 0, 0),
            (12, 499, 0, 40_001, 0, 1),
            (22, 500, 50, 40_001, 0, 0),
            (13, 799, 0, 40_000, 1, 1),
            (23, 800, 50, 40_000, 1, 0),
            (60, 5, 0, 40_000, 0, 1),  # the same port, used again
            (70, 6, 50, 40_000, 0, 0),
        )
    )

    def first(port: int, peer: int, about: int) -> int | None:
        found = connections.arrivals(port, peer, about)
        return None if found is None else int(found.of(np.array([50]), about)[0])

    assert first(40_000, 0, 25) == 20
    assert first(40_001, 0, 25) == 22
    assert first(40_000, 1, 25) == 23
    assert first(40_000, 0, 75) == 70
    assert first(40_002, 0, 25) is None
    assert first(40_000, 255, 25) is None


def test_a_connection_whose_opening_was_missed_is_not_guessed_at() -> None:
    connections = Connections(rows((20, 100, 50, 40_000, 0, 0), (60, 5, 0, 40_000, 0, 1), (70, 6, 50, 40_000, 0, 0)))
    assert connections.arrivals(40_000, 0, 25) is None
    assert connections.arrivals(40_000, 0, 75) is not None
    assert Connections(rows()).arrivals(40_000, 0, 25) is None
