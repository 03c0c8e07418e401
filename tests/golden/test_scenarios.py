"""Every file in scenarios/ says what it is for, stands in their table, and can be run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from loadgen.cli.reference import ROOT
from loadgen.scenario.load import load_scenario

FOLDER = ROOT / "scenarios"
SCENARIOS = sorted(FOLDER.glob("*.yaml"))
LOCUSTFILES = sorted(FOLDER.glob("*.py"))
EVERY = [*SCENARIOS, *LOCUSTFILES]


def opening(path: Path) -> str:
    """The comment that a scenario opens with, the docstring of a locustfile."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    lines = text.splitlines()
    return "\n".join(line[2:] for line in lines[: next(k for k, line in enumerate(lines) if not line.startswith("#"))])


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_it_opens_with_its_question_its_time_and_what_good_looks_like(path: Path) -> None:
    lines = opening(path).splitlines()
    labels = [line.partition(":")[0] for line in lines]
    places = [labels.index(label) for label in ("Question", "Time", "Good")]
    assert places == sorted(places)
    assert path.suffix == ".py" or places[0] == 0
    told = yaml.safe_load(opening(path)[opening(path).index("Question:") :].partition("\n\n")[0])
    assert told["Question"].endswith("?")
    assert all(len(told[label].split()) > 1 for label in ("Question", "Time", "Good"))


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_it_stands_in_the_table(path: Path) -> None:
    assert f"[{path.stem}]({path.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name)
def test_it_is_a_scenario_of_its_own_name_that_the_loader_takes(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.levels()


@pytest.mark.parametrize("path", LOCUSTFILES, ids=lambda path: path.name)
def test_a_locustfile_has_users_of_ours(path: Path) -> None:
    names = {
        base.id
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name)
    }
    assert names & {"LLMUser", "OpenLoopLLMUser"}
