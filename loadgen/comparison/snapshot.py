"""What a comparison needs of a run, as a value and as a small JSON file that can be committed; no record is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, TypeAdapter, ValidationError

from loadgen import __version__
from loadgen.comparison.conditions import conditions_of
from loadgen.comparison.figures import kept
from loadgen.errors import UsageError
from loadgen.measured_run import MeasuredRun, read_run
from loadgen.stats.capacity import capacities
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.settings import swept_settings

FORM = "loadgen baseline"
VERSION = 1
"""Of the form of the file; another one is refused."""
_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLevel:
    """One level: what was asked, whether it counts, and every figure that can be compared."""

    level: int
    run: int
    concurrency: int | None
    request_rate: float | None
    server: Mapping[str, Any]
    valid: bool
    reasons: Sequence[str]
    """Names of the rules that made it invalid."""
    warnings: Sequence[str]
    saturated: bool
    window_s: float
    ok: int
    decided: int
    """Requests of the window that ended ok or failed."""
    figures: Mapping[str, float]
    """Those that were measured."""
    intervals: Mapping[str, tuple[float, float]]
    weak: Sequence[str]
    """Percentiles that too few samples carry."""


def _checked(conditions: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = conditions.get("settings")
    if settings is not None and not (
        isinstance(settings, dict)
        and isinstance(settings.get("told"), dict)
        and isinstance(settings.get("asked", 0), dict | None)
    ):
        raise ValueError("settings must be what was asked of the server and what it told")
    return conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinSlo:
    """The highest load that kept the limits with its bound; both None where none did."""

    server: Mapping[str, Any]
    concurrency: int | None
    request_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run, as far as it can be compared."""

    name: str
    started: str | None
    made_by: str
    """Version of this program."""
    conditions: Annotated[Mapping[str, Any], AfterValidator(_checked)]
    swept: Sequence[str]
    """Settings of the server that differ between levels."""
    slo: Mapping[str, float]
    """Its limits, in milliseconds, and a share for `error_rate`."""
    within_slo: Sequence[WithinSlo]
    """One for each server setting."""
    levels: Sequence[MeasuredLevel]
    cut_off: bool = False
    source: str = field(default="", compare=False)
    """Where it was read from; not in the file."""


def read_snapshot(path: Path) -> Snapshot:
    """Of a run folder, or of a file that `loadgen export --format baseline` wrote. Raises UsageError for anything else."""
    return read_baseline(path) if path.is_file() else snapshot_of(read_run(path))


def snapshot_of(run: MeasuredRun) -> Snapshot:
    """What can be compared of a run."""
    swept = swept_settings(run.levels)
    slo: dict[str, float] = {}
    for level in run.levels:
        slo |= {key: one["threshold"] for key, one in (level["slo"] or {}).items()}
    return Snapshot(
        name=run.scenario.name,
        started=run.provenance.get("started"),
        made_by=__version__,
        conditions=conditions_of(run, swept),
        swept=swept,
        slo=slo,
        within_slo=[
            WithinSlo(server=one["server"], concurrency=one["concurrency"], request_rate=one["request_rate"])
            for one in capacities(run.levels)
        ],
        levels=[_measured(level) for level in run.levels],
        cut_off=run.cut_off,
        source=str(run.path),
    )


def _measured(level: Mapping[str, Any]) -> MeasuredLevel:
    requests = level["requests"]
    figures = kept(level)
    return MeasuredLevel(
        level=level["level"],
        run=level["run"],
        concurrency=level["concurrency"],
        request_rate=level["request_rate"],
        server=level["server"],
        valid=level["valid"],
        reasons=[reason["rule"] for reason in level["reasons"]],
        warnings=[warning["rule"] for warning in level["warnings"]],
        saturated=is_saturated(level),
        window_s=level["window_s"],
        ok=requests["ok"],
        decided=sum(count for status, count in requests.items() if status not in ("censored", "cancelled")),
        figures={name: _short(value) for name, value in figures.items()},
        intervals={
            name: (_short(low_high[0]), _short(low_high[1]))
            for name, low_high in (level.get("intervals") or {}).items()
            if name in figures and low_high is not None and None not in low_high
        },
        weak=[name for name in level["weak_percentiles"] if name in figures],
    )


def _short(value: float) -> float:
    """Six digits: a file that is committed should not change in digits that mean nothing."""
    return float(f"{value:.{_DIGITS}g}")


def baseline_json(snapshot: Snapshot) -> bytes:
    """The file; it says of which form and version it is. Levels that are invalid are left out: nothing may rest on them.

    Raises UsageError with exit code 3 when no level is valid.
    """
    told = asdict(snapshot)
    del told["source"]
    told["levels"] = [level for level in told["levels"] if level["valid"]]
    if not told["levels"]:
        raise UsageError(
            f"No level of {snapshot.source} is valid, so it can be no baseline.",
            hint="`loadgen report` says why; measure again",
            exit_code=3,
        )
    return orjson.dumps(
        {"form": FORM, "version": VERSION, **told}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )


def read_baseline(path: Path) -> Snapshot:
    """Raises UsageError for a file that is no baseline, or of another version."""
    try:
        told = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        told = None
    if not isinstance(told, dict) or told.get("form") != FORM:
        raise UsageError(
            f"{path} is neither a run folder nor a baseline.",
            hint="`loadgen export RUN --format baseline` writes one",
        )
    if told.get("version") != VERSION:
        raise UsageError(
            f"{path} is a baseline of version {told.get('version')}, made by loadgen {told.get('made_by')}; "
            f"this is loadgen {__version__}, which reads version {VERSION}.",
            hint="make it anew with `loadgen export RUN --format baseline`, or compare the run folders",
        )
    try:
        made = _READER.validate_python({name: value for name, value in told.items() if name not in ("form", "version")})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{path} is a damaged baseline, or one of another loadgen ({told.get('made_by')}; this is {__version__}): "
            f"{where}: {first['msg'].lower()}.",
            hint="make it anew with `loadgen export RUN --format baseline`",
        ) from None
    return replace(made, source=str(path))


_READER = TypeAdapter(Snapshot)
