"""A worker's own sight of the dataset: the controller's index where it can be seen, the same file or none."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from loadgen.datasets.at_hand import DatasetsAtHand
from loadgen.datasets.errors import DatasetError
from loadgen.datasets.survey import INDEX_FILE, Source, survey

SAMPLE = Path(__file__).parents[1] / "samples" / "datasets" / "prompts.jsonl"


@pytest.fixture
def workload(tmp_path: Path) -> dict[str, Any]:
    """As the controller tells it."""
    path, folder = tmp_path / "prompts.jsonl", tmp_path / "index"
    shutil.copy(SAMPLE, path)
    folder.mkdir()
    found = survey(Source(str(path)), folder)
    source = {"path": str(path), "format": "auto", "max_tokens": None, "block_tokens": 512}
    return {"kind": "dataset", "source": source, "folder": str(folder), "digest": found.digest}


@pytest.fixture
def at_hand() -> Any:
    datasets = DatasetsAtHand(lambda share: None)
    yield datasets
    datasets.close()


def test_a_worker_on_the_controllers_host_takes_its_index(workload: dict[str, Any], at_hand: DatasetsAtHand) -> None:
    assert at_hand.localised(workload) == workload


def test_a_worker_elsewhere_makes_the_same_index_once(workload: dict[str, Any], at_hand: DatasetsAtHand) -> None:
    index = (Path(workload["folder"]) / INDEX_FILE).read_bytes()
    shutil.rmtree(workload["folder"])
    local = at_hand.localised(workload)
    assert local["folder"] != workload["folder"]
    assert (Path(local["folder"]) / INDEX_FILE).read_bytes() == index
    assert at_hand.localised(workload) == local


@pytest.mark.parametrize("sees_index", [True, False])
def test_another_file_at_the_same_path_is_refused(
    sees_index: bool, workload: dict[str, Any], at_hand: DatasetsAtHand
) -> None:
    if not sees_index:
        shutil.rmtree(workload["folder"])
    with Path(workload["source"]["path"]).open("a") as file:
        file.write('{"prompt": "one more"}\n')
    with pytest.raises(DatasetError, match="not the controller's"):
        at_hand.localised(workload)


def test_a_missing_file_is_refused_and_a_made_up_workload_needs_none(
    workload: dict[str, Any], at_hand: DatasetsAtHand
) -> None:
    Path(workload["source"]["path"]).unlink()
    with pytest.raises(DatasetError, match="cannot be read here: No such file"):
        at_hand.localised(workload)
    assert at_hand.localised({"kind": "synthetic"}) == {"kind": "synthetic"}
