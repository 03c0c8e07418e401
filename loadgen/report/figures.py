"""Takes figures of a level object, gives the words that people read; shared by the terminal table and the HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.stats.asked import asked_number, asked_of, asked_of_several, is_open
from loadgen.stats.open_rules import is_saturated
from loadgen.stats.settings import by_kind, setting_text, swept_settings

Level = Mapping[str, Any]
Conditions = Mapping[str, str | int | float | None]
"""What the run was: names and values in the order to print; None is printed as "not reported"."""

ABSENT = "–"
WEAK = "~"
HOW_TO_READ = (
    "TTFT, TPOT, E2E: one request, as its user feels it. tok/s (output) and req/s: totals of all users.",
    "Percentiles are nearest-rank over the ok requests sent in the window; n says how many.",
)
SERVED_MEANS = "req/s counts a request by the share of its tokens that came in the window."
FROM_SCHEDULE_MEANS = (
    "TTFT and E2E count from when the schedule wanted the request sent. offered, sent, done: requests/s that the schedule "
    "placed in the window, that were sent in it, and that ended ok in it."
)
NOT_STREAMED_MEANS = (
    "not streaming: answers come whole, so there is no TTFT, TPOT and ITL; tokens count where their answer arrived."
)
WEAK_MEANS = f"{WEAK} fewer than five samples lie beyond this percentile."


def number(value: float | int | None) -> str:
    """Three digits that matter: `0.123`, `1.23`, `12.3`, `123`, `1234`; `–` for None."""
    if value is None:
        return ABSENT
    if value == 0:
        return "0"
    decimals = 3 if abs(value) < 0.9995 else 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"


def figure(level: Level, key: str) -> str:
    """The figure `key` of a level, marked where it is a weak percentile."""
    return (WEAK if key in level["weak_percentiles"] else "") + number(level[key])


def interval_text(level: Level, key: str) -> str:
    """`95 % interval 411 to 437`; empty where the figure has none."""
    found = level["intervals"].get(key)
    return "" if found is None else f"95 % interval {number(found[0])} to {number(found[1])}"


def is_open_loop(levels: Sequence[Level]) -> bool:
    """Whether requests came by a schedule, in some of the levels at least."""
    return any(is_open(level) for level in levels)


def how_to_read(levels: Sequence[Level]) -> list[str]:
    """What the figures mean."""
    lines = list(HOW_TO_READ)
    if not is_open_loop(levels):
        lines.insert(1, SERVED_MEANS)
    if whole := sum(level["not_streamed"] for level in levels):
        begun = sum(sum(level["requests"].values()) for level in levels)
        who = "" if whole == begun or not any(level["n_ttft"] for level in levels) else f"{whole} of {begun} requests "
        lines.append(who + NOT_STREAMED_MEANS)
    if is_open_loop(levels):
        service = ", ".join(figure(level, "p95_ttft_ms") for level in levels if is_open(level))
        lines += [FROM_SCHEDULE_MEANS, f"Counted from the send (the server alone), TTFT P95 is {service} ms."]
    return lines


def ok(level: Level) -> int:
    """Requests of the window that ended ok."""
    return int(level["requests"]["ok"])


def others(level: Level) -> dict[str, int]:
    """Requests of the window by any other end."""
    return {status: count for status, count in level["requests"].items() if status != "ok"}


def failed(level: Level) -> int:
    """Requests of the window that failed: not ok, and not ended by us."""
    return sum(count for status, count in others(level).items() if status not in ("censored", "cancelled"))


def mark(level: Level) -> str:
    """`yes`, `doubt` (a warning) or `NO` (invalid): whether the level can be trusted."""
    if not level["valid"]:
        return "NO"
    return "doubt" if level["warnings"] else "yes"


def slo_mark(level: Level) -> str:
    """`met`, `miss`, or `–` where there is no SLO, something was not measured, or the level is invalid."""
    if not level["valid"]:
        return ABSENT
    if is_saturated(level) and level["slo"]:
        return "miss"
    met = [one["met"] for one in (level["slo"] or {}).values()]
    if not met or (None in met and False not in met):
        return ABSENT
    return "met" if all(met) else "miss"


def condition_texts(conditions: Conditions) -> list[str]:
    """`model llama`, `precision not reported`, …"""
    return [f"{name} {'not reported' if value is None else value}" for name, value in conditions.items()]


def repeated(levels: Sequence[Level]) -> bool:
    """Whether the sweep was run more than once."""
    return any(level["run"] for level in levels)


def mixed(levels: Sequence[Level]) -> bool:
    """Whether some of the levels have users and others a rate: then each row says which its number is."""
    return len(by_kind(levels)) > 1


def load_cell(level: Level, levels: Sequence[Level]) -> str:
    """What a row's level asked for: `8` in a column that says of what, `8 users` or `4 req/s` where the column has both."""
    if not mixed(levels):
        return asked_number(level)
    unit = "req/s" if is_open(level) else "user" if level["concurrency"] == 1 else "users"
    return f"{asked_number(level)} {unit}"


