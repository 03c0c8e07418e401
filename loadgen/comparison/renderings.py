"""Takes a comparison, gives it as a terminal table, as Markdown for a pull request, and as JUnit XML for a CI server."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.comparison.change import NOT_MEASURED, REGRESSED, UNCLEAR
from loadgen.comparison.compare import COMPARED
from loadgen.comparison.words import (
    HEADINGS,
    Comparison,
    cells,
    explanations,
    hint,
    level_name,
    remarks,
    verdict_text,
)

_STYLES = {"regressed": "bold red", "improved": "green", "unclear": "yellow"}
_CHANGE = HEADINGS.index("change")


def terminal(made: Comparison, *, width: int) -> RenderableType:
    """A table a level, only what changed marked, and why a verdict is what it is below; for `width` columns of text."""
    parts: list[RenderableType] = [Text(_title(made)), Text("")]
    for level in made["levels"]:
        parts.append(Text(_heading(level), style="bold"))
        if level["figures"]:
            parts += [_table(level, width), *(Text(line) for line in explanations(level)), Text("")]
    parts += [Text(remark) for remark in remarks(made)]
    parts.append(Text(verdict_text(made)))
    advice = hint(made)
    if advice is not None:
        parts.append(Text(f"hint: {advice}"))
    return Group(*parts)


def _title(made: Comparison) -> str:
    return f"{made['baseline']['source']} → {made['run']['source']}"


def _heading(level: Mapping[str, object]) -> str:
    return level_name(level) + (f": {level['text']}" if level["text"] else "")


def _table(level: Mapping[str, list[Mapping[str, object]]], width: int) -> Table:
    rows: list[tuple[str, ...]] = [
        (*cells(figure, intervals=False)[:-1], str(figure["verdict"])) for figure in level["figures"]
    ]
    widest = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    if sum(widest) + len(widest) - 1 > width:
        # The interval of a change goes onto a line of its own.
        rows = [(*row[:_CHANGE], row[_CHANGE].replace(" [", "\n["), *row[_CHANGE + 1 :]) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for number, heading in enumerate(HEADINGS):
        between = 0 < number < len(HEADINGS) - 1
        # Where even that is too wide, it is the figure's name that is broken.
        table.add_column(heading, justify="right" if between else "left", no_wrap=number > 0, overflow="fold")
    for figure, row in zip(level["figures"], rows, strict=True):
        table.add_row(*row, style=_STYLES.get(str(figure["verdict"])))
    return table


def markdown(made: Comparison) -> str:
    """A summary, then a table a level."""
    return "\n".join(_markdown_lines(made)) + "\n"


def _markdown_lines(made: Comparison) -> Iterator[str]:
    yield f"### Load test: {_escaped(verdict_text(made))}"
    yield ""
    yield f"{_escaped(_title(made))}. Intervals are 95 %."
    for level in made["levels"]:
        yield ""
        yield f"**{_escaped(_heading(level))}**"
        if not level["figures"]:
            continue
        yield ""
        yield "| " + " | ".join(HEADINGS) + " |"
        yield "|" + "---|" * len(HEADINGS)
        for figure in level["figures"]:
            row = [_escaped(cell) for cell in cells(figure)]
            yield "| " + " | ".join(f"**{cell}**" if figure["verdict"] == REGRESSED else cell for cell in row) + " |"
    said = remarks(made)
    if said:
        yield ""
    yield from (f"- {_escaped(remark)}" for remark in said)


def _escaped(text: str) -> str:
    for special in "\\|*_<>`":
        text = text.replace(special, f"\\{special}")
    return text


def junit(made: Comparison) -> bytes:
    """A test case for each figure of each level; unclear ones are skipped, levels without an answer are errors."""
    suite = ET.Element("testsuite", name="loadgen compare")
    if not made["comparable"]:
        case = ET.SubElement(suite, "testcase", classname="loadgen compare", name="comparable")
        ET.SubElement(case, "error", message=verdict_text(made))
    for level in made["levels"]:
        if level["status"] != COMPARED:
            case = ET.SubElement(suite, "testcase", classname=level_name(level), name="level")
            ET.SubElement(case, "error" if level["unanswered"] else "skipped", message=level["text"])
        for figure in level["figures"]:
            case = ET.SubElement(suite, "testcase", classname=level_name(level), name=figure["figure"])
            _, before, after, changed, tolerance, verdict = cells(figure)
            told = f"{before} → {after}, {changed} (tolerance {tolerance}): {verdict}"
            if figure["verdict"] == REGRESSED:
                ET.SubElement(case, "failure", message=told)
            elif figure["unanswered"]:
                ET.SubElement(case, "error", message=told)
            elif figure["verdict"] in (UNCLEAR, NOT_MEASURED):
                ET.SubElement(case, "skipped", message=told)
            else:
                ET.SubElement(case, "system-out").text = told
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    suite.set("tests", str(len(suite)))
    ET.indent(suite)
    written: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return written + b"\n"
