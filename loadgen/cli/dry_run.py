"""`loadgen run --dry-run`: a scenario in; its levels in their order, the time they take and the servers out. Starts nothing."""

from __future__ import annotations

import shlex
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from loadgen.errors import UsageError
from loadgen.scenario.model import Level, Scenario
from loadgen.scenario.quantities import format_duration
from loadgen.stats.asked import asked_text
from server.simulator.settings import SimulatorSettings
from server.vllm.command import CommandError, Start, command_words, flag_words


def print_plan(scenario: Scenario, resume: Path | None) -> None:
    """Prints what `loadgen run` would do, with `resume` only what is left. Raises UsageError as it would."""
    scenario = scenario.with_seed()
    measured: list[dict[str, Any]] = []
    if resume is not None:
        # Numpy and the records: not for a plan of a run that is still to come.
        from loadgen.controller.resume import resumed

        run = resumed(resume, scenario)
        scenario, measured = run.scenario, run.levels
    levels = _left(scenario, measured)
    for line in _told(scenario, levels, len(measured)):
        typer.echo(line)


def _left(scenario: Scenario, measured: list[dict[str, Any]]) -> list[Level]:
    if not measured:
        return scenario.levels()
    from loadgen.search.course import Course

    course = Course(scenario)
    first = course.next(measured)
    return course.listed(measured) or ([] if first is None else [first])


def _told(scenario: Scenario, levels: list[Level], measured: int) -> list[str]:
    load = scenario.load
    lines = [f"scenario {scenario.name}, seed {scenario.seed}"]
    if measured:
        lines.append(f"{measured} measured and kept: level 1{f' to {measured}' if measured > 1 else ''}")
    for settings, group in groupby(levels, key=lambda level: level.server):
        lines.append(f"server: {_server(scenario, settings)}")
        lines += [f"  {_level(scenario, level)}" for level in group]
        if load.searches:
            least, most = load.search_bounds[1:]
            lines.append(
                f"  then as the search wants: {least:g} to {most:g}, to {load.search.precision:.0%}, at most "
                f"{load.search.max_levels} levels"
            )
        if load.confirm:
            lines.append("  then the capacity that was found, once more as Poisson arrivals")
    lines.append(_time(scenario, levels))
    return lines


def _level(scenario: Scenario, level: Level) -> str:
    if level.replay_speed is not None:
        asked = f"the dataset's instants {level.replay_speed:g} times as fast"
    else:
        asked = asked_text(level.concurrency, level.request_rate)
    repeat = f" (repeat {level.run + 1} of {scenario.load.num_runs})" if scenario.load.num_runs > 1 else ""
    return f"level {level.level + 1}: {asked}{repeat}"


def _time(scenario: Scenario, levels: list[Level]) -> str:
    load = scenario.load
    known = load.given_warmup_s is not None and load.duration is not None
    settings = len({repr(level.server) for level in levels})
    count = load.search.max_levels * settings if load.searches else len(levels)
    count += settings if load.confirm else 0
    each_s = load.least_s(load.duration)
    words = "at most" if load.searches and known else "about" if known else "at least"
    return (
        f"{words} {format_duration(round(count * each_s, 1))} for {count} {'level' if count == 1 else 'levels'}: warm-up and window, "
        "without drains"
        f"{' and starts of the server' if scenario.target.server else ''}"
    )


def _server(scenario: Scenario, settings: dict[str, Any]) -> str:
    """The command that starts it, or where it is."""
    if scenario.target.server is None:
        return f"{scenario.target.base_url}, which is there already"
    if scenario.target.server == "sim":
        fields = SimulatorSettings.model_fields
        changed = {key: value for key, value in settings.items() if value != fields[key].default}
        return shlex.join(["loadgen", "serve", "sim", *flag_words(changed)])
    flags = {key: value for key, value in settings.items() if key not in ("model", "host", "port", "served_model_name")}
    model = settings.get("model")
    start = Start(
        flags=flags,
        model=None if model is None else str(model),
        served_names=(scenario.target.model or str(model), "NONCE"),
        host=str(settings.get("host") or "127.0.0.1"),
        port=int(settings.get("port") or 8000),
    )
    template = scenario.server.command
    try:
        words = command_words(start, template=template, python=scenario.server.python)
    except CommandError as error:
        if template is not None:
            raise UsageError(str(error), hint=error.hint) from None
        # It is not installed here: what would be started where it is.
        words = command_words(start, template="vllm serve {model} {args}", python=None)
    return shlex.join(words)
