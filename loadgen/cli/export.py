"""`loadgen export`: a run in, the same in the form of another program out; measures nothing."""

from __future__ import annotations

import contextlib
import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer

from loadgen.errors import LoadgenError, UsageError

_FORMATS = {"vllm": "vllm", "csv": "requests.csv", "baseline": "baseline.json"}
"""Each format and where it goes in the run folder."""


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, as `loadgen run` printed it.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="vllm|csv|baseline",
            help="vllm: a folder of results as of `vllm bench sweep serve`. csv: a row a request. baseline: a small file "
            "to commit, for `loadgen compare`.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File, or folder for vllm; by default in the run folder. - is standard output.",
        ),
    ] = None,
) -> None:
    """Write a run as vLLM's benchmark results, as a CSV of its requests, or as a baseline to compare with.

    Exit codes: 0 written; 1 it cannot be written; 2 the command line is wrong; 3 a baseline without a valid level.
    """
    if form not in _FORMATS:
        raise UsageError(f"--format is {form!r}; it takes {', '.join(_FORMATS)}.")
    if form == "vllm" and output == Path("-"):
        raise UsageError("--format vllm writes a folder, a file for each level.", hint="give -o DIR")
    from loadgen.run_choice import chosen_run

    run = chosen_run(run)
    path = output or run / _FORMATS[form]
    try:
        {"vllm": _vllm, "csv": _csv, "baseline": _baseline}[form](run, path)
    except OSError as error:
        raise LoadgenError(
            f"{path} cannot be written: {error.strerror or error}.", hint="give another with -o"
        ) from None
    if path != Path("-"):
        typer.echo(f"written: {path}")


def _vllm(run: Path, path: Path) -> None:
    import orjson

    from loadgen.export.vllm_result import result_path, vllm_result
    from loadgen.measured_run import read_run
    from loadgen.report.files import write_whole
    from loadgen.run_folder import RunFolder
    from loadgen.run_reader import RunReader
    from loadgen.stats.settings import swept_settings

    measured = read_run(run)
    swept = swept_settings(measured.levels)
    written: set[str] = set()
    # Read twice: the levels say what is swept, and the records of all levels together may not fit into memory.
    for level, data in zip(measured.levels, RunReader(RunFolder.open(run)).all(), strict=True):
        content = orjson.dumps(vllm_result(measured, level, data), option=orjson.OPT_INDENT_2)
        # A list or a shape may come back to a load within one sweep.
        numbers = (result_path({**level, "run": number}, swept) for number in itertools.count(level["run"]))
        name = next(one for one in numbers if one not in written)
        written.add(name)
        write_whole(path / name, content)


def _csv(run: Path, path: Path) -> None:
    from loadgen.export.requests_csv import write_requests
    from loadgen.run_folder import RunFolder
    from loadgen.run_reader import RunReader

    levels = RunReader(RunFolder.open(run)).all()
    with contextlib.ExitStack() as stack:
        to_stdout = path == Path("-")
        file = sys.stdout if to_stdout else stack.enter_context(path.open("w", encoding="utf-8", newline=""))
        write_requests(file, levels)


def _baseline(run: Path, path: Path) -> None:
    from loadgen.comparison.snapshot import baseline_json, snapshot_of
    from loadgen.measured_run import read_run
    from loadgen.report.files import write_whole

    content = baseline_json(snapshot_of(read_run(run)))
    if path == Path("-"):
        sys.stdout.write(content.decode())
    else:
        write_whole(path, content)
