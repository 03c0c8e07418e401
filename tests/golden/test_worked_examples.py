"""The worked examples of the documents print what the program prints."""

from collections.abc import Iterator

import pytest

from loadgen.cli.reference import ROOT
from tests.golden.worked_examples import DOCUMENTS, measured_runs, with_output


@pytest.fixture(scope="module")
def _runs() -> Iterator[None]:
    with measured_runs():
        yield


@pytest.mark.usefixtures("_runs")
@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_worked_examples_of_a_document_are_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "```console\n$ loadgen " in text
    assert with_output(text) == text, "run python -m tests.golden.worked_examples --write"