def level_cells(level: Level, levels: Sequence[Level]) -> list[str]:
    """The cells of a row that say which of `levels` it is of: swept settings, the repeat where there are any, the load."""
    settings = [str(level["server"].get(name, ABSENT)) for name in swept_settings(levels)]
    return [*settings, *([str(level["run"] + 1)] if repeated(levels) else []), load_cell(level, levels)]


def class_rows(levels: Sequence[Level], *, of: Sequence[Level] | None = None) -> list[tuple[list[str], Level, Level]]:
    """One entry for each class of each level: (swept settings and load, the level, the class's own figures). `of` are all levels
    of the run where `levels` are only some of them: they decide which settings are named."""
    return [(level_cells(level, of or levels), level, one) for level in levels for one in level["classes"]]


def prefix_lines(levels: Sequence[Level]) -> list[str]:
    """One sentence on how much of the prompts a prefix cache could know; none where nothing is shared on purpose."""
    shares = [share for level in levels if (share := level["intended_prefix_share"])]
    if not shares:
        return []
    least, most = f"{min(shares) * 100:.0f}", f"{max(shares) * 100:.0f}"
    span = most if least == most else f"{least} to {most}"
    where = "lie in shared prefixes"
    if any(level["turns"] for level in levels):
        where = "were in the turn before, or lie in shared prefixes"
    return [f"{span} % of the prompt tokens {where}: the most that a prefix cache can save."]


def audit_lines(levels: Sequence[Level]) -> list[str]:
    """Of an audited run: one sentence a level on how far its stamps lie from the packets'."""
    swept = swept_settings(levels)
    lines = []
    for level in levels:
        audit = level["audit"]
        if audit is None:
            continue
        single, last, merged = audit["single"], audit["last"], audit["coalesced"]
        differ = " / ".join(number(single[name]) for name in ("p50_ms", "p99_ms", "p999_ms", "max_ms"))
        lines.append(
            f"audit at {where_text([level], swept)}: stamps differ from the packets' by {differ} ms "
            f"(P50 / P99 / P99.9 / largest of {single['n']} single events), of {last['n']} last events of an answer by "
            f"{number(last['p50_ms'])} / {number(last['p99_ms'])} ms (P50 / P99), of {merged['n']} coalesced ones by "
            f"{number(merged['p50_ms'])} / {number(merged['p99_ms'])} ms; {audit['unmatched']} events without a packet, "
            f"{audit['ring_drops']} packets dropped."
        )
    return lines


@dataclass(frozen=True, slots=True)
class Note:
    """One reason to distrust, of all levels that it applies to."""

    severity: str
    """`INVALID` or `doubt`."""
    where: str
    """`concurrency 8, 16`, or `2, 4 requests/s`."""
    evidence: str
    remedy: str


def notes(levels: Sequence[Level]) -> list[Note]:
    """Why the figures might be wrong: each rule that fired once, with all its levels and the first one's evidence."""
    swept = swept_settings(levels)
    found: list[Note] = []
    for severity, field in (("INVALID", "reasons"), ("doubt", "warnings")):
        fired: dict[str, list[tuple[Level, Mapping[str, str]]]] = {}
        for level in levels:
            for one in level[field]:
                fired.setdefault(one["rule"], []).append((level, one))
        for cases in fired.values():
            first_level, first = cases[0]
            which = asked_of if mixed([level for level, _ in cases]) else asked_number
            of_the_first = f"(at {which(first_level)}) " if len(cases) > 1 else ""
            where = where_text([level for level, _ in cases], swept)
            found.append(Note(severity, where, of_the_first + first["evidence"], first["remedy"]))
    return found


def where_text(levels: Sequence[Level], swept: Sequence[str]) -> str:
    """`concurrency 8, 16 with max_num_seqs 4; 2 requests/s`: the loads of some levels, by their swept settings, each once."""
    return "; ".join(_where_of_kind(kind, swept) for kind in by_kind(levels))


def _where_of_kind(levels: Sequence[Level], swept: Sequence[str]) -> str:
    groups: dict[str, list[str]] = {}
    for level in levels:
        groups.setdefault(setting_text(level, swept), []).append(asked_number(level))
    texts = [
        ", ".join(dict.fromkeys(numbers)) + (f" with {setting}" if setting else "")
        for setting, numbers in groups.items()
    ]
    return asked_of_several("; ".join(texts), open_loop=is_open(levels[0]))
