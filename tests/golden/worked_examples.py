"""Runs the worked examples of the documents on runs made in virtual time; `python -m tests.golden.worked_examples --write`
writes their output into the documents, without the option it names the documents that are out of date."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("LOCUST_SKIP_MONKEY_PATCH", "1")
os.environ["COLUMNS"] = "110"

import locust  # noqa: F401  (before aiohttp: see CONTRIBUTING)
from typer.testing import CliRunner

from loadgen.cli import app
from loadgen.cli.reference import ROOT
from tests.virtual_run import VirtualRun

DOCUMENTS = ("docs/plan.md", "docs/compare.md", "docs/claims.md")
RUNS = {
    "runs/chat-capacity": VirtualRun(
        concurrency=(1, 8, 16, 20), max_num_seqs=(8, 16), window_s=60, warmup_s=5, spread=0.3
    ),
    "runs/longer-answers": VirtualRun(
        concurrency=(8, 16), max_num_seqs=(16,), window_s=60, warmup_s=5, spread=0.3, output_tokens=80, seed=2
    ),
    "runs/main": VirtualRun(concurrency=(4, 16), spread=0.3, window_s=30, seed=3, name="regression"),
    "runs/change": VirtualRun(concurrency=(4, 16), spread=0.3, window_s=30, seed=4, slower=1.12, name="regression"),
    "runs/upgraded": VirtualRun(
        concurrency=(4, 16), spread=0.3, window_s=30, seed=5, target={"server_version": "0.12.0"}, name="regression"
    ),
}
"""The runs that the examples name. Their server is the simulator's engine."""

_BLOCK = re.compile(r"^```console\n\$ (loadgen (?:plan|compare|check-claim|kv-cache|export) .*?)\n```$", re.M | re.S)


@contextlib.contextmanager
def measured_runs() -> Iterator[Path]:
    """A folder in which the runs lie, as the working directory."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="loadgen-examples-") as folder:
        for name, run in RUNS.items():
            run.write(Path(folder) / name)
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def with_output(text: str) -> str:
    """A document with each example's output as it is now; to be called where the runs lie."""

    def run(block: re.Match[str]) -> str:
        lines = block[1].splitlines()
        count = 1
        while lines[count - 1].endswith("\\"):
            count += 1
        command = "\n".join(lines[:count])
        ended = CliRunner().invoke(app, shlex.split(command.replace("\\\n", " "))[1:])
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        shown = (ended.stdout + ended.stderr).rstrip("\n")
        told = "\n".join(line.rstrip() for line in shown.splitlines())
        return f"```console\n$ {command}\n{told}\n```"

    return _BLOCK.sub(run, text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.worked_examples")
    parser.add_argument("--write", action="store_true", help="write the documents that are out of date")
    write = parser.parse_args().write
    stale = 0
    with measured_runs():
        for name in DOCUMENTS:
            path = ROOT / name
            text = path.read_text(encoding="utf-8")
            wanted = with_output(text)
            if wanted == text:
                continue
            if write:
                path.write_text(wanted, encoding="utf-8")
            print(f"{name}: {'written' if write else 'out of date'}")
            stale += not write
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
