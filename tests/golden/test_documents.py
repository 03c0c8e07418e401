"""The documents that people write: links lead somewhere, commands parse, fields are those of a real level object."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from loadgen import record
from loadgen.audit_trail import SEGMENT, AuditTrail
from loadgen.cli import COMMANDS, GROUPS, load_command
from loadgen.cli.options import scenario_from
from loadgen.cli.reference import ROOT
from loadgen.record import LevelPlan, RequestRecord
from loadgen.search.search import Search
from loadgen.server_metrics.sample import GpuSample
from loadgen.stats.answers import answers, verdict
from loadgen.stats.classes import CLASS_LATENCIES, RequestKind
from loadgen.stats.latencies import LATENCIES
from loadgen.stats.level import level_object
from loadgen.stats.limit import with_limits
from loadgen.stats.turns import TURN_LATENCIES
from loadgen.stats.validity import RULES
from loadgen.virtual import closed_loop, open_loop
from server.simulator.settings import SimulatorSettings
from tests.level_records import health
from tests.server_samples import perfect_server

DOCUMENTS = sorted(
    {
        *ROOT.glob("*.md"),
        *(path for folder in ("docs", "scenarios", "k8s") for path in (ROOT / folder).rglob("*.md")),
    }
)
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
METRICS = ROOT / "docs/metrics.md"

_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(path: Path) -> str:
    """A document without its code blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """What a link may name behind `#`, as GitHub makes it of the headings."""
    headings = re.findall(r"^#+ +(.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_every_relative_link_leads_to_a_file_and_a_heading(name: str) -> None:
    broken = []
    for link in _LINK.findall(prose(ROOT / name)):
        target, _, anchor = link.partition("#")
        if urlsplit(link).scheme:
            continue
        path = (ROOT / name).parent / target if target else ROOT / name
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []


def command_lines(path: Path) -> Iterator[str]:
    """Lines of code blocks that begin with `loadgen `, after a prompt and the environment's path if need be."""
    for block in _FENCE.findall(path.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
            if line.startswith("loadgen "):
                yield line


def check_command(line: str) -> None:
    """Parses a command line as the program would, without running it."""
    words = shlex.split(line, comments=True)[1:]
    name = words.pop(0)
    if name == "--version":
        return
    assert name in COMMANDS, f"there is no command {name}"
    command = load_command(name)
    if name in GROUPS:
        inner = words.pop(0)
        command = command.commands[inner]
    context = command.make_context(name, [word.strip("…") or word for word in words])
    if "scenario_file" in context.params:
        scenario_from(context.params)


@pytest.mark.parametrize("name", NAMES)
def test_every_loadgen_command_in_a_code_block_parses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for line in command_lines(ROOT / name):
        try:
            check_command(line)
        except Exception as error:
            pytest.fail(f"{name}: {line}: {error}")


@pytest.mark.parametrize(
    "line", ["loadgen run --no-such-option", "loadgen walk", "loadgen run --warmup soon", "loadgen serve sim --port x"]
)
def test_a_wrong_command_line_would_be_noticed(line: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        check_command(line)


@pytest.mark.parametrize("name", NAMES)
def test_no_document_tells_of_the_place_where_it_was_written(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w.])/(?:work|root|tmp|home|Users|opt)(?:/[\w./-]*)?(?![\w])", text)
    workplace = re.findall(r"\bsub-?agents?\b|\bhelpers?\b|(?<!aiohttp )\bsessions?\b", text, re.IGNORECASE)
    hosts = [urlsplit(url).hostname or "" for url in re.findall(r"https?://[^\s)`'\"<>\]]+", text)]
    indexes = [host for host in hosts if re.search(r"pypi|regist|mirror|artifact|nexus|proxy", host)]
    addresses = re.findall(r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)\d{1,3}(?:\.\d{1,3}){3}\b", text)
    assert paths + workplace + indexes + addresses == []


def test_every_place_that_the_architecture_names_is_there_and_no_package_is_left_out() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:loadgen|server)/[\w/.]*)`", text))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    packages = {f"{path.parent.relative_to(ROOT)}/" for path in ROOT.glob("*/*/__init__.py")} - {"tests/"}
    assert {path for path in packages if path.split("/")[0] in ("loadgen", "server")} - named == set()


def test_every_file_that_contributing_and_the_decisions_name_is_there() -> None:
    missing = []
    for path in (ROOT / "CONTRIBUTING.md", *(ROOT / "docs/decisions").glob("*.md")):
        for name in re.findall(r"`((?:loadgen|server|tests|bench|docs|scenarios)/[\w/.-]+)`", prose(path)):
            if not (ROOT / name).exists():
                missing.append(f"{path.name}: {name}")
    assert missing == []


def test_every_make_target_is_in_contributing() -> None:
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)) - {"help"}
    assert set(re.findall(r"^\| `make ([a-z]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)) == targets


