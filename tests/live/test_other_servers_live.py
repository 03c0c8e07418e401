"""Two real servers that are not vLLM, measured as they are: llama.cpp's and `transformers serve`; what they lack is stated."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from loadgen.record import OK, RequestRecord
from loadgen.spool import read_records
from server.process import ServerProcess
from tests.live.conftest import Say
from tests.live.environment import BuildError, Environment, ensure_llamacpp
from tests.live.launch import DIE_WITH_PARENT, free_port, on_cores, split_cores
from tests.live.scrape import scrape
from tests.live.sweep import LOADGEN

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]  # the first test also builds the environments

SLOTS = 2
INPUT_TOKENS = 48
READY_TIMEOUT_S = 180


@contextmanager
def serving(command: list[str], port: int, log: Path) -> Iterator[str]:
    """The base URL of a server on a core of its own, once it says that it is healthy."""
    core, _ = split_cores()
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with on_cores(frozenset({core})):
        server = ServerProcess([*DIE_WITH_PARENT, *command], log, env=variables)
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            assert server.alive(), server.tail()
            assert time.monotonic() < deadline, f"not ready: {server.tail()}"
            try:
                with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except (URLError, OSError):
                time.sleep(0.25)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


@pytest.fixture(scope="module")
def llamacpp(environment: Environment, say: Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        python = ensure_llamacpp(say)
    except BuildError as error:
        pytest.fail(str(error), pytrace=False)
    found = subprocess.run(
        [str(environment.python), "-I", "-c", "import runpy, sys; print(runpy.run_path(sys.argv[1])['gguf_file']())"]
        + [str(Path(__file__).with_name("model.py"))],
        capture_output=True,
        text=True,
        check=True,
    )
    port = free_port()
    command = [str(python), str(Path(__file__).with_name("llamacpp_server.py")), found.stdout.strip()]
    with serving([*command, str(port), str(SLOTS)], port, tmp_path_factory.mktemp("llamacpp") / "log") as base_url:
        yield base_url


@pytest.fixture(scope="module")
def transformers_serve(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [str(environment.python), str(environment.python.with_name("transformers")), "serve"]
    command += [str(environment.model_dir), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with serving(command, port, tmp_path_factory.mktemp("transformers") / "log") as base_url:
        yield base_url


def run(base_url: str, environment: Environment, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    _, cores = split_cores()
    with on_cores(cores):
        return subprocess.run(
            [str(LOADGEN), "run", "--base-url", base_url, "--tokenizer", str(environment.model_dir)]
            + ["--input-tokens", str(INPUT_TOKENS), "--warmup", "2s", "--metrics-port", "off"]
            + ["-o", str(folder / "run"), *options],
            capture_output=True,
            text=True,
            timeout=300,
        )


def of_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[RequestRecord]]:
    """The target of its provenance, its only level, its ok records."""
    target = json.loads((folder / "run/provenance.json").read_text())["target"]
    (level,) = json.loads((folder / "run/summary.json").read_text())["levels"]
    records = [one for path in (folder / "run/records").glob("*.spool") for one in read_records(path)]
    return target, level, [one for one in records if one.status == OK]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_llama_cpp_is_measured_with_exact_lengths_and_its_own_counters_agree(
    llamacpp: str, environment: Environment, tmp_path: Path, endpoint: str
) -> None:
    before = scrape(f"{llamacpp}/metrics").value("llamacpp:tokens_predicted_total")
    options = ["--concurrency", str(SLOTS), "--output-tokens", "8", "--duration", "25s", "--endpoint", endpoint]
    ended = run(llamacpp, environment, tmp_path, *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    target, level, done = of_run(tmp_path)
    assert len(done) >= 10
    assert {(one.input_tokens, one.output_tokens, one.finish_reason) for one in done} == {(INPUT_TOKENS, 8, "length")}
    assert level["input_tokens_mismatched"] == 0
    assert target["metrics"]["kind"] == "llamacpp" and target["server_version"].startswith("llama.cpp ")
    assert target["lacks"] == ["token counts in each event"]
    assert "server lacks token counts in each event" in " ".join(ended.stdout.split())
    made = scrape(f"{llamacpp}/metrics").value("llamacpp:tokens_predicted_total") - before
    # The probe's four, and those of requests that were given up at the end, are in its count only.
    assert 8 * len(done) <= made <= 8 * (len(done) + 2 * SLOTS) + 4


def test_transformers_serve_refuses_forced_lengths_in_words_that_help(
    transformers_serve: str, environment: Environment, tmp_path: Path
) -> None:
    ended = run(transformers_serve, environment, tmp_path, "--model", str(environment.model_dir))
    assert ended.returncode == 2
    assert "refuses ignore_eos and min_tokens" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("hint: set --no-ignore-eos")


def test_transformers_serve_is_measured_and_what_it_lacks_is_stated(
    transformers_serve: str, environment: Environment, tmp_path: Path
) -> None:
    options = ["--model", str(environment.model_dir), "--no-ignore-eos", "--concurrency", "1"]
    ended = run(transformers_serve, environment, tmp_path, *options, "--output-tokens", "4", "--duration", "25s")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    target, _, done = of_run(tmp_path)
    assert len(done) >= 10
    assert {one.input_tokens for one in done} == {INPUT_TOKENS}
    assert {one.output_tokens for one in done} <= {1, 2, 3, 4} and max(one.output_tokens or 0 for one in done) == 4
    assert target["metrics"]["kind"] is None and target["server_version"] is None
    assert set(target["lacks"]) >= {"a version", "token counts in each event"}
