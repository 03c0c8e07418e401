"""docs/benchmarks.md from the results: medians, ratios, how many runs each figure rests on. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bench.side_by_side.results import Entry, Results
from bench.side_by_side.rungs import ALL, COLD_GENERATIONS, INPUT_TOKENS, OUTPUT_TOKENS, RUNGS, TTFT_MS, Rung
from bench.side_by_side.toolbox import TOOLS

Figures = dict[str, Any]
LATE_MS = 1.0
"""A server later than this at P99 is told of: the truth is then of a disturbed load."""
NONE = "–"

_INTRODUCTION = f"""\
# Benchmarks

<!-- Written by `make bench` from bench/results.json; edit bench/side_by_side/page.py instead. -->

What this tool and others report of one server whose timing is known, side by side on one machine, and what they cost.
`make bench` makes these tables (about {{minutes}} minutes for three runs of everything); `make bench-quick` one run of two rungs.

## How it is measured

- The server is `server.metronome`, alone on one core: every answer has its first token {TTFT_MS:g} ms after the request's arrival, then
  one token in each event at a fixed gap. It logs the true instant of every send and, by the kernel's stamp, of every arrival.
- The client, its whole process tree, is confined to another core. Each run has a fresh server.
- Chat, streaming, {OUTPUT_TOKENS} output tokens forced, prompts of about {INPUT_TOKENS} tokens, a closed loop (where not said
  otherwise).
- **Steady**: the first requests are spread by the tool's own means over about one request's length; after the ramp, one more
  request's length and a second, the window opens. What the tool itself reports of the requests that began in the
  window is compared with the truth of the same requests. **Cold**: all streams at once, no warm-up, every request
  counts, {COLD_GENERATIONS} requests a stream; many tools start so unless told otherwise.
- *true* is what the server's log says of those requests **by the tool's own definition** of the figure (below). *error* is reported
  / true − 1. Percentiles are nearest-rank.
- *CPU* is user and system time of the process tree (sampled from `/proc` once a second) in the window / tokens that the server
  sent in it; *whole* is that of the whole command (`wait4`), start and report included, / all tokens.
- *memory* is the largest sum of proportional set sizes of the tree, read every three seconds. *first request* is from
  starting the command to the arrival of its first request for tokens, be it a probe or a warm-up.
- *load* is the tokens that arrived in the window / those of a client that loses no time between two requests.
- Each figure is the median of its runs; *runs* says of how many. A tool that gave no result has the reason in its row.
"""


def write(results: Results, only: Sequence[str] = ()) -> str:
    """The whole page, or of the rungs only those named."""
    rungs = [rung for rung in RUNGS if not only or rung.name in only]
    parts = [_INTRODUCTION.format(minutes=round(minutes())), _conditions(results)]
    parts += [_rung(rung, results) for rung in rungs]
    parts.append(_tools(results))
    return "\n".join(parts)


def minutes(runs: int = 3) -> float:
    """About how long everything takes: load, and what a tool needs beside it."""
    beside_s = {"ours": 6, "aiohttp": 3, "c": 2, "vllm": 15, "guidellm": 12, "aiperf": 14, "inference-perf": 16}
    return runs * sum(beside_s[tool] + rung.load_s + rung.request_s for rung in RUNGS for tool in rung.tools) / 60


def _conditions(results: Results) -> str:
    used = sorted({run["session"] for rung in RUNGS for tool in rung.tools for run in results.newest(tool, rung.name)})
    if not used:
        return "No run yet.\n"
    lines = []
    for number in used:
        session = results.sessions[number]
        host = session["host"]
        lines.append(
            f"Measured on {session['date']}: {host['cpu']}, {host['cores']} cores, {host['memory_gb']} GB, Linux {host['kernel']}, "
            f"Python {host['python']}."
        )
    return "\n".join(lines) + "\n"


def _rung(rung: Rung, results: Results) -> str:
    accuracy = _table(
        ["", "TTFT ms", "true", "error %", "ITL ms", "true", "error %", "load", "runs"],
        [_row(tool, results.newest(tool, rung.name), _accuracy) for tool in rung.tools],
    )
    ours = _figures(results.newest("ours", rung.name))
    cost = _table(
        ["", "CPU µs/token", "ours ÷ it", "whole", "ours ÷ it", "memory MB", "ours ÷ it", "first request s", "runs"],
        [_row(tool, results.newest(tool, rung.name), lambda own: _cost(own, ours)) for tool in rung.tools],
    )
    return f"## {title(rung)}\n\nP50 / P95 / P99:\n\n{accuracy}\n{cost}{_remarks(rung, results)}"


def _remarks(rung: Rung, results: Results) -> str:
    """What tools say against their own figures, runs with a late server, and runs that failed beside others that did not."""
    lines = []
    for tool in rung.tools:
        runs = results.newest(tool, rung.name)
        remarks = [run["figures"]["remark"] for run in runs if "figures" in run and run["figures"]["remark"]]
        if remarks:
            said = "; ".join(dict.fromkeys(remarks))
            lines.append(f"{TOOLS[tool].title} calls {len(remarks)} of its {len(runs)} runs invalid: {said}.")
        late_ms = [run["figures"]["server_late_p99_ms"] for run in runs if "figures" in run]
        if late_ms and max(late_ms) > LATE_MS:
            count = sum(ms > LATE_MS for ms in late_ms)
            lines.append(
                f"{TOOLS[tool].title}: in {count} of {len(runs)} runs the server itself was late, by {max(late_ms):.0f} ms at P99; "
                "something else ran on its core, or it was asked for more than it can."
            )
        failures = [run["failure"] for run in runs if "failure" in run]
        if failures and len(failures) < len(runs):
            lines.append(f"{TOOLS[tool].title} gave no result in {len(failures)} of {len(runs)} runs: {failures[-1]}.")
    return "".join(f"\n{line}\n" for line in lines)


def title(rung: Rung) -> str:
    """Heading of a rung."""
    load = f"{rung.streams:,} streams × {rung.tokens_per_s} tokens/s"
    if rung.burn:
        return f"{load}, our worker's loop blocked for 15 ms of every 20 ms"
    return f"{load}, {'all at once' if rung.start == 'cold' else 'steady'}"


def _row(tool: str, runs: list[Entry], cells: Callable[[Figures], list[str]]) -> list[str]:
    name = TOOLS[tool].title
    own = _figures(runs)
    if own:
        good = sum("figures" in run for run in runs)
        return [name, *cells(own), f"{good}" if good == len(runs) else f"{good} of {len(runs)}"]
    if not runs:
        return [name, "not run yet", *[""] * 7]
    reason = runs[-1]["failure"].replace("|", "\\|")
    return [name, f"no result: {reason}", *[""] * 6, f"0 of {len(runs)}"]


def _figures(runs: list[Entry]) -> Figures:
    """Medians over the runs that gave figures; of errors, the median of each run's error. Empty without a good run."""
    good = [run["figures"] for run in runs if "figures" in run]
    if not good:
        return {}
    own: Figures = {"itl_kind": good[0]["itl_kind"]}
    for name in ("ttft", "itl"):
        own[f"{name}_ms"] = _medians([one[f"{name}_ms"] for one in good])
        own[f"{name}_true_ms"] = _medians([one[f"{name}_true_ms"] for one in good])
        own[f"{name}_error"] = _medians([errors(one, name) for one in good])
    for name in (
        *("cpu_us_per_token", "cpu_us_per_token_whole", "peak_pss_mb", "first_request_s", "load_share", "failed"),
    ):
        values = [one[name] for one in good if one[name] is not None]
        own[name] = statistics.median(values) if values else None
    return own


