"""Taking a run up again: what stays, what is refused, and what is said of conditions that changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.controller.resume import changes, resumed, with_resumption
from loadgen.errors import UsageError
from loadgen.judgement import scenario_of
from loadgen.run_folder import RunFolder
from loadgen.search.course import Course
from tests.virtual_run import VirtualRun


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return VirtualRun(concurrency=(1, 4, 8), window_s=6, warmup_s=2).write(tmp_path_factory.mktemp("run") / "whole")


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A run whose controller was killed in its last level, in the middle of a line of the journal."""
    path = VirtualRun(concurrency=(1, 4, 8), window_s=6, warmup_s=2).write(tmp_path / "cut")
    journal = RunFolder(path).journal
    journal.write_bytes(journal.read_bytes()[:-20])
    return path


def test_finished_levels_stay_and_the_one_that_was_cut_off_is_next(cut: Path) -> None:
    run = resumed(cut, scenario_of(RunFolder(cut)))
    assert [level["concurrency"] for level in run.levels] == [1, 4]
    following = Course(run.scenario).next(run.levels)
    assert following is not None and (following.level, following.concurrency) == (2, 8)


def test_a_scenario_without_a_seed_takes_that_of_the_run_and_metrics_may_differ(cut: Path) -> None:
    given = scenario_of(RunFolder(cut)).model_copy(update={"seed": None})
    given = given.model_copy(update={"metrics": given.metrics.model_copy(update={"port": None})})
    run = resumed(cut, given)
    assert run.scenario.seed == 1 and run.scenario.metrics.port is None


def test_another_scenario_is_refused_with_the_keys_that_differ(cut: Path) -> None:
    given = scenario_of(RunFolder(cut))
    load = given.load.model_copy(update={"duration": 7.0})
    with pytest.raises(UsageError, match=r"another scenario: load\.duration \(6s, now 7s\)"):
        resumed(cut, given.model_copy(update={"load": load}))


def test_a_run_of_which_nothing_is_left_and_what_is_no_run_are_refused(whole: Path, tmp_path: Path) -> None:
    scenario = scenario_of(RunFolder(whole))
    with pytest.raises(UsageError, match="Nothing is left to run"):
        resumed(whole, scenario)
    with pytest.raises(UsageError, match="is not a run folder"):
        resumed(tmp_path, scenario)


def test_a_run_that_still_goes_on_is_refused(cut: Path) -> None:
    folder = RunFolder(cut)
    with folder.lock(), pytest.raises(UsageError, match="still going on"):
        resumed(cut, scenario_of(folder))


def test_conditions_that_changed_are_told_and_kept_beside_the_first_ones() -> None:
    before = {"target": {"model": "m", "server_version": "1"}, "workers": [{}], "controller": {"cpu": "A"}}
    now = {"target": {"model": "m", "server_version": "2"}, "workers": [{}, {}], "controller": {"cpu": "B"}}
    told = changes(before, now)
    assert [sentence.split(": ")[0] for sentence in told] == ["warning"] * 3
    assert "the version of the server was 1 when the run began, and is 2 now" in told[0]
    assert changes(before, before) == [] == changes({}, now)
    once = with_resumption(before, now)
    assert once["resumed"] == [now] and once["target"] == before["target"]
    assert with_resumption(once, now)["resumed"] == [now, now]
    assert with_resumption({}, now) == now
