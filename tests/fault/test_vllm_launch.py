"""A vLLM that does not start, is not ours, dies or will not die: each with its reason, and no process left.

`tests/fake_vllm.py` plays vLLM on the simulator, with the second process that the real one has.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadgen.cli.serve_vllm import settings_of
from loadgen.errors import UsageError
from server.vllm.gpu_memory import GpuMemory, read_used
from server.vllm.launch import Recipe, StartError, VllmServer, start_vllm
from server.vllm.port import free_port, holder, is_free
from tests.simulator_process import running_simulator

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests/fake_vllm.py"
LOADGEN = [sys.executable, "-m", "loadgen"]


def recipe(mode: str = "", command: str | None = None) -> Recipe:
    template = command or f"{sys.executable} {FAKE} serve {{model}} {{args}}"
    return Recipe(command=template, env={"PYTHONPATH": str(ROOT), "FAKE_VLLM": mode}, served_model_name="fake")


def start(
    tmp_path: Path, mode: str = "", *, settings: dict[str, object] | None = None, timeout_s: float = 60
) -> VllmServer:
    asked = {"model": "/models/fake", "max_num_seqs": 4, "max_model_len": 2048, **(settings or {})}
    return start_vllm(recipe(mode), asked, log=tmp_path / "server.log", port=0, timeout_s=timeout_s, pause=time.sleep)


def fakes(mark: str) -> list[int]:
    """Processes with `mark` in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                state = (entry.parent / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(entry.parent.name)] if state not in "ZX" else []
    return found


