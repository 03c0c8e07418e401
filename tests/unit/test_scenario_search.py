"""Keys of searches and orders: what they take, what they refuse, and that they are written back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.errors import ScenarioError
from loadgen.scenario.load import load_scenario

SLO = "slo.ttft_p95=500ms"


@pytest.mark.parametrize("key", ["concurrency", "request_rate"])
@pytest.mark.parametrize("text", ["auto", "AUTO", " auto "])
def test_auto_is_a_search_and_survives_being_written(tmp_path: Path, key: str, text: str) -> None:
    scenario = load_scenario(sets=[SLO], options={f"load.{key}": text})
    assert scenario.load.searches and scenario.load.open_loop is (key == "request_rate")
    assert len(scenario.levels()) == 1
    path = tmp_path / "written.yaml"
    path.write_text(scenario.to_yaml())
    assert f"{key}: auto" in path.read_text()
    assert load_scenario(path) == scenario


def test_a_search_begins_where_it_is_told_and_goes_no_further() -> None:
    load = load_scenario(sets=[SLO, "load.request_rate=auto", "load.search.min=0.5", "load.search.max=20"]).load
    assert load.search_bounds == (0.5, 0.5, 20)
    assert load_scenario(sets=[SLO, "load.concurrency=auto"]).load.search_bounds == (1, 1, 1024)
    assert load_scenario(sets=[SLO, "load.request_rate=auto"]).load.search_bounds == (1, 0.01, 10_000)


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["load.concurrency=auto"], "slo has none"),
        (["load.confirm=true"], "slo has none"),
        ([SLO, "load.concurrency=auto", "load.num_runs=2"], "load.num_runs has no effect"),
        ([SLO, "load.request_rate=auto", "load.order=aba"], "load.order has no effect"),
        ([SLO, "load.request_rate=4", "load.confirm=true"], "load.confirm offers the capacity of users"),
        ([SLO, "load.concurrency=auto", "load.search.min=1.5"], "whole numbers"),
        ([SLO, "load.concurrency=auto", "load.search.min=8", "load.search.max=8"], "must be below load.search.max"),
        ([SLO, "load.concurrency=auto", "load.search.precision=0.1%"], "between 1% and 50%"),
        ([SLO, "load.concurrency=auto", "load.request_rate=auto"], "a level has one of them"),
        (["load.order=random"], "'ascending', 'shuffled' or 'aba'"),
    ],
)
def test_what_makes_no_sense_together_is_refused(sets: list[str], sentence: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load_scenario(sets=sets)
    assert sentence in str(refused.value)


def test_an_order_changes_when_levels_run_and_not_which() -> None:
    def levels(*sets: str) -> list[int | None]:
        return [level.concurrency for level in load_scenario(sets=["load.concurrency=8,1,4", "seed=1", *sets]).levels()]

    assert levels() == [8, 1, 4]
    assert levels("load.order=ascending") == [1, 4, 8]
    assert levels("load.order=aba") == [8, 1, 4, 8]
    assert sorted(levels("load.order=shuffled") or []) == [1, 4, 8]
    assert levels("load.order=aba", "load.num_runs=2") == [8, 1, 4, 8] * 2
    assert len(load_scenario(sets=["load.concurrency=8", "load.order=aba"]).levels()) == 1
