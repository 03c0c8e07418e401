"""The warden: whatever a server's processes do, none of them outlives the order to end, or the one who started it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.process import NotReadyError, ServerProcess
from server.warden import guarded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets orphans be adopted")

# Three processes: itself, a child in its group, and one in a group of its own.
FAMILY = "sleep 600 & setsid sleep 600 & echo ready; wait"


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A variable that marks the processes of this test; none may be left."""
    mark = f"WARDEN_TEST={os.getpid()}-{tmp_path.name}"
    yield mark
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            inherited = mark.encode() in (entry / "environ").read_bytes().split(b"\0")
            if inherited and (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def gone(mark: str) -> bool:
    deadline = time.monotonic() + 20
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not marked(mark)


def started(
    tmp_path: Path, mark: str, script: str = FAMILY, *, patience_s: float = 0.3, on_stop: tuple[str, ...] = ()
) -> ServerProcess:
    name, _, value = mark.partition("=")
    process = ServerProcess(
        guarded(["sh", "-c", script], patience_s=patience_s, on_stop=on_stop),
        tmp_path / "log",
        env={**os.environ, name: value},
        patience_s=20,
        tied=True,
    )
    process.await_line("ready", 30)
    return process


def test_every_process_ends_also_one_that_left_the_group(mark: str, tmp_path: Path) -> None:
    process = started(tmp_path, mark, patience_s=10)
    assert len(marked(mark)) == 4  # with the warden
    process.stop()
    assert marked(mark) == []
    assert process.exit_code == 128 + signal.SIGTERM


def test_a_process_that_ignores_sigterm_is_killed_when_patience_is_over(mark: str, tmp_path: Path) -> None:
    process = started(tmp_path, mark, "trap '' TERM; echo ready; while :; do sleep 1; done")
    process.stop()
    assert marked(mark) == []
    assert process.exit_code == 128 + signal.SIGKILL


def test_a_stop_that_is_interrupted_ends_everything_first(mark: str, tmp_path: Path) -> None:
    process = started(tmp_path, mark, "trap '' TERM; echo ready; while :; do sleep 1; done")

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process.stop(interrupted)
    assert marked(mark) == []


def test_children_go_with_a_command_that_is_killed(mark: str, tmp_path: Path) -> None:
    """vLLM's engine would stay, and keep the GPU (vllm-project/vllm#55510)."""
    process = started(tmp_path, mark)
    shell = next(
        pid for pid in marked(mark) if "echo ready" in Path(f"/proc/{pid}/cmdline").read_text() and pid != process.pid
    )
    os.kill(shell, signal.SIGKILL)
    assert gone(mark)
    process.stop()
    assert process.exit_code == 128 + signal.SIGKILL


def test_the_exit_code_is_the_commands_own(tmp_path: Path) -> None:
    process = ServerProcess(guarded(["sh", "-c", "exit 7"], patience_s=1), tmp_path / "log", tied=True)
    with pytest.raises(NotReadyError, match="ended with exit code 7"):
        process.await_line("never", 30)


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    process = ServerProcess(guarded(["no-such-program"], patience_s=1), tmp_path / "log", tied=True)
    with pytest.raises(NotReadyError, match=r"exit code 127[\s\S]*no-such-program cannot be started"):
        process.await_line("never", 30)


def test_the_stop_command_runs_before_the_signal_and_its_failure_stops_nothing(mark: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = f"trap 'cat {told} > {tmp_path}/seen; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    started(tmp_path, mark, script, patience_s=10, on_stop=("sh", "-c", f"echo stop > {told}; exit 3")).stop()
    assert (tmp_path / "seen").read_text() == "stop\n"
    started(tmp_path, mark, on_stop=("no-such-program",)).stop()
    assert "no-such-program failed" in (tmp_path / "log").read_text()


def test_all_ends_when_whoever_started_it_is_killed(mark: str, tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from server.process import ServerProcess
from server.warden import guarded
process = ServerProcess(guarded(["sh", "-c", {FAMILY!r}], patience_s=0.3), Path({str(tmp_path / "log")!r}), tied=True)
process.await_line("ready", 30)
print("up", flush=True)
time.sleep(600)
"""
    name, _, value = mark.partition("=")
    starter = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, name: value}
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == "up\n"
    assert len(marked(mark)) == 5
    starter.kill()
    starter.communicate()
    assert gone(mark)


def test_a_folder_named_server_where_it_is_started_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server/__init__.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    process = ServerProcess(guarded(["echo", "ready"], patience_s=1), tmp_path / "log", tied=True)
    assert process.await_line("ready", 30) == ""
    process.stop()


def test_a_command_line_shows_what_is_guarded() -> None:
    words = guarded(["vllm", "serve", "m"], patience_s=15, on_stop=["docker", "stop", "a b"])
    assert words[words.index("--") + 1 :] == ["vllm", "serve", "m"]
    assert shlex.split(words[words.index("--on-stop") + 1]) == ["docker", "stop", "a b"]


def test_a_process_whose_parent_has_gone_already_ends_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", "from server.parent import tie_to_parent; tie_to_parent(1 << 22)"])
    assert ended.returncode == 1
