"""`loadgen compare`: a baseline and a run in, what changed and an exit code for CI out; measures nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadgen.errors import LoadgenError, UsageError


def compare(
    baseline: Annotated[
        Path, typer.Argument(metavar="BASELINE", help="Run folder, or file of `loadgen export --format baseline`.")
    ],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder (or such a file) that is held against it.")],
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            "--tolerance",
            metavar="FIGURE=PERCENT",
            help="By how much a figure may be worse, such as p95_ttft_ms=10%; adds the figure where it is not compared "
            "already; may be repeated.",
        ),
    ] = None,
    across: Annotated[
        str | None,
        typer.Option(
            "--across", metavar="CONDITION[,…]", help="What may differ, being what is compared, such as engine_version."
        ),
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the comparison as Markdown.")
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the comparison as JUnit XML.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the comparison as JSON; - is standard output.")
    ] = None,
) -> None:
    """Compare a run with a baseline, level by level, with intervals; for a gate in CI.

    A regression is a figure that is worse by more than its tolerance and by more than chance explains. Exit codes:
    0 none; 2 not comparable, with the reason, or the command line is wrong; 3 a level to compare is invalid or was not
    measured; 99 a regression. 3 beats 99.
    """
    import orjson
    from rich.console import Console

    from loadgen.comparison.compare import compare as compared
    from loadgen.comparison.figures import parse_tolerances
    from loadgen.comparison.renderings import junit, markdown, terminal
    from loadgen.comparison.snapshot import read_snapshot
    from loadgen.report.files import write_whole
    from loadgen.run_choice import chosen_run

    tolerances = parse_tolerances(tolerance or [])
    conditions = _conditions(across)
    made = compared(
        read_snapshot(chosen_run(baseline)), read_snapshot(chosen_run(run)), tolerances=tolerances, across=conditions
    )
    as_json = orjson.dumps(made, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    to_stdout = json_file == Path("-")
    if to_stdout:
        sys.stdout.write(as_json.decode())
    console = Console(stderr=to_stdout)
    console.print(terminal(made, width=console.width), highlight=False)
    files = [(markdown_file, markdown(made).encode()), (junit_file, junit(made))]
    files += [] if to_stdout else [(json_file, as_json)]
    for path, content in files:
        if path is not None:
            try:
                write_whole(path, content)
            except (OSError, ValueError) as error:  # a path without a name is a ValueError
                raise LoadgenError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from None
    raise typer.Exit(made["verdict"]["exit_code"])


def _conditions(text: str | None) -> list[str]:
    from loadgen.comparison.conditions import NAMES

    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise UsageError(
                f"--across names {name!r}, which is no condition.", hint=f"the conditions are {', '.join(NAMES)}"
            )
    return names
