"""Writes what is said of a run into its folder and to the terminal; used at the end of a run and by `loadgen report`."""

from __future__ import annotations

from rich.console import Console

from loadgen.judgement import judge, scenario_of
from loadgen.report.summary import write_level, write_summary
from loadgen.run_folder import RunFolder, RunReader
from loadgen.stats.answers import answers, verdict


def write_outputs(folder: RunFolder, console: Console) -> int:
    """Judges the run from its records, writes every file of the folder, prints the table; gives the exit code."""
    scenario = scenario_of(folder)
    provenance = folder.provenance()
    levels = list(judge(RunReader(folder), scenario))
    said, judged = answers(levels), verdict(levels)
    for level in levels:
        write_level(folder.path, level)
    model = provenance.get("target", {}).get("model")
    write_summary(folder.path, levels, said, judged, scenario=scenario.name, model=model)
    console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
    return judged["exit_code"]
