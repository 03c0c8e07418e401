"""Writes what is said of a run into its folder and to the terminal; used at the end of a run and by `loadgen report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from loadgen.errors import LoadgenError
from loadgen.judgement import judge, scenario_of
from loadgen.locustfile.conditions import with_own_words
from loadgen.report.conditions import how_run
from loadgen.report.html import write_report
from loadgen.report.server_table import source_text
from loadgen.report.summary import write_level, write_summary
from loadgen.report.table import report
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.scenario.load_section import Load
from loadgen.scenario.model import Scenario
from loadgen.search.course import planned_levels, search_of
from loadgen.soak_file import write_windows
from loadgen.stats.answers import DRIFTED, TITLES, answer_lines, answers, verdict
from loadgen.stats.digits import digits
from loadgen.stats.limit import with_limits
from loadgen.stats.soak import BAD, DOUBT, GOOD, standing
from server.effective import precision_in_words

_SOAK_STYLES = {GOOD: "bold", DOUBT: "bold yellow", BAD: "bold red"}


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of a run."""

    levels: list[dict[str, Any]]
    exit_code: int


def write_outputs(folder: RunFolder, console: Console) -> Judged:
    """Judges the run from its records, prints the table, writes every file of the folder.

    Raises LoadgenError when they cannot be written; what was measured is printed by then.

    The last line printed is `run folder: PATH`.
    """
    scenario = scenario_of(folder)
    provenance = folder.provenance()
    reader = RunReader(folder)
    levels = with_limits(list(judge(reader.all(), scenario, provenance)))
    failures = folder.failures()
    planned = planned_levels(scenario, levels, failures)
    said = answers(levels, search=search_of(scenario), failures=failures)
    judged = {**verdict(levels, fail_on_drift=scenario.soak.fail_on_drift), "planned_levels": planned}
    stated = with_own_words(conditions(scenario, provenance, levels), provenance)
    console.print(report(levels, stated))
    if len(levels) < planned:
        open_ended = scenario.load.searches or scenario.load.confirm
        of = f"{len(levels)} levels, and not the last," if open_ended else f"{len(levels)} of {planned} planned levels"
        console.print(f"The run was cut off: {of} were measured.", highlight=False)
    for name, count in reader.lost_bytes().items():
        console.print(f"{count} bytes of {name} are torn or damaged; requests that stood there are missing.")
    soak_style = _SOAK_STYLES[standing(said["soak"])]
    for title, text in answer_lines(said):
        style = soak_style if title == TITLES["soak"] else "bold"
        console.print(Text.assemble((title, style), f": {text}"))
    if judged["exit_code"] == DRIFTED:
        console.print(
            Text("The soak drifted for the worse, and soak.fail_on_drift is set: exit code 99.", style="bold red")
        )
    if judged["rests_on_invalid"]:
        console.print(Text(judged["rests_on_invalid"], style="bold red"))
    try:
        for level in levels:
            write_level(folder.path, level)
        write_windows(folder.path, levels)
        model = provenance.get("target", {}).get("model")
        write_summary(folder.path, levels, said, judged, scenario=scenario.name, model=model)
        told = how_run(provenance, levels, stated, scenario.to_yaml())
        write_report(folder.path, scenario.name, levels, stated, said, told)
    except OSError as error:
        raise unwritable(folder.path, error) from None
    console.print(f"report: {folder.path / 'report.html'}", highlight=False, soft_wrap=True)
    console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
    return Judged(levels, judged["exit_code"])


def unwritable(folder: Path, error: OSError) -> LoadgenError:
    """What is said where a run's folder takes no more: the disk is full, or gone, or something stands in the way."""
    return LoadgenError(
        f"The results cannot be written into {folder}: {error.strerror or error}.",
        hint=f"the records are kept: make room, then run `loadgen report {folder}`",
    )


def conditions(
    scenario: Scenario, provenance: dict[str, Any], levels: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What the figures hold for; None where nobody told. `levels`: as far as they were measured."""
    target = provenance.get("target", {})
    workload, load = scenario.workload, scenario.load
    input_tokens, output_tokens = workload.in_words()
    ours = {"sim": "simulator", "vllm": "vLLM started for the run"}
    server = ours.get(scenario.target.server or "", target.get("base_url"))
    return {
        "target": f"{server} ({scenario.target.endpoint}{'' if scenario.streams() else ', not streaming'})",
        "server version": target.get("server_version"),
        "model": workload.models_in_words(target.get("model")),
        # The simulator computes nothing, so it has none.
        "precision": precision_in_words(target.get("effective") or {}) if scenario.target.server != "sim" else None,
        "input": input_tokens,
        "output": f"{output_tokens}, {workload.forced_in_words()}",
        "load": load_in_words(load) + ("; a capacity once more as arrivals" if load.confirm else ""),
        "window": " ".join(
            [
                _window_in_words(load),
                "once steady" if load.given_warmup_s is None else f"after {load.given_warmup_s:g} s of warm-up",
                *(f"(interrupted after {digits(_lasted_s(one), 3)} s)" for one in levels if one["interrupted"]),
            ]
        ),
        "workers": str(len(provenance.get("workers", []))) if provenance else None,
        "arrival stamps": target.get("arrival_stamps"),
        "server metrics": source_text(target.get("metrics")),
        **({"server lacks": ", ".join(target["lacks"])} if target.get("lacks") else {}),
        "seed": str(scenario.seed),
    }


def _lasted_s(level: Mapping[str, Any]) -> float:
    """Of a soak all of it, not the part alone that its own figures are of."""
    soak = level.get("soak")
    return float(level["window_s"] if soak is None else soak["duration_s"] + soak["left_out_s"])


def load_in_words(load: Load) -> str:
    """`closed loop, no think time`, or `open loop, gamma arrivals (burstiness 0.5), at most 64 in flight, then queue`."""
    if not load.open_loop:
        think = load.think_time
        if think is None:
            return "closed loop, no think time"
        return f"closed loop, think time {think.mean_s:g} s" + (", exponential" * (think.distribution == "exponential"))
    words = [f"open loop, {load.pattern} arrivals"]
    if load.replay_speed is not None:
        words = [
            f"open loop, the dataset's own instants {' and '.join(f'{speed:g}' for speed in load.replay_speed)} times as fast"
        ]
    elif load.pattern == "gamma":
        words[0] += f" (burstiness {load.burstiness or 1:g})"
    if load.stages is not None:
        words.append("stages " + " ".join(stage.text() for stage in load.stages))
    if load.rate_file is not None:
        words.append(f"rate of {load.rate_file}")
    if load.burst_size is not None:
        words.append(f"{load.burst_size} at once every {load.burst_period:g} s")
    if load.max_in_flight is not None:
        words.append(f"at most {load.max_in_flight} in flight, then {load.overflow}")
    return ", ".join(words)


def _window_in_words(load: Load) -> str:
    if load.duration is not None:
        return f"{load.duration:g} s"
    return "the whole course" if load.follows_a_course else "as long as the work needs"
