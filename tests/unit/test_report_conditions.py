"""How a run was done, as its report tells it: what is known, once, escaped; nothing where nothing is known."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.report.conditions import HowRun, how_run
from loadgen.report.html import page
from loadgen.stats.answers import answers
from tests.unit.test_report_html import CONDITIONS, NASTY, Page, level

WORKER = {
    "worker": 0,
    "cores": 2,
    "program_version": "0.1.0",
    "same_host": True,
    "reads": "io_uring",
    "clock_error_ms": 0.0,
}
PROVENANCE: dict[str, Any] = {
    "started": "2026-01-05T10:00:00+00:00",
    "command": "loadgen run scenarios/smoke.yaml --header 'Authorization: <secret>'",
    "seed": 7,
    "target": {
        "base_url": "http://127.0.0.1:41234",
        "proxy": None,
        "insecure": False,
        "model": "llama",
        "server_version": "0.11.0",
        "prompt_tokens_counted_by": "http://127.0.0.1:41234/tokenize",
        "effective": {
            "version": "0.11.0",
            "dtype": "bfloat16",
            "max_num_seqs": 16,
            "prefix_caching": False,
            "block_size": None,
        },
    },
    "dataset": None,
    "prefix_cache": "cold",
    "controller": {
        "loadgen": "0.1.0",
        "commit": "0123456789ab",
        "python": "3.11.7",
        "programs": {"locust": "2.47.0", "numpy": "2.4.6"},
        "kernel": "Linux 6.1",
        "machine": "x86_64",
        "cpu": "EPYC",
        "cores": 1,
    },
    "workers": [WORKER],
}


def told(provenance: dict[str, Any], **stated: Any) -> HowRun:
    return how_run(provenance, [], {"target": "simulator (chat)", **stated}, "name: chat\n")


def test_a_reader_of_the_file_alone_sees_when_by_what_and_where_it_was_run() -> None:
    levels = [level(0, 2)]
    run = how_run(PROVENANCE, levels, {"target": "simulator (chat)"}, "name: chat-capacity\n")
    text = Page(page("chat", levels, CONDITIONS, answers(levels), run)).text()
    assert "1 level, begun 2026-01-05 10:00:00 UTC." in text
    assert "How it was run: loadgen 0.1.0, Python 3.11.7, 1 worker on the controller's host" in text
    assert "loadgen run scenarios/smoke.yaml --header 'Authorization: <secret>'" in text
    assert "server http://127.0.0.1:41234" in text
    assert "server's settings max_num_seqs 16, prefix_caching off" in text
    assert "loadgen 0.1.0, commit 0123456789ab python 3.11.7 with locust 2.47.0, numpy 2.4.6" in text
    assert "controller EPYC, 1 core, x86_64, Linux 6.1" in text
    assert "workers 1 worker on the controller's host, read by io_uring" in text
    assert "name: chat-capacity" in text


def test_what_stands_among_the_conditions_is_not_said_again() -> None:
    given = told(PROVENANCE, target="http://127.0.0.1:41234 (chat)")
    assert "server" not in given.facts
    assert "server" in told(PROVENANCE).facts
    assert not [text for text in given.facts.values() if "bfloat16" in text or "0.11.0" in text]


def test_swept_settings_and_those_that_differ_between_levels_are_not_stated_as_the_servers() -> None:
    effective = [{"max_num_seqs": n, "kv_cache_blocks": 100 * n, "block_size": 16} for n in (2, 4)]
    levels = [
        {**level(n, 2, server={"max_num_seqs": one["max_num_seqs"]}), "effective": one}
        for n, one in enumerate(effective)
    ]
    assert how_run(PROVENANCE, levels, {}).facts["server's settings"] == "block_size 16"


@pytest.mark.parametrize("provenance", [{}, {"started": None, "target": {}, "controller": {}, "workers": []}])
def test_what_is_not_known_is_left_out(provenance: dict[str, Any]) -> None:
    levels = [level(0, 2)]
    run = how_run(provenance, levels, CONDITIONS)
    assert run == HowRun()
    text = page("chat", levels, CONDITIONS, answers(levels), run)
    assert "How it was run" not in text
    assert "begun" not in text
    assert "None" not in Page(text).text()


def test_an_instant_without_a_zone_does_not_get_one() -> None:
    assert told({"started": "2026-01-05T10:00:00"}).begun == "2026-01-05 10:00:00 zone not known"
    assert told({"started": "2026-01-05T10:00:00+02:00"}).begun == "2026-01-05 10:00:00 UTC+02:00"
    assert told({"started": "yesterday"}).begun is None


def test_a_run_that_went_on_later_says_when() -> None:
    resumed = [{"started": f"2026-01-0{day}T10:00:00+00:00"} for day in (6, 7)]
    facts = told({**PROVENANCE, "resumed": resumed}).facts
    assert facts["run again from"] == "2026-01-06 10:00:00 UTC, 2026-01-07 10:00:00 UTC"


def test_a_tree_with_changes_is_not_told_as_its_commit() -> None:
    controller = {**PROVENANCE["controller"], "commit": "0123456789ab-dirty"}
    facts = told({**PROVENANCE, "controller": controller}).facts
    assert facts["loadgen"] == "0.1.0, commit 0123456789ab with changes that are not in it"
    assert told({**PROVENANCE, "controller": {**controller, "commit": None}}).facts["loadgen"] == "0.1.0"


def test_workers_on_other_hosts_are_told_apart() -> None:
    far = {**WORKER, "same_host": False, "cores": 8, "clock_error_ms": 0.25}
    facts = told({**PROVENANCE, "workers": [far, {**far, "clock_error_ms": 0.5, "program_version": "0.0.9"}]}).facts
    assert facts["workers"] == (
        "2 workers on other hosts, 8 cores each, clocks known to 0.5 ms, loadgen 0.0.9 and 0.1.0, read by io_uring"
    )
    both = told({**PROVENANCE, "workers": [WORKER, far]}).summary
    assert both.endswith("1 worker on the controller's host, 1 on another host")


def test_the_way_to_the_server_and_the_data_are_named() -> None:
    target = {**PROVENANCE["target"], "proxy": "http://proxy:3128", "insecure": True}
    facts = told(
        {**PROVENANCE, "target": target, "dataset": {"path": "chats.jsonl", "digest": "ab12", "rows": 3}}
    ).facts
    assert facts["reached"] == "through the proxy http://proxy:3128, with any TLS certificate accepted"
    assert facts["dataset"] == "chats.jsonl, BLAKE2b ab12"


def test_hostile_words_are_shown_and_not_obeyed() -> None:
    nasty = f"\"'>{NASTY}</pre></details>"
    target = {**PROVENANCE["target"], "base_url": f"http://{nasty}", "effective": {"max_num_seqs": nasty}}
    provenance = {
        **PROVENANCE,
        "command": f"loadgen run {nasty}",
        "target": target,
        "prefix_cache": nasty,
        "controller": {**PROVENANCE["controller"], "cpu": nasty, "programs": {nasty: nasty}},
        "workers": [{**WORKER, "reads": nasty}],
    }
    levels = [level(0, 2)]
    text = page("chat", levels, CONDITIONS, answers(levels), how_run(provenance, levels, {}, f"name: {nasty}"))
    assert "<script" not in text
    made = Page(text)
    assert "script" not in made.tags
    assert made.text().count(nasty) == 9
