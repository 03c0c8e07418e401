"""Writes what is said of a run into its folder and to the terminal; used at the end of a run and by `loadgen report`."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from loadgen.judgement import judge, limits, scenario_of
from loadgen.run_folder import RunFolder, RunReader


def write_outputs(folder: RunFolder, console: Console) -> int:
    raise SystemExit("pending")
