"""A level says how often it went through its dataset, and warns when prompts came again."""

from collections.abc import Sequence
from typing import Any

import pytest

from loadgen.stats.level import level_object
from tests.level_records import normal, plan, request


def level_of(rows: int | None, indices: Sequence[int]) -> dict[str, Any]:
    records = [normal(5, 50, 10, sent_ms=k, index=k) for k in indices]
    # A neighbouring level's request says nothing about this one.
    records.append(request(5, status="http_503", finished_ms=9, level=3, index=10_000))
    return level_object(plan(dataset_rows=rows), records, [])


def is_warned(level: dict[str, Any]) -> bool:
    return "dataset_repeated" in [warning["rule"] for warning in level["warnings"]]


def test_a_level_that_used_some_rows_has_gone_through_a_part_of_the_file() -> None:
    level = level_of(100, range(25))
    assert level["dataset_passes"] == 0.25 and not is_warned(level)


def test_a_level_that_used_every_row_once_is_not_warned_about() -> None:
    level = level_of(25, range(25))
    assert level["dataset_passes"] == 1.0 and not is_warned(level)


def test_rows_that_came_again_are_said_with_how_often() -> None:
    level = level_of(10, [3, 24, 0])
    assert level["dataset_passes"] == 2.5
    (warning,) = [warning for warning in level["warnings"] if warning["rule"] == "dataset_repeated"]
    assert "2.5 times" in warning["evidence"] and warning["remedy"]


@pytest.mark.parametrize("indices", [[], range(5)])
def test_without_a_dataset_there_are_no_passes(indices: Sequence[int]) -> None:
    assert level_of(None, indices)["dataset_passes"] is None


def test_a_level_without_a_request_has_gone_through_nothing() -> None:
    assert level_of(10, [])["dataset_passes"] == 0.0
