"""What a person sees while a run goes on: one live line at a terminal, one line a level elsewhere. On standard error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gevent
from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadgen.controller.sweep_progress import Progress
from loadgen.scenario.model import Level
from loadgen.stats.asked import asked_of, asked_text, is_open
from loadgen.stats.latencies import FROM_SCHEDULE

_REFRESH_S = 0.25


class Display:
    """Draws `Progress` and the merged live counts until `close`."""

    def __init__(self, console: Console, progress: Progress, live_figures: Any) -> None:
        """`live_figures()` gives {"in_flight", "tokens_per_s", "failed"}; None where nothing has been measured."""
        self._console = console
        self._progress = progress
        self._live_figures = live_figures
        self._live: Live | None = None
        self._greenlet: gevent.Greenlet | None = None
        if console.is_terminal:
            # Drawn by a greenlet of ours: rich's own refresh thread would compete with the hub for the interpreter.
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
            self._greenlet = gevent.spawn(self._draw_forever)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, level: Level) -> None:
        """A level begins: said where there is no live line."""
        if self._live is None:
            self.say(f"level {self._progress.place(level.level)} begins: {_load(level)}")

    def close(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()
        if self._live is not None:
            self._live.stop()

    def _draw_forever(self) -> None:
        assert self._live is not None
        while True:
            self._live.update(Text(self.line(), no_wrap=True, overflow="ellipsis"), refresh=True)
            gevent.sleep(_REFRESH_S)

    def line(self) -> str:
        """The live line as plain text."""
        progress, figures = self._progress, self._live_figures()
        parts = []
        if progress.level is not None:
            settings = "".join(f", {key} {value}" for key, value in progress.named(progress.level).items())
            parts.append(f"level {progress.place(progress.level.level)}: {_load(progress.level)}{settings}")
        phase = progress.phase
        if progress.phase_s:
            phase += f" {min(progress.elapsed_s(), progress.phase_s):.0f}/{progress.phase_s:g} s"
        parts.append(phase)
        if figures["in_flight"] is not None:
            parts.append(f"{figures['in_flight']} in flight")
        if figures["tokens_per_s"] is not None:
            parts.append(f"{figures['tokens_per_s']:,.0f} output tok/s")
        if figures["failed"]:
            parts.append(f"{figures['failed']} failed")
        parts.append(f"about {progress.left_s():.0f} s left")
        return " · ".join(parts)


def _load(level: Level) -> str:
    if level.replay_speed is not None:
        return f"the dataset's instants {level.replay_speed:g} times as fast"
    return asked_text(level.concurrency, level.request_rate)


def level_line(level: Mapping[str, Any], progress: Progress) -> str:
    """A finished level in one line, as a log keeps it."""
    ok = level["requests"]["ok"]
    ttft = FROM_SCHEDULE["ttft"] if is_open(level) else "ttft"
    name, figure = "TTFT", ttft
    if level["not_streamed"] and level[f"p50_{ttft}_ms"] is None:
        name, figure = "not streaming, E2E", FROM_SCHEDULE["e2el"] if is_open(level) else "e2el"
    parts = [
        f"level {progress.place(level['level'])}",
        ", ".join([asked_of(level), *(f"{k} {v}" for k, v in level["server"].items())]),
        f"{ok} ok, {sum(level['requests'].values()) - ok} not",
        f"{name} P50/P95 {_number(level[f'p50_{figure}_ms'])}/{_number(level[f'p95_{figure}_ms'])} ms",
        f"{_number(level['output_throughput'])} output tok/s",
    ]
    if is_open(level):
        parts.append(
            f"{_number(level['completed_request_rate'])} of {_number(level['offered_request_rate'])} requests/s"
        )
    if not level["valid"]:
        parts.append("INVALID: " + ", ".join(reason["rule"] for reason in level["reasons"]))
    return " · ".join(parts)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
