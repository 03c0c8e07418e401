"""`python -m bench.side_by_side`: runs what is missing, appends each result to the JSON, writes the page from it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.side_by_side import environments, page
from bench.side_by_side.measured import ToolError
from bench.side_by_side.one_run import CLIENT_CPU, ROOT, SERVER_CPU, measure
from bench.side_by_side.results import Results, rounded
from bench.side_by_side.rungs import ALL, RUNGS, Rung
from bench.side_by_side.toolbox import TOOLS, Tool
from bench.side_by_side.tools.c_client import build

RESULTS = ROOT / "bench" / "results.json"
QUICK = ("64x100", "512x100")
PAGE = ROOT / "docs" / "benchmarks.md"


def main(argv: list[str] | None = None) -> int:
    """Runs; 0 also when a tool failed, which is a result."""
    options = _parser().parse_args(argv)
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            results = Results.read(Path(folder) / "results.json")
            options.rungs, options.runs = QUICK, 1
            _run(options, results)
        print(page.write(results, only=QUICK))
        return 0
    results = Results.read(options.results)
    if not options.page_only:
        _run(options, results)
    if options.results == RESULTS or options.page:
        (options.page or PAGE).write_text(page.write(results))
    return 0


def _run(options: argparse.Namespace, results: Results) -> None:
    missing = {SERVER_CPU, CLIENT_CPU} - os.sched_getaffinity(0)
    if missing:
        sys.exit(f"The benchmark needs cores {SERVER_CPU} and {CLIENT_CPU}: one for the server, one for the client.")
    unusable: dict[str, str] = {}
    versions: dict[str, str] = {}
    for name in options.tools:
        try:
            environments.ensure(name, say)
            if name == "c":
                build()
            versions[name] = TOOLS[name].version()
        except ToolError as error:
            unusable[name] = str(error)
    session = results.begin_session(new=options.new)
    # Run by run over everything: a slow drift of the machine meets all tools alike.
    for number in range(options.runs):
        for rung in RUNGS:
            if rung.name not in options.rungs:
                continue
            for name in rung.tools:
                if name in options.tools and results.count(name, rung.name, session) <= number:
                    entry = {"tool": name, "version": versions.get(name), "rung": rung.name, "session": session}
                    _one(results, entry, TOOLS[name], rung, unusable.get(name), options.keep)


def _one(
    results: Results, entry: dict[str, Any], tool: Tool, rung: Rung, unusable: str | None, keep: Path | None
) -> None:
    entry["at"] = datetime.now(UTC).isoformat(timespec="seconds")
    entry["load_before"] = round(os.getloadavg()[0], 2)
    name = entry["tool"]
    try:
        if unusable is not None:
            raise ToolError(unusable)
        entry["figures"] = rounded(measure(tool, rung, keep=keep and keep / f"{name}-{rung.name}"))
        say(f"{rung.name} {name}: {summary(entry['figures'])}")
    except ToolError as error:
        entry["failure"] = str(error)
        say(f"{rung.name} {name}: no result: {error}")
    results.runs.append(entry)
    results.write()


def summary(figures: dict[str, object]) -> str:
    return (
        f"TTFT {figures['ttft_ms']} of {figures['ttft_true_ms']}, ITL {figures['itl_ms']} of {figures['itl_true_ms']}, "
        f"{figures['cpu_us_per_token']} µs a token, {figures['peak_pss_mb']} MB, {figures['wall_s']} s"
    )


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.side_by_side", description=__doc__)
    rungs = [rung.name for rung in RUNGS]
    parser.add_argument("--tools", nargs="+", choices=ALL, default=ALL, metavar="TOOL", help=", ".join(ALL))
    parser.add_argument("--rungs", nargs="+", choices=rungs, default=rungs, metavar="RUNG", help=", ".join(rungs))
    parser.add_argument("--runs", type=int, default=3, help="of each tool on each rung (default 3)")
    parser.add_argument("--quick", action="store_true", help="one run of two rungs, shown and not kept")
    parser.add_argument("--new", action="store_true", help="a new session: runs that are there already do not count")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file that results are appended to")
    parser.add_argument("--page", type=Path, help="page to write; docs/benchmarks.md for bench/results.json")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the results")
    parser.add_argument("--keep", type=Path, help="folder in which each tool's own files are left")
    return parser


if __name__ == "__main__":
    sys.exit(main())
