"""Takes a comparison, gives its parts in words: figures, changes, verdict; shared by the terminal, Markdown and JUnit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadgen.comparison.figures import RATES

Comparison = Mapping[str, Any]

HEADINGS = ("figure", "baseline", "run", "change", "tolerance", "verdict")


def verdict_text(made: Comparison) -> str:
    """The whole answer in a sentence."""
    if not made["comparable"]:
        return f"Not comparable because {'; '.join(made['why_not'])}."
    verdict = made["verdict"]
    figures = sum(len(level["figures"]) for level in made["levels"])
    parts = [f"{verdict[name]} {name}" for name in ("regressed", "improved") if verdict[name]]
    if verdict["unclear"]:
        parts += [] if parts else ["no change is shown"]
        parts.append(f"{verdict['unclear']} of {figures} figures unclear")
    if verdict["compared_levels"]:
        changed = ", ".join(parts) or "nothing changed by more than its tolerance"
        said = f"{changed}; {_levels(verdict['compared_levels'])} compared"
    else:
        said = "nothing was compared"
    if verdict["not_in_baseline"]:
        said += f"; {verdict['not_in_baseline']} of {figures} figures are not in the baseline"
    if verdict["unanswered_levels"]:
        said += f"; NOT ANSWERED: {_levels(verdict['unanswered_levels'])} invalid or not measured"
    return f"{said[0].upper()}{said[1:]}."


def _levels(count: int) -> str:
    return f"{count} level" if count == 1 else f"{count} levels"


def level_name(level: Mapping[str, Any]) -> str:
    """`concurrency 8, max_num_seqs 16`."""
    return ", ".join([level["load"], *(f"{name} {value}" for name, value in level["server"].items())])


def cells(figure: Mapping[str, Any], *, intervals: bool = True) -> tuple[str, str, str, str, str, str]:
    """A cell for each of `HEADINGS`; the figures themselves with their intervals or, where room is scarce, without."""
    share = figure["absolute"]
    text = f" ({figure['text']})" if figure["text"] else ""
    return (
        figure["figure"],
        _figure(figure["baseline"], figure["baseline_interval"] if intervals else None, share),
        _figure(figure["run"], figure["run_interval"] if intervals else None, share),
        _change(figure),
        f"{figure['tolerance'] * 100:.3g} pp" if share else f"{figure['tolerance'] * 100:.3g} %",
        figure["verdict"] + text,
    )


def explanations(level: Mapping[str, Any]) -> list[str]:
    """Why a verdict is what it is, where that is not plain: a line for each reason, with every figure that has it."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for figure in level["figures"]:
        if figure["text"]:
            by_reason.setdefault((figure["verdict"], figure["text"]), []).append(figure["figure"])
    return [
        f"{', '.join(names)}: {text if text.startswith(verdict) else f'{verdict}, {text}'}"
        for (verdict, text), names in by_reason.items()
    ]


def _figure(value: float | None, interval: Iterable[float] | None, share: bool) -> str:
    if value is None:
        return "–"
    if interval is None:
        return _number(value, share)
    low, high = interval
    return f"{_number(value, share)} [{_number(low, share)}, {_number(high, share)}]"


def _number(value: float, share: bool) -> str:
    return f"{value * 100:.3g} %" if share else f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _change(figure: Mapping[str, Any]) -> str:
    if figure["change"] is None:
        return "–"
    unit = " pp" if figure["absolute"] else " %"
    said = f"{_signed(figure['change'])}{unit}"
    if figure["change_interval"] is not None:
        low, high = figure["change_interval"]
        said += f" [{_signed(low)}, {_signed(high)}]"
    return said


def _signed(share: float) -> str:
    return f"{share * 100:+.1f}".replace("-0.0", "0.0").replace("+0.0", "0.0")


def remarks(made: Comparison) -> list[str]:
    """What else is to be said: what may differ, what could not be checked, the highest loads within the limits."""
    said = [f"{one['text']} (that is what is compared)" for one in made["differences"] if one["allowed"]]
    if made["not_checked"]:
        said.append(f"not checked, since one side does not say: {', '.join(made['not_checked'])}")
    left_out = [name for level in made["levels"] for name in level["left_out"] if name in RATES]
    if left_out:
        said.append(
            f"not compared where the server keeps up with the arrivals, since they decide it: "
            f"{', '.join(dict.fromkeys(left_out))}"
        )
    for one in made["within_slo"]:
        setting = "".join(f"{name} {value}, " for name, value in one["server"].items())
        said.append(f"{setting}highest load within the limits: {_load(one['baseline'])}, then {_load(one['run'])}")
    return said


def _load(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def hint(made: Comparison) -> str | None:
    """What to do about it; None where nothing is."""
    blocking = [one["condition"] for one in made["differences"] if not one["allowed"]]
    if blocking:
        return f"if that is what is to be compared, say so: --across {','.join(blocking)}"
    if not made["comparable"]:
        return "measure the run at the loads and settings of the baseline"
    if made["verdict"]["unanswered_levels"]:
        if any(
            figure["unanswered"] and figure["baseline"] is None
            for level in made["levels"]
            for figure in level["figures"]
        ):
            return "make the baseline anew with `loadgen export RUN --format baseline`: it has not all that is to be compared"
        return "`loadgen report RUN` says why a level is invalid, and what to do"
    if made["verdict"]["unclear"]:
        return (
            "longer windows (load.duration) or repeats (load.num_runs) narrow the intervals and tell chance from change"
        )
    return None
