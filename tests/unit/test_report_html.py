"""report.html: one file that says the same as the table, escapes what it was given and needs no network."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.report.html import page, write_report
from loadgen.report.table import report
from loadgen.stats.answers import answers
from loadgen.stats.level import level_object
from tests.level_records import closed_loop, health, plan, request

CONDITIONS = {"model": "llama", "precision": None, "target": "http://127.0.0.1:8000", "seed": 7}
NASTY = "<script>alert(1)</script>"


def level(number: int, users: int, *, first_ms: float = 50, **fields: Any) -> dict[str, Any]:
    records = closed_loop(users, 30, first_ms=first_ms, kernel_stamps=True)
    report = health(level=number)
    return level_object(plan(level=number, concurrency=users, **fields), records, [report], slo={"ttft_p95": 60.0})


def failed(number: int) -> dict[str, Any]:
    records = [request(i, status="http_503", finished_ms=i + 1, reason=NASTY) for i in range(1000)]
    return level_object(plan(level=number), records, [health(level=number)])


class Page(HTMLParser):
    """Text of the page, its tags, and whether every tag was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def made() -> Page:
    levels = [level(0, 1), level(1, 4, first_ms=70), level(2, 8, interrupted=True)]
    return Page(page("chat-capacity", levels, CONDITIONS, answers(levels)))


def test_page_needs_nothing_from_anywhere(made: Page) -> None:
    assert made.links == []
    assert not {"script", "link", "img", "iframe"} & set(made.tags)
    assert made.tags.count("figure") == 3


def test_page_says_answers_conditions_and_why_it_might_be_wrong(made: Page) -> None:
    text = made.text()
    assert (
        "Concurrency 1: the highest measured valid level whose values meet the SLO; not resolved between 1 and 4"
        in text
    )
    assert "precision not reported" in text
    assert "INVALID at concurrency 8: The level was interrupted" in text
    assert "hint: Run the level again." in text


def test_charts_name_scenario_target_and_seed_and_draw_the_slo(made: Page) -> None:
    text = made.text()
    assert "Output throughput, all users – chat-capacity" in text
    assert "Time to first token, one request – chat-capacity" in text
    assert text.count("target http://127.0.0.1:8000 · seed 7") == 3
    assert "SLO P95 ≤ 60 ms" in text
    assert text.count("invalid") >= 2


def test_table_has_the_levels_figures(made: Page) -> None:
    assert re.search(
        r"1 12 0 50\.0 ~50\.0 10\.0 ~10\.0 10\.0 ~10\.0 90\.0 ~90\.0 55\.0 11\.0 1\.00 met doubt", made.text()
    )


def test_what_came_from_outside_is_escaped() -> None:
    levels = [level(0, 1), failed(1)]
    text = page(NASTY, levels, {"model": NASTY, "seed": 1}, answers(levels))
    assert "<script" not in text
    made = Page(text)
    assert NASTY in made.text()
    assert "script" not in made.tags


def test_run_in_which_nothing_succeeded_still_has_a_report(tmp_path: Path) -> None:
    path = write_report(tmp_path, "chat", [failed(0)], CONDITIONS, answers([failed(0)]))
    text = Page(path.read_text(encoding="utf-8")).text()
    assert path == tmp_path / "report.html"
    assert "Nothing was measured that could be drawn." in text
    assert "None of 1000 requests succeeded" in text
    assert "1000 http_503" in text


def test_swept_settings_are_lines_and_a_column() -> None:
    levels = [
        level(i, users, server={"max_num_seqs": seqs})
        for i, (seqs, users) in enumerate([(8, 1), (8, 2), (16, 1), (16, 2)])
    ]
    text = Page(page("s", levels, CONDITIONS, answers(levels))).text()
    assert "P95 max_num_seqs 16" in text
    assert "max_num_seqs concurrency n ok" in text


def test_repeats_of_a_level_are_told_apart_by_their_run() -> None:
    twice = page("twice", [{**level(number, 2), "run": number} for number in range(2)], CONDITIONS, {})
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", twice.partition("<h2>Windows</h2>")[0])
    assert "<th>run</th>" in twice
    assert [cells[row : row + 2] for row, cell in enumerate(cells[:-1]) if cells[row + 1] == "2" and cell in "12"] == [
        ["1", "2"],
        ["2", "2"],
    ]
    assert "<th>run</th>" not in page("once", [level(0, 2)], CONDITIONS, {})


def test_knee_capacity_and_unstable_points_are_named_in_the_charts() -> None:
    levels = [
        level(n, users) | {"output_throughput": rate, "valid": True} | HELD
        for n, (users, rate) in enumerate([(1, 100.0), (2, 200.0), (4, 201.0), (8, 90.0), (16, 202.0)])
    ]
    text = Page(page("s", levels, CONDITIONS, answers(levels))).text()
    assert "Speed of all against speed of one – s" in text
    assert "knee" in text
    assert "capacity" in text
    assert "unstable" in text
    assert "Throughput stops rising at concurrency 2" in text


HELD = {"slo": {"ttft_p95": {"threshold": 60.0, "value": 50.0, "met": True, "interval": [50.0, 51.0], "holds": True}}}


def test_windows_say_what_was_left_out_and_why_they_are_what_they_are(made: Page) -> None:
    text = made.text()
    assert "first wave warm-up window drain" in text
    assert "opened: after the warm-up that was given; length: as long as was given; no drift" in text
    assert text.count("length: until it was interrupted") == 1


def test_a_cell_of_the_table_tells_its_interval() -> None:
    text = page("s", [level(0, 4)], CONDITIONS, {})
    assert re.search(r'<td title="95 % interval 50.0 to 50.0">50.0</td>', text)


def test_a_run_without_limits_or_without_a_valid_level_says_what_is_not_answered() -> None:
    unlimited = [{**level(0, 4), "slo": None}]
    assert "No SLO was given, so no capacity is told." in page("s", unlimited, CONDITIONS, answers(unlimited))
    none = [failed(0)]
    assert "No valid level was measured, so nothing is answered." in page("s", none, CONDITIONS, answers(none))


def test_users_and_the_arrivals_that_confirm_them_have_a_table_each() -> None:
    users = [level(n, load, server={"max_num_seqs": 8}) for n, load in enumerate((2, 4))]
    arrivals = level_object(
        plan(level=2, concurrency=None, request_rate=20.0, server={"max_num_seqs": 8}),
        [request(20 * i, [20 * i + 50], scheduled_ms=20 * i, index=i, level=2) for i in range(50)],
        [health(level=2, dropped=0)],
        slo={"ttft_p95": 60.0},
    )
    levels = [*users, arrivals]
    text = Page(page("s", levels, CONDITIONS, answers(levels))).text()
    assert "concurrency n ok" in text
    assert "asked req/s n ok" in text
    assert "concurrency or asked req/s" in text
    windows = text.split("Windows")[1]
    assert "2 users" in windows and "4 users" in windows and "20 req/s" in windows
    printed = str(Console(width=100).render_lines(report(levels, CONDITIONS)))
    assert "concur-" in printed
    assert "asked" in printed