def tables(heading: str) -> list[list[str]]:
    """The rows of every table of docs/metrics.md whose first heading is `heading`, a list of cells each."""
    rows: list[list[str]] = []
    inside = False
    for line in METRICS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells and set("".join(cells)) <= set("-"):
            continue
        if not cells:
            inside = False
        elif not inside and cells[0] == heading:
            inside = True
        elif inside:
            rows.append(cells)
    return rows


def documented(heading: str) -> set[str]:
    return {row[0].strip("`") for row in tables(heading)}


OPEN = {  # objects whose keys are data, and how the document names a key
    "requests": "STATUS",
    "classes[].requests": "STATUS",
    "turns.by_turn[].requests": "STATUS",
    "finish_reasons": "REASON",
    "output_tokens_source": "SOURCE",
    "server": "SETTING",
    "intervals": "FIGURE",
    "slo": "LIMIT",
    "server_metrics.latencies": "LATENCY",
    "server_metrics.requests": "REASON",
    "server_metrics.waiting_by_reason": "REASON",
    "server_metrics.gpus[].throttle": "REASON",
}


def fields(value: Mapping[str, Any], prefix: str = "") -> set[str]:
    """The names of an object's fields as the document writes them: `a.b`, `a[].b`, `requests.STATUS`."""
    found: set[str] = set()
    for key, inner in value.items():
        name = f"{prefix}{key}"
        found.add(name)
        for one in inner if isinstance(inner, list) else ():
            found |= fields(one, f"{name}[].") if isinstance(one, dict) else set()
        if isinstance(inner, dict) and name in OPEN:
            found.add(f"{name}.{OPEN[name]}")
            for one in inner.values():
                found |= fields(one, f"{name}.{OPEN[name]}.") if isinstance(one, dict) else set()
        elif isinstance(inner, dict):
            found |= fields(inner, f"{name}.")
    return found


def real_level() -> dict[str, Any]:
    """A level of the simulator's engine in virtual time, short and with a failure, so that every list has an entry."""
    settings = SimulatorSettings()
    records = closed_loop(settings, concurrency=4, input_tokens=64, output_tokens=16, duration_ns=1_500_000_000)
    window = (records[0].dispatched_ns, records[0].dispatched_ns + 1_000_000_000)
    records[3:6] = [_failed(one) for one in records[3:6]]
    records[:2] = [dataclasses.replace(one, session=0, turn=turn) for turn, one in enumerate(records[:2], 1)]
    plan = LevelPlan(0, 4, *window, server={"max_num_seqs": 16}, lost_workers=1, workers=2)
    audit = AuditTrail(np.empty(0, SEGMENT), {})
    slo = {"ttft_p95": 500.0, "error_rate": 0.01}
    kinds = [RequestKind("chat", 0.8, 0), RequestKind("rag", 0.2, 64)]
    gpu = GpuSample(0, "GPU", throttle=("sw_power_cap",))
    server = perfect_server(records, window, change=lambda one: dataclasses.replace(one, gpus=(gpu,)))
    level = level_object(plan, records, [health()], slo=slo, audit=audit, kinds=kinds, server=server)
    return with_limits([level])[0]


