"""A folder of runs stands for its newest run that has ended; a path that is not there is said to be so."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from loadgen.errors import UsageError
from loadgen.run_choice import chosen_run
from loadgen.run_folder import RunFolder


def made(path: Path, started: str, *, levels: bool = True) -> RunFolder:
    folder = RunFolder.create(path, scenario_yaml="name: x\n", nonce="n")
    (path / "provenance.json").write_bytes(orjson.dumps({"started": started}))
    if levels:
        folder.journal.write_text("{}\n")
    return folder


def test_newest_run_of_a_folder_is_taken_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "b", "2026-01-05T10:00:00+00:00")
    made(tmp_path / "a", "2026-01-06T10:00:00+00:00")
    assert chosen_run(tmp_path) == tmp_path / "a"
    told = capsys.readouterr()
    assert told.out == "" and f"run: {tmp_path / 'a'}, the newest of 2 runs" in told.err


def test_run_that_goes_on_or_measured_nothing_is_passed_over(tmp_path: Path) -> None:
    made(tmp_path / "a", "2026-01-05T10:00:00+00:00")
    made(tmp_path / "b", "2026-01-06T10:00:00+00:00", levels=False)
    with made(tmp_path / "c", "2026-01-07T10:00:00+00:00").lock():
        assert chosen_run(tmp_path) == tmp_path / "a"


def test_run_folder_itself_is_taken_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path / "a", "2026-01-05T10:00:00+00:00")
    assert chosen_run(folder.path) == folder.path
    assert capsys.readouterr().err == ""


def test_path_that_is_not_there_is_said_not_to_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        chosen_run(tmp_path / "nowhere")
