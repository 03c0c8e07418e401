"""Which level comes next: in every order, with settings that fail, after a run was cut off, and for a confirmation."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Level, Scenario
from loadgen.search.course import Course, planned_levels
from loadgen.search.failures import DIED, NOT_STARTED, failed_settings
from tests.public_sweeps import written_level

SWEEP = ("server.max_num_seqs=2,4", "load.concurrency=1,2")


def scenario(*sets: str) -> Scenario:
    return load_scenario(sets=[*sets, "seed=7"])


def done(course: Course, level: Level, **fields: Any) -> dict[str, Any]:
    """The level as a level object, its SLO kept up to 4 users."""
    users = level.concurrency
    ttft = 400.0 if (users or 0) <= 4 else 600.0
    made = written_level(
        level.level,
        users or level.request_rate or 0,
        50.0 * (users or 1),
        ttft,
        10,
        slo={"ttft_p95": 500.0},
        intervals={"p95_ttft_ms": [ttft - 20, ttft + 20], "p95_ttft_from_schedule_ms": [ttft - 20, ttft + 20]},
    )
    told = {"concurrency": users, "request_rate": level.request_rate, "run": level.run, "step": level.step}
    return {**made, **told, "server": course.named(level.server), "interrupted": False, **fields}


def all_of(course: Course, levels: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    levels = list(levels or [])
    while (level := course.next(levels)) is not None:
        assert len(levels) < 50
        assert level.level == (max((one["level"] for one in levels), default=-1) + 1)
        levels.append(done(course, level))
    return levels


def loads(levels: list[dict[str, Any]]) -> list[tuple[int, int | None]]:
    return [(level["server"]["max_num_seqs"], level["concurrency"]) for level in levels]


def test_levels_come_as_they_are_listed_settings_outermost() -> None:
    course = Course(scenario(*SWEEP))
    levels = all_of(course)
    assert loads(levels) == [(2, 1), (2, 2), (4, 1), (4, 2)]
    assert not course.open_ended and course.listed(levels[:1]) == Course(scenario(*SWEEP)).listed([])[1:]


def test_a_shuffle_follows_from_the_seed_and_is_the_same_for_every_setting() -> None:
    sets = ("server.max_num_seqs=2,4", "load.concurrency=1,2,3,4,5,6,7,8", "load.order=shuffled")
    levels = loads(all_of(Course(scenario(*sets))))
    first, second = [[users for seqs, users in levels if seqs == one] for one in (2, 4)]
    assert first == second != sorted(first) and sorted(first) == list(range(1, 9))
    again = load_scenario(sets=[*sets, "seed=8"]).levels()
    assert [level.concurrency for level in again[:8]] != first


def test_an_aba_sweep_ends_with_its_first_level_for_each_setting() -> None:
    levels = all_of(Course(scenario("server.max_num_seqs=2,4", "load.concurrency=4,1,2", "load.order=aba")))
    assert loads(levels) == [(n, users) for n in (2, 4) for users in (4, 1, 2, 4)]
    assert [level["step"] for level in levels] == list(range(8))


def test_a_run_that_was_cut_off_goes_on_with_the_level_that_was_interrupted() -> None:
    course = Course(scenario(*SWEEP))
    whole = all_of(course)
    for end in range(4):
        following = course.next(whole[:end])
        assert following is not None
        assert (following.level, following.step) == (end, end)


def test_a_server_that_died_has_its_level_repeated_once_under_the_next_number() -> None:
    course = Course(scenario(*SWEEP))
    first = course.next([])
    assert first is not None
    cut = done(course, first, interrupted=True, interrupted_by="It died.")
    death = {"server": {"max_num_seqs": 2}, "level": 0, "kind": DIED, "text": "It died."}
    again = course.next([cut], [death])
    assert again is not None and (again.level, again.step, again.concurrency) == (1, 0, 1)
    twice = course.next([cut], [death, {**death, "level": 1}])
    assert twice is not None and (twice.level, twice.step, twice.server["max_num_seqs"]) == (2, 2, 4)
    (told,) = failed_settings([death, {**death, "level": 1}], [])
    assert told["gave_up"] and told["text"].startswith("With max_num_seqs 2: It died. No further level")


def test_a_server_is_said_to_have_come_back_only_if_a_later_level_shows_it() -> None:
    death = {"server": {}, "level": 1, "kind": DIED, "text": "For 5 s no request was answered."}
    earlier = [{"server": {}, "level": 0}, {"server": {}, "level": 1}]
    (gone,) = failed_settings([death], earlier)
    assert gone["text"] == "For 5 s no request was answered. The run ended before the level was repeated."
    (back,) = failed_settings([death], [*earlier, {"server": {}, "level": 2}])
    assert back["text"].endswith("It was there again, and the level was repeated.")


def test_a_setting_that_did_not_start_is_left_out_and_others_go_on() -> None:
    course = Course(scenario(*SWEEP))
    failure = {"server": {"max_num_seqs": 2}, "level": 0, "kind": NOT_STARTED, "text": "Out of memory."}
    following = course.next([], [failure])
    assert following is not None and following.server["max_num_seqs"] == 4
    assert len(course.listed([], [failure])) == 2
    other = {**failure, "server": {"max_num_seqs": 4}}
    assert course.next([], [failure, other]) is None


def test_a_search_runs_for_each_setting_and_its_levels_are_counted_as_they_come() -> None:
    asked = scenario("server.max_num_seqs=2,4", "load.concurrency=auto", "slo.ttft_p95=500ms")
    course = Course(asked)
    levels = all_of(course)
    assert loads(levels) == [(n, users) for n in (2, 4) for users in (1, 2, 4, 8, 6, 5, 4, 5)]
    assert [level["run"] for level in levels[:8]] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert planned_levels(asked, levels) == 16
    assert planned_levels(asked, levels[:3]) == 4


def test_the_capacity_is_confirmed_by_arrivals_at_the_rate_that_it_completed() -> None:
    asked = scenario("load.concurrency=2,4,8", "slo.ttft_p95=500ms", "load.confirm=true")
    levels = all_of(Course(asked))
    *users, opened = levels
    assert [level["concurrency"] for level in users] == [2, 4, 8]
    assert (opened["concurrency"], opened["level"]) == (None, 3)
    assert opened["request_rate"] == pytest.approx(users[1]["served_request_rate"], rel=1e-3)
    assert planned_levels(asked, levels) == 4


def test_a_confirmation_that_is_invalid_is_tried_once_more_and_none_is_run_where_nothing_holds() -> None:
    course = Course(scenario("load.concurrency=2,4", "slo.ttft_p95=500ms", "load.confirm=true"))
    *users, opened = all_of(course)
    invalid = {**opened, "valid": False}
    again = course.next([*users, invalid])
    assert again is not None and again.request_rate is not None
    assert course.next([*users, invalid, {**invalid, "level": 3}]) is None
    nothing = Course(scenario("load.concurrency=8,9", "slo.ttft_p95=500ms", "load.confirm=true"))
    assert len(all_of(nothing)) == 2