def open_level() -> dict[str, Any]:
    """The same of an open loop, which has figures of its own."""
    records = open_loop(
        SimulatorSettings(), offsets_s=[0.1, 0.2], input_tokens=64, output_tokens=16, duration_ns=1_500_000_000
    )
    plan = LevelPlan(0, None, 1_000_000_000, 2_000_000_000, request_rate=10.0)
    return level_object(plan, records, [health(dropped=0)])


def _failed(one: RequestRecord) -> RequestRecord:
    return dataclasses.replace(one, status="http_503", reason="busy", output_tokens=None, output_tokens_source=None)


def for_every_latency(name: str) -> list[str]:
    """`p50_M_ms` as one name for each latency; any other name as it is."""
    before, m, after = name.partition("_M")
    latencies = LATENCIES
    for part, of_part in (("classes[].", CLASS_LATENCIES), ("turns.by_turn[].", TURN_LATENCIES)):
        latencies = of_part if name.startswith(part) else latencies
    return [f"{before}_{latency}{after}" for latency in latencies] if m and after in ("", "_ms") else [name]


def test_every_field_of_a_level_object_is_documented_and_no_other() -> None:
    level = real_level()
    assert level["reasons"] and level["warnings"] and level["error_reasons"] and level["requests"]["ok"]
    written = {name for name in documented("field") if not name.startswith(("answers.", "verdict."))}
    expanded = {one for name in written for one in for_every_latency(name)}
    of_both = fields(level) | fields(open_level())
    assert expanded == {re.sub(r"(steady_state\.figures)\.[a-z_]+", r"\1.FIGURE", name) for name in of_both}


def test_every_field_has_the_unit_of_its_name_and_a_meaning() -> None:
    units = {"_ms": "ms", "_ns": "ns", "_s": "s", "_rate": "requests/s", "_throughput": ("tokens/s", "requests/s")}
    for name, unit, meaning in tables("field"):
        assert unit and meaning.endswith("."), name
        for ending, expected in units.items():
            if name.strip("`").endswith(ending) and "error_rate" not in name and "highest_output" not in name:
                assert unit in expected, name


def judged_levels() -> list[dict[str, Any]]:
    """Levels of two settings, each run twice and within its limits, and one of arrivals at their rate, so that there is every answer."""
    held = {"ttft_p95": {"threshold": 500.0, "value": 1.0, "met": True, "interval": [1.0, 2.0], "holds": True}}
    users = [
        real_level()
        | {"valid": True, "level": 2 * setting + run, "run": run, "server": {"max_num_seqs": setting}, "slo": held}
        for setting in range(2)
        for run in range(2)
    ]
    equal = {"request_rate": users[0]["served_request_rate"], "server": users[0]["server"], "slo": held}
    again = [{**users[0], "level": 7, "concurrency": 8}, {**users[0], "level": 8}]  # ends as it began
    return [*users, *again, open_level() | equal | {"valid": True, "level": 9}]


def test_every_figure_of_the_summary_is_documented_and_no_other() -> None:
    levels = judged_levels()
    search = Search(users=True, first=1, least=1, most=8)
    failures = [{"server": {}, "level": 0, "kind": "died", "text": "It ended."}]
    every = answers(levels, search=search, failures=failures)
    said = fields({"answers": every, "verdict": {**verdict(levels), "planned_levels": 2}}) - {
        "answers",
        "verdict",
    }
    written = {name for name in documented("field") if name.startswith(("answers.", "verdict."))}
    # Of these parts it is said once what they hold.
    said = {re.sub(r"(\.server|\.limit|highest_within_slo\.by_server)(\[\])?\..*", r"\1", name) for name in said}
    assert written == {re.sub(r"(\.figures)\.[a-z0-9_]+", r"\1.FIGURE", name) for name in said}


def test_every_latency_status_and_rule_is_documented_and_no_other() -> None:
    assert documented("M") == set(LATENCIES)
    assert documented("status") == record.STATUSES | {"http_<code>"}
    written = [(row[0].strip("`"), row[1]) for row in tables("rule")]
    assert written == [(rule.name, rule.severity) for rule in RULES]
