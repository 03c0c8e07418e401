"""Takes the levels of a search, tells how it ended and what it left open; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.search.search import Look, Search
from loadgen.stats.asked import asked_exactly, asked_of, is_open
from loadgen.stats.capacity import Rung, why
from loadgen.stats.settings import by_setting, setting_text, swept_settings

Level = Mapping[str, Any]


def search_answers(levels: Sequence[Level], search: Search) -> list[dict[str, Any]]:
    """One entry for each server setting: {server, levels, end, interval, precision, text}; `end` is None while it goes on.

    `interval` is the highest load that holds and the lowest that misses, None where there is none.
    """
    searched = [level for level in levels if is_open(level) is not search.users and not level["interrupted"]]
    names = swept_settings(searched)
    return [_entry(group, search, setting_text(group[0], names)) for group in by_setting(searched).values()]


def _entry(group: Sequence[Level], search: Search, settings: str) -> dict[str, Any]:
    look = search.look(group)
    return {
        "server": group[0]["server"],
        "levels": len(group),
        "end": look.end,
        "interval": [
            None if rung is None else asked_exactly(rung.level) for rung in (look.found.best, look.found.above)
        ],
        "precision": search.precision,
        "text": _text(group, search, look, settings),
    }


def _text(group: Sequence[Level], search: Search, look: Look, settings: str) -> str:
    where = f" with {settings}" if settings else ""
    count = "1 level" if len(group) == 1 else f"{len(group)} levels"
    return f"{count}{where}: {_end(group, search, look)}{_contradictions(group, look)}."


def _end(group: Sequence[Level], search: Search, look: Look) -> str:
    best, above = look.found.best, look.found.above
    held = "no load holds" if best is None else f"{asked_of(best.level)} holds"
    missed = "" if above is None else f", {asked_of(above.level)} misses the SLO"
    match look.end:
        case None:
            return f"the search was cut off; so far {held}{missed}"
        case "resolved":
            near = "neighbouring numbers of users" if search.users and _neighbours(best, above) else _share(search)
            return f"{held}{missed}, {near}"
        case "undecided":
            return f"{held}{missed}; not resolved between them: {_left_open(look)}"
        case "limit_not_reached":
            return (
                f"{held} and the search ends at {search.most:g}, so the limit was not reached (raise load.search.max)"
            )
        case "saturated":
            return (
                f"{held}; more users only wait longer, since throughput does not grow any more, and the limits do not ask for "
                "less"
            )
        case "nothing_holds":
            return f"{held}: even {_lowest(look)} misses the SLO ({_why_lowest(look)})"
        case "invalid":
            return f"{held}{missed}; above it no level is valid, so nobody knows how far it goes"
        case "levels_used_up":
            return f"{held}{missed}; it ended with load.search.max_levels, not resolved{_open_interval(look)}"


def _share(search: Search) -> str:
    return f"no more than {search.precision:.0%} apart"


def _neighbours(best: Rung | None, above: Rung | None) -> bool:
    return best is not None and above is not None and above.load - best.load <= 1


def _inside(look: Look) -> list[Rung]:
    low = 0.0 if look.found.best is None else look.found.best.load
    return [
        rung
        for rung in look.found.rungs
        if low < rung.load and (look.found.above is None or rung.load < look.found.above.load)
    ]


def _left_open(look: Look) -> str:
    inside = _inside(look)
    if not inside:
        return "the loads contradict each other"
    each = (f"{asked_of(rung.level)} decides nothing after {_runs(rung)} ({why(rung)})" for rung in inside)
    return f"{'; '.join(each)}; measure longer (load.duration)"


def _runs(rung: Rung) -> str:
    return "1 run" if len(rung.runs) == 1 else f"{len(rung.runs)} runs"


def _open_interval(look: Look) -> str:
    inside = _inside(look)
    return f": {', '.join(asked_of(rung.level) for rung in inside)} decide nothing" if inside else ""


def _lowest(look: Look) -> str:
    return asked_of(look.found.rungs[0].level)


def _why_lowest(look: Look) -> str:
    return why(look.found.rungs[0])


def _contradictions(group: Sequence[Level], look: Look) -> str:
    against = look.found.against
    if not against:
        return ""
    low = 0.0 if look.found.best is None else look.found.best.load
    parts = (f"{asked_of(r.level)} {'holds' if r.load > low else 'misses it'} in {_runs(r)}" for r in against)
    return f". The curve is not monotonic: {', '.join(parts)}"
