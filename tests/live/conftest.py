"""The live tests' fixtures: a real vLLM for the whole session, and one real sweep against it that every check reads."""

from collections.abc import Callable, Iterator

import pytest

from tests.live.agreement import table
from tests.live.environment import BuildError, Environment, ensure_environment
from tests.live.launch import Vllm, running_vllm, split_cores
from tests.live.sweep import Sweep, run_sweep

Say = Callable[[str], None]


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Say:
    """Prints on the terminal at once: some steps take minutes, and silence looks like a hang."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def now(lines: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{lines}", flush=True)

    return now


@pytest.fixture(scope="session")
def environment(say: Say) -> Environment:
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
def sweep(vllm: Vllm, say: Say, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """The run that the checks are about; it fails here, with the command's own words, when the command does."""
    finished = run_sweep(vllm, tmp_path_factory.mktemp("sweep"))
    say(f"vLLM was ready after {vllm.startup_s:.0f} s\n" + "\n".join(table(finished)))
    return finished
