"""The live tests' fixtures: a real vLLM for the whole session, and one real sweep against it that every check reads."""

from collections.abc import Iterator

import pytest
from environment import BuildError, Environment, ensure_environment
from launch import Vllm, running_vllm, split_cores
from sweep import Sweep, run_sweep


@pytest.fixture(scope="session")
def environment(pytestconfig: pytest.Config) -> Environment:
    """Built when it is not there yet: said on the terminal, since the first time takes minutes."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", flush=True)

    try:
        return ensure_environment(say)
    except BuildError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def vllm(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    core, _ = split_cores()
    with running_vllm(environment, core, tmp_path_factory.mktemp("vllm") / "server.log") as server:
        yield server


@pytest.fixture(scope="session")
def sweep(vllm: Vllm, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """The run that the checks are about; it fails here, with the command's own words, when the command does."""
    return run_sweep(vllm, tmp_path_factory.mktemp("sweep"))
