"""When the load under plain Locust is steady enough to be a level."""

from __future__ import annotations

import pytest

from loadgen.locustfile.steps import AHEAD_NS, Closed, Opened, Steps

S = 1_000_000_000


def looked(steps: Steps, at_s: float, users: int, *, steady: bool = True, asked: int | None = None) -> object:
    return steps.look(round(at_s * S), steady=steady, asked=users if asked is None else asked, counts={"User": users})


def test_a_window_opens_when_all_users_are_there_and_ends_with_the_stop() -> None:
    steps = Steps(warmup_ns=0)
    assert looked(steps, 1, 3, steady=False, asked=8) is None
    assert looked(steps, 2, 8) == Opened(2 * S + AHEAD_NS)
    assert looked(steps, 3, 8) is None
    assert steps.stop(30 * S, steady=True) == Closed(2 * S + AHEAD_NS, 30 * S, kept=True, changed=False)


def test_the_warm_up_is_left_out() -> None:
    steps = Steps(warmup_ns=10 * S)
    assert looked(steps, 0, 8) == Opened(10 * S + AHEAD_NS)


def test_a_test_that_is_stopped_in_its_warm_up_has_no_level() -> None:
    steps = Steps(warmup_ns=10 * S)
    looked(steps, 0, 8)
    closed = steps.stop(9 * S, steady=True)
    assert closed is not None and not closed.kept and closed.end_ns == closed.start_ns


def test_a_step_ends_with_the_last_look_at_which_nothing_had_changed() -> None:
    steps = Steps(warmup_ns=0)
    looked(steps, 0, 4)
    looked(steps, 8, 4)
    assert looked(steps, 8.05, 4, steady=False, asked=6) == Closed(AHEAD_NS, 8 * S, kept=True, changed=True)
    assert looked(steps, 8.1, 5, steady=False, asked=6) is None
    assert looked(steps, 9, 6) == Opened(9 * S + AHEAD_NS)


@pytest.mark.parametrize(("length_s", "kept"), [(4, False), (6, True)])
def test_a_step_of_less_than_five_seconds_is_no_level(length_s: float, kept: bool) -> None:
    steps = Steps(warmup_ns=0)
    looked(steps, 0, 4)
    looked(steps, length_s, 4)
    closed = looked(steps, length_s + 0.05, 6)
    assert isinstance(closed, Closed) and closed.kept == kept
    assert (steps.kept, steps.left_out) == (int(kept), int(not kept))


def test_the_only_window_of_a_test_is_a_level_however_short() -> None:
    steps = Steps(warmup_ns=0)
    looked(steps, 0, 4)
    closed = steps.stop(2 * S, steady=True)
    assert closed is not None and closed.kept


def test_the_last_step_of_several_is_no_level_when_it_is_short() -> None:
    steps = Steps(warmup_ns=0)
    looked(steps, 0, 4)
    looked(steps, 10, 4)
    looked(steps, 10.05, 6)
    looked(steps, 11, 6)
    closed = steps.stop(12 * S, steady=True)
    assert closed is not None and not closed.kept


def test_spawning_that_changes_nothing_does_not_cut_a_window_in_two() -> None:
    # A shape's tick with another spawn rate has Locust spawn nobody; it says so for a moment.
    steps = Steps(warmup_ns=0)
    looked(steps, 0, 4)
    assert looked(steps, 6, 4, steady=False) is None
    assert looked(steps, 6.1, 4) is None
    assert steps.stop(20 * S, steady=True) == Closed(AHEAD_NS, 20 * S, kept=True, changed=False)


def test_users_of_other_classes_are_another_load_although_they_are_as_many() -> None:
    steps = Steps(warmup_ns=0)
    steps.look(0, steady=True, asked=4, counts={"Reader": 4})
    steps.look(10 * S, steady=True, asked=4, counts={"Reader": 4})
    assert steps.look(11 * S, steady=False, asked=4, counts={"Reader": 4}) is None
    closed = steps.look(12 * S, steady=True, asked=4, counts={"Reader": 1, "Writer": 3})
    assert closed == Closed(AHEAD_NS, 10 * S, kept=True, changed=True)


def test_without_users_there_is_no_load() -> None:
    assert looked(Steps(warmup_ns=0), 1, 0) is None
    assert Steps(warmup_ns=0).stop(S, steady=True) is None