def errors(figures: Figures, name: str) -> list[float]:
    """Reported / true − 1, in percent, at each percentile."""
    return [
        (reported / true - 1) * 100
        for reported, true in zip(figures[f"{name}_ms"], figures[f"{name}_true_ms"], strict=True)
    ]


def _medians(rows: list[list[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _accuracy(own: Figures) -> list[str]:
    itl = _numbers(own["itl_ms"], "{:.2f}") + (" ¹" if own["itl_kind"] == "mean of a request" else "")
    return [
        _numbers(own["ttft_ms"], "{:.2f}"),
        _numbers(own["ttft_true_ms"], "{:.2f}"),
        _numbers(own["ttft_error"], "{:+.2f}"),
        itl,
        _numbers(own["itl_true_ms"], "{:.2f}"),
        _numbers(own["itl_error"], "{:+.2f}"),
        f"{own['load_share']:.1%}" + (f", {own['failed']:g} failed" if own["failed"] else ""),
    ]


def _cost(own: Figures, ours: Figures) -> list[str]:
    cells = []
    for name, digits in (("cpu_us_per_token", 1), ("cpu_us_per_token_whole", 1), ("peak_pss_mb", 0)):
        value = own[name]
        cells.append(NONE if value is None else f"{value:.{digits}f}")
        reference = ours.get(name)
        cells.append(NONE if value is None or reference is None or own is ours else f"{reference / value:.2f}")
    return [*cells, f"{own['first_request_s']:.2f}"]


def _numbers(values: list[float], form: str) -> str:
    return " / ".join(form.format(value) for value in values)


def _tools(results: Results) -> str:
    lines = ["## The tools\n"]
    for tool in ALL:
        used = {run["version"] for rung in RUNGS for run in results.newest(tool, rung.name) if run["version"]}
        version = f" {', '.join(sorted(used))}" if used else ""
        lines.append(f"- **{TOOLS[tool].title}**{version}: {TOOLS[tool].how}. {TOOLS[tool].definition}.")
    lines.append(
        "\nThe request's arrival at the server is a few microseconds after its last byte was sent, on one machine; a tool whose TTFT "
        "begins earlier, before it has written the request, has that time in its error, for it is its own.\n\n"
        "¹ Only the mean gap of each request is kept; compared with the true mean gap of each request.\n"
    )
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
