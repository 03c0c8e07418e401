"""Takes the report of a calibration, gives the tables and sentences for people; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.report.figures import ABSENT, WEAK, WEAK_MEANS, number

Report = Mapping[str, Any]

MOST_WAITING = 0.05
"""Share of time above which a worker that waits for its core is worth a sentence."""


def render(report: Report) -> Group:
    """Reported against true, what the client itself did, the ceiling, and under which conditions."""
    lines: list[RenderableType] = []
    if report["steps"]:
        lines += [_errors(report), Text(), _client(report), Text()]
        lines += [Text(sentence) for sentence in findings(report)]
    else:
        lines.append(Text("Nothing was measured."))
    lines += [Text(sentence, style="dim") for sentence in conditions(report)]
    return Group(*lines)


def _errors(report: Report) -> Table:
    made = _table("streams", "", "P50 ms, error", "P95 ms, error", "P99 ms, error")
    for step in report["steps"]:
        for row, name in enumerate(("ttft", "itl")):
            cells = [_against_truth(step[name], percentile) for percentile in ("p50", "p95", "p99")]
            made.add_row("" if row else f"{step['streams']:,}", name.upper(), *cells)
    return made


def _against_truth(figures: Report, percentile: str) -> str:
    """`50.04 +0.030 +0.06%`: what is reported, how much more than the truth that is, and what share of it."""
    found = figures[percentile]
    reported, error, percent = found["reported_ms"], found["error_ms"], found["error_percent"]
    if error is None:
        return ABSENT
    share = f" {percent:+.2f}%" if percent is not None else ""
    return f"{WEAK if percentile in figures['weak'] else ''}{reported:.2f} {error:+.3f}{share}"


def _client(report: Report) -> Table:
    made = _table(
        "streams",
        "tokens/s",
        "arrival error\nP50/P95/P99 µs",
        "read to-\ngether",
        "CPU µs\n/token",
        "peak\nMB",
        "loop lag\nP99 ms",
    )
    made.add_column("\nverdict", no_wrap=True)
    for step in report["steps"]:
        error, share = step["arrival_error"], step["coalesced_share"]
        made.add_row(
            f"{step['streams']:,}",
            f"{step['tokens_per_s']['true']:,.0f}",
            "/".join(_whole(error[f"p{percent}_us"]) for percent in (50, 95, 99)),
            ABSENT if share is None else f"{100 * share:.2g}%",
            number(step["cpu_us_per_token"]),
            number(step["worker_peak_rss_mb"]),
            number(step["loop_lag_p99_ms"]),
            _verdict(step),
        )
    return made


def _verdict(step: Report) -> str:
    if step["client_bound"]:
        return "client-bound"
    return "kept up"


def _whole(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}"


def _table(*headings: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    most = max(heading.count("\n") for heading in headings)
    for heading in headings:
        made.add_column("\n" * (most - heading.count("\n")) + heading, justify="right", no_wrap=True)
    return made


def findings(report: Report) -> list[str]:
    """What the figures come to, a sentence each."""
    ceiling, bound = report["ceiling"], report["client_bound_at"]
    said = []
    if ceiling is not None:
        load = f"{_streams(ceiling)}, {ceiling['tokens_per_s']:,.0f} tokens/s"
        said.append(f"One worker kept up with {load}{'' if ceiling['reached'] else '; its ceiling was not reached'}.")
    if bound is not None:
        evidence = " ".join(found["evidence"] for found in bound["reasons"])
        said.append(f"Marked client-bound at {_streams(bound)}: {evidence}")
    for step in report["steps"]:
        others = [found["evidence"] for found in step["reasons"]] if not step["client_bound"] else []
        if others:
            said.append(f"Not valid at {_streams(step)} for another reason: {' '.join(others)}")
    waited = [step for step in report["steps"] if (step["worker_waited_share"] or 0) > MOST_WAITING]
    if waited:
        shares = ", ".join(f"{100 * step['worker_waited_share']:.2g}% of the time" for step in waited)
        said.append(
            f"At {_streams(*waited)} the worker waited {shares} for its core, which something else used: stop that, and "
            "calibrate again."
        )
    late = [step for step in report["steps"] if (step["server_late_p99_ms"] or 0) > report["conditions"]["itl_ms"] / 2]
    if late:
        times = ", ".join(f"{step['server_late_p99_ms']:.3g} ms" for step in late)
        said.append(
            f"At {_streams(*late)} the server itself was {times} late at P99 (something else used its core?); that is in "
            "the truth, not in the error."
        )
    return said


def _streams(*steps: Report) -> str:
    counts = [step["streams"] for step in steps]
    return f"{', '.join(f'{count:,}' for count in counts)} {'stream' if counts == [1] else 'streams'}"


def conditions(report: Report) -> list[str]:
    """How it was measured, and what that does not show."""
    c, host = report["conditions"], report["host"]
    cores = c["cores"]
    stamps = {None: "not known", 1.0: "kernel"}.get(c["kernel_stamps"], "user space, at least in part")
    window = f"window {c['window_s']:g} s after {c['warmup_s']:.3g} s of warm-up"
    machine = f"{host['cpu'] or host['machine']} · {host['cores']} cores · {host['kernel']}"
    said = [
        f"true TTFT {c['ttft_ms']:g} ms · gap {c['itl_ms']:g} ms · up to {c['output_tokens']} tokens an answer · {window}",
        f"{c['transport']} · arrival stamps {stamps}",
        f"{machine} · Python {host['python']} · loadgen {host['loadgen']}",
        "Errors are reported minus true; true is what the server's own log says of the same window.",
        "Another machine, TLS or a real network needs a calibration of its own.",
    ]
    if any(step[name]["weak"] for step in report["steps"] for name in ("ttft", "itl")):
        said.append(WEAK_MEANS)
    if cores["server"] is None:
        said.append(
            "NOT SEPARATED: there is one core only, so server and worker took time from each other; these figures are "
            "those of a worse client than yours is beside a remote server."
        )
    else:
        said.append(
            f"server on core {cores['server']}, worker on core {cores['worker']}, controller on "
            f"{', '.join(map(str, cores['controller']))}"
        )
        if cores["same_physical_core"]:
            said.append("NOT SEPARATED: server and worker ran on two hyper-threads of one core.")
    said.append(f"The climb ended because {report['ended']}.")
    return said
