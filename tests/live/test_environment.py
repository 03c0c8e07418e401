"""The build that `make live` rests on: what it says when it fails, and that nothing half-built is ever used."""

import threading
from pathlib import Path

import pytest

from tests.live import environment as building
from tests.live import model
from tests.live.environment import BuildError, Environment, ensure_environment
from tests.live.launch import ARGUMENTS

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]  # the first test also builds the environment


def test_a_finished_environment_is_used_again_without_a_step(environment: Environment) -> None:
    said: list[str] = []
    assert ensure_environment(said.append) == environment
    assert said == []


@pytest.fixture
def hopeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and requirements that no index has; pip sees that without asking one."""
    monkeypatch.setenv("LOADGEN_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "REQUIREMENTS", (str(tmp_path / "nowhere"),))
    return tmp_path


def test_a_failed_step_is_named_with_the_end_of_its_log_and_a_hint(hopeless: Path) -> None:
    said: list[str] = []
    with pytest.raises(BuildError) as failure:
        ensure_environment(said.append)
    message = str(failure.value)
    assert "failed to install vLLM (exit code 1)" in message
    assert "nowhere'" in message
    assert message.splitlines()[-1].startswith("hint: ")
    assert len(said) == 1
    assert str(hopeless / "build-vllm-env.log") in said[0]


def test_a_half_built_environment_is_not_taken_for_a_finished_one(hopeless: Path) -> None:
    python = hopeless / "vllm-env" / "bin" / "python"
    for _ in range(2):
        with pytest.raises(BuildError):
            ensure_environment(lambda _: None)
        assert python.exists()


def test_a_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    lock, order = tmp_path / "build.lock", []
    waits = threading.Event()

    def say(line: str) -> None:
        order.append(line)
        waits.set()

    def second() -> None:
        with building._only_builder(lock, say):
            order.append("second")

    with building._only_builder(lock, order.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(10)
        order.append("first")
    thread.join(10)
    assert order == [f"another build holds {lock}; waiting for it", "first", "second"]


def test_the_documents_name_every_requirement_and_argument() -> None:
    text = (Path(__file__).parents[2] / "docs" / "live-tests.md").read_text()
    for word in (*building.REQUIREMENTS, *building.UNUSABLE, model.REQUIREMENT, *ARGUMENTS):
        assert word in text, word