def gone(mark: str, within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while fakes(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A text in the command line of every server of this test; whatever is left of them is a failure, and is ended."""
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setattr(sys.modules[__name__], "recipe", _marked(recipe, mark))
    yield mark
    left = fakes(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def _marked(make: Callable[..., Recipe], mark: str) -> Callable[..., Recipe]:
    return lambda mode="", command=None: make(mode, f"{sys.executable} {FAKE} serve {{model}} --mark {mark} {{args}}")


def test_a_server_that_starts_is_ours_tells_its_settings_and_leaves_nothing(mark: str, tmp_path: Path) -> None:
    server = start(tmp_path, settings={"enforce_eager": True, "swap_space": 4})
    assert len(fakes(mark)) == 3  # the warden, the API server, its engine
    assert server.nonce.startswith("loadgen-")
    assert server.effective["served_models"] == ["fake"]
    assert (server.effective["max_num_seqs"], server.effective["max_model_len"]) == (4, 2048)
    assert server.effective["enforce_eager"] is True
    assert server.unconfirmed == ["swap_space"]  # of which its log says nothing
    assert (tmp_path / "server.log").read_text().startswith("$ PYTHONPATH=")
    assert server.stop() == []
    assert fakes(mark) == []
    assert is_free("127.0.0.1", server.port)


@pytest.mark.parametrize(
    ("text", "kind", "hint"),
    [
        ("OSError: [Errno 98] Address already in use", "port_taken", "leave server.port out"),
        ("RuntimeError: No CUDA GPUs are available", "no_gpu", "nvidia-smi"),
    ],
)
def test_a_start_that_fails_is_explained_by_its_log(mark: str, tmp_path: Path, text: str, kind: str, hint: str) -> None:
    (tmp_path / "failure.txt").write_text(text)
    with pytest.raises(StartError, match="exit code 1") as caught:
        start(tmp_path, f"die:{tmp_path / 'failure.txt'}")
    assert (caught.value.kind, hint in caught.value.hint) == (kind, True)
    assert text in caught.value.log_tail


def test_a_flag_that_vllm_does_not_know_is_named(mark: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="does not know --max-num-sequences 4") as caught:
        start(tmp_path, settings={"max_num_sequences": 4})
    assert caught.value.kind == "unknown_flag"


def test_a_server_that_never_gets_ready_is_given_up_at_the_deadline(mark: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"

    def pause(seconds: float) -> None:
        while "Loading" not in log.read_text():
            time.sleep(seconds)
        time.sleep(seconds)

    with pytest.raises(StartError, match=r"not ready within 2 s; its last line is: Loading safetensors") as caught:
        start_vllm(recipe("hang"), {}, log=log, port=0, timeout_s=2, pause=pause)
    assert caught.value.kind == "not_ready"
    assert "target.ready_timeout" in caught.value.hint


def test_a_wait_that_is_interrupted_leaves_no_server(mark: str, tmp_path: Path) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_vllm(recipe("hang"), {}, log=tmp_path / "log", port=0, timeout_s=60, pause=interrupted)
    assert gone(mark)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no-such-program cannot be started"):
        start_vllm(
            Recipe(command="no-such-program {args}"), {}, log=tmp_path / "log", port=0, timeout_s=5, pause=time.sleep
        )


def test_a_leftover_server_on_the_wanted_port_is_never_measured(tmp_path: Path) -> None:
    with running_simulator() as leftover:
        with pytest.raises(
            StartError, match=f"Port {leftover.port} is taken by process {leftover.process.pid}"
        ) as caught:
            start(tmp_path, settings={"port": leftover.port})
        assert "a server that serves 'sim' answers there" in str(caught.value)
        assert holder(leftover.port) is not None
        # And where the port only seems ours, the second name tells.
        elsewhere = Recipe(
            command=f"{sys.executable} {FAKE} serve {{model}} {{args}}",
            env={"PYTHONPATH": str(ROOT)},
            url=f"http://127.0.0.1:{leftover.port}",
        )
        with pytest.raises(StartError, match="is not the server that was started: it serves 'sim'") as caught:
            start_vllm(
                elsewhere,
                {"model": "m"},
                log=tmp_path / "log",
                port=free_port("127.0.0.1"),
                timeout_s=60,
                pause=time.sleep,
            )
        assert caught.value.kind == "wrong_server"


def test_a_command_that_does_not_pass_the_names_on_is_refused(mark: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="is not the server that was started") as caught:
        start(tmp_path, "no_nonce")
    assert "{args}" in caught.value.hint


def test_a_server_that_runs_with_something_else_is_refused(mark: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="max_model_len was asked to be 2048 and is 4096") as caught:
        start(tmp_path, "other_model_len")
    assert caught.value.kind == "mismatch"


def test_a_stop_command_ends_what_signals_do_not_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container does, of which only the client is ours."""
    monkeypatch.setattr("server.vllm.launch._PATIENCE_S", 0.5)
    detached = f"setsid -f {sys.executable} {FAKE} serve {{model}} {{args}}"
    wrapper = f"sh -c '{detached}; sleep 600'"
    stopped = tmp_path / "stopped"
    made = Recipe(
        command=wrapper,
        on_stop=f"sh -c 'echo {{port}} > {stopped}'",
        env={"PYTHONPATH": str(ROOT)},
        served_model_name="fake",
    )
    server = start_vllm(made, {"model": "/models/fake"}, log=tmp_path / "log", port=0, timeout_s=60, pause=time.sleep)
    assert server.stop() == []
    assert stopped.read_text() == f"{server.port}\n"
    assert is_free("127.0.0.1", server.port)


# GPU memory


class FakeNvml:
    """NVML as `nvidia-ml-py` gives it, with its own structure for memory."""

    class NVMLError(Exception):
        pass

    def __init__(self, *used: int, broken: bool = False) -> None:
        self.used, self.broken = used, broken

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise self.NVMLError

    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.used)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:  # noqa: N802
        pynvml = pytest.importorskip("pynvml")
        return pynvml.c_nvmlMemory_t(total=80 << 30, free=(80 << 30) - self.used[handle], used=self.used[handle])


def test_a_gpus_memory_in_use_is_read_from_nvml() -> None:
    assert read_used(FakeNvml(7 << 30, 3 << 30)) == [7 << 30, 3 << 30]
    assert read_used(FakeNvml(1, broken=True)) == []


def test_memory_that_is_not_given_back_is_told_and_slack_is_not() -> None:
    readings = iter([[70 << 30, 1 << 30], [2 << 30, 1 << 30]])
    assert GpuMemory([2 << 30, 1 << 30], lambda: next(readings)).await_free(lambda _: None) == []
    held = GpuMemory([0, 0], lambda: [9 << 30, 100 << 20]).await_free(lambda _: None, timeout_s=-1)
    assert held == [
        "GPU 0 still has 9.0 GiB more in use than before the server was started: nvidia-smi shows who holds it."
    ]
    assert GpuMemory([], lambda: [9 << 30]).await_free(lambda _: None) == []


# A whole run


def run(tmp_path: Path, mark: str, *options: str, mode: str = "") -> subprocess.Popen[str]:
    scenario = tmp_path / "vllm.yaml"
    made = recipe(mode)
    scenario.write_text(
        json.dumps(
            {
                "target": {"server": "vllm", "model": "fake"},
                "workload": {"input_tokens": 32, "output_tokens": 16},
                "load": {"concurrency": 2, "warmup": "300ms", "duration": "1s"},
                "server": {"command": made.command, "env": made.env, "model": "/models/fake", "max_model_len": 2048},
                "metrics": {"port": "off"},
            }
        )
    )
    return subprocess.Popen(
        [*LOADGEN, "run", str(scenario), "-o", str(tmp_path / "run"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_level(process: subprocess.Popen[str], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not (folder / "records/journal.jsonl").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def await_window(folder: Path) -> None:
    """Until half a second of the first level has been measured; the journal is told of it ahead."""
    (line, *_) = (folder / "records/journal.jsonl").read_text().splitlines()
    while time.monotonic_ns() < json.loads(line)["plan"]["window_start_ns"] + 500_000_000:
        time.sleep(0.05)


def test_a_sweep_restarts_vllm_for_each_setting_and_each_level_tells_what_it_ran_with(
    mark: str, tmp_path: Path
) -> None:
    process = run(tmp_path, mark, "--sweep", "max_num_seqs=2,4")
    out, err = process.communicate(timeout=120)
    assert process.returncode in (0, 3), out + err
    levels = json.loads((tmp_path / "run/summary.json").read_text())["levels"]
    assert [level["server"] for level in levels] == [{"max_num_seqs": 2}, {"max_num_seqs": 4}]
    assert [level["effective"]["max_num_seqs"] for level in levels] == [2, 4]
    assert {level["effective"]["max_model_len"] for level in levels} == {2048}
    provenance = json.loads((tmp_path / "run/provenance.json").read_text())
    assert provenance["target"]["effective"]["max_num_seqs"] == 2
    log = (tmp_path / "run/server.log").read_text()
    assert [line for line in log.splitlines() if line.startswith("$ ")] != []
    assert log.count("$ PYTHONPATH=") == 2
    assert "starting vLLM with --max-model-len 2048 --max-num-seqs 2" in " ".join(err.split())


def test_a_server_that_is_killed_in_a_level_ends_it_with_its_reason_and_is_started_anew(
    mark: str, tmp_path: Path
) -> None:
    process = run(tmp_path, mark, "--duration", "3s")
    await_level(process, tmp_path / "run")
    await_window(tmp_path / "run")
    servers = [pid for pid in fakes(mark) if "warden" not in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(parent_of_all(servers), signal.SIGKILL)
    out, err = process.communicate(timeout=100)
    assert process.returncode in (0, 3), out + err
    assert "vLLM ended with exit code 137" in " ".join(err.split())
    first, again = json.loads((tmp_path / "run/summary.json").read_text())["levels"]
    assert (first["interrupted"], again["interrupted"]) == (True, False)
    assert (tmp_path / "run/server.log").read_text().count("$ PYTHONPATH=") == 2
    assert gone(mark)


def parent_of_all(pids: list[int]) -> int:
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    return next(pid for pid, parent in parents.items() if parent not in parents)


def test_a_run_that_is_killed_leaves_no_server(mark: str, tmp_path: Path) -> None:
    process = run(tmp_path, mark, "--duration", "60s")
    await_level(process, tmp_path / "run")
    assert len(fakes(mark)) >= 3
    process.kill()
    process.communicate(timeout=60)
    assert gone(mark)


def test_a_server_that_does_not_start_is_a_failure_with_its_log_kept_and_no_run_folder(
    mark: str, tmp_path: Path
) -> None:
    (tmp_path / "failure.txt").write_text(
        "ValueError: To serve at least one request with the model's max seq len (2048), (4.0 GiB KV cache is needed, which "
        "is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated maximum "
        "model length is 512."
    )
    process = run(tmp_path, mark, mode=f"die:{tmp_path / 'failure.txt'}")
    out, err = process.communicate(timeout=60)
    told = " ".join(err.split())
    assert process.returncode == 1, out + err
    assert "The KV cache is too small for one sequence of max_model_len 2048" in told
    assert err.rstrip().splitlines()[-1].startswith("hint: set max_model_len to at most 512")
    assert not (tmp_path / "run").exists()
    assert "ValueError: To serve" in (tmp_path / "run-server.log").read_text()


# `loadgen serve vllm`


def test_serve_vllm_shows_what_runs_and_ends_all_of_it_at_a_signal(mark: str, tmp_path: Path) -> None:
    command = [*LOADGEN, "serve", "vllm", "/models/fake", "--serve-cmd", str(recipe().command), "--max-num-seqs", "4"]
    process = subprocess.Popen(
        [*command, "--log", str(tmp_path / "server.log")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    shown = [process.stdout.readline() for _ in range(9)]
    assert shown[0].startswith("vLLM listening on http://127.0.0.1:")
    assert "  max_num_seqs            4\n" in shown
    assert len(fakes(mark)) >= 3
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert gone(mark)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("--max-num-seqs 8 --enforce-eager", {"max_num_seqs": 8, "enforce_eager": True}),
        ("--dtype=half --no-enable-prefix-caching", {"dtype": "half", "enable_prefix_caching": False}),
        ('--hf-overrides {"a":1}', {"hf_overrides": {"a": 1}}),
        ("--served-model-name a b", {"served_model_name": ["a", "b"]}),
        ("--lora-modules a=/x,y", {"lora_modules": "a=/x,y"}),
    ],
)
def test_vllms_own_options_become_settings(words: str, settings: dict[str, object]) -> None:
    assert settings_of(words.split()) == settings


def test_a_word_without_an_option_is_refused() -> None:
    with pytest.raises(UsageError, match="8 belongs to no option"):
        settings_of(["8"])
