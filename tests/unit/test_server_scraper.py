"""Scraping a real HTTP server: at the instants that were asked for, without holding anybody up, into a file that may tear."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.route import Route
from loadgen.server_metrics.file import SampleReader, SampleWriter
from loadgen.server_metrics.sample import ServerSample
from loadgen.server_metrics.scraper import Scraper
from tests.page_server import PageServer

PAGE = (
    "process_start_time_seconds 1\nvllm:num_requests_running 3\n"
    'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 4\nvllm:time_to_first_token_seconds_sum 2\n'
)
FOREVER = 1 << 62


@contextlib.contextmanager
def scraping(url: str, path: Path, *, every_s: float = 60.0, api_key: str | None = None) -> Iterator[Scraper]:
    every_ns = round(every_s * 1e9)
    scraper = Scraper(url, path, route=Route(), api_key=api_key, watch_gpus=False, every_ns=every_ns)
    try:
        yield scraper
    finally:
        scraper.close()


def samples(path: Path) -> list[ServerSample]:
    return SampleReader(path).between(0, FOREVER)


def test_scrapes_come_at_their_interval_and_at_the_instants_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with PageServer(lambda k: (200, PAGE)) as server, scraping(server.url, path) as scraper:
        assert scraper.await_sample(1, time.sleep)
        begun_ns = time.monotonic_ns()
        instants_ns = [begun_ns + 50_000_000, begun_ns + 200_000_000]
        scraper.at(*reversed(instants_ns))
        assert scraper.await_sample(instants_ns[1], time.sleep)
    found = samples(path)
    assert len(found) == 3  # the first, and the two that were asked for: the next regular one is a minute away
    for sample, instant_ns in zip(found[1:], instants_ns, strict=True):
        assert instant_ns <= sample.asked_ns <= sample.answered_ns
        assert sample.asked_ns - instant_ns < 2e9  # a busy machine wakes it late, never early
    assert found[1].gauges == {"running": 3.0, "engines": 1.0}
    assert found[1].started_s == 1.0


def test_an_interval_is_kept_without_bursts_where_the_server_is_slow(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"

    def slow_once(k: int) -> tuple[int, str]:
        if k == 1:
            time.sleep(0.35)
        return 200, PAGE

    with PageServer(slow_once) as server, scraping(server.url, path, every_s=0.1) as scraper:
        assert scraper.await_sample(time.monotonic_ns() + 700_000_000, time.sleep)
    asked_ns = [sample.asked_ns for sample in samples(path)]
    assert len(asked_ns) <= 7  # nothing is made up for
    assert asked_ns[2] - asked_ns[1] > 300e6


def test_of_a_histogram_the_ends_are_kept_and_not_every_second(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with PageServer(lambda k: (200, PAGE)) as server, scraping(server.url, path, every_s=0.02) as scraper:
        assert scraper.await_sample(1, time.sleep)
        end_ns = time.monotonic_ns() + 150_000_000
        scraper.at(end_ns)
        assert scraper.await_sample(end_ns + 50_000_000, time.sleep)
    found = samples(path)
    with_them = [sample for sample in found if sample.histograms]
    assert len(found) > 2
    assert with_them == [found[0], next(sample for sample in found if sample.asked_ns >= end_ns)]


@pytest.mark.parametrize(
    ("status", "text", "why"),
    [
        (404, "not found", "the target has no /metrics (it answered 404)"),
        (401, "who are you", "the target has no /metrics (it answered 401)"),
        (307, "", "the target has no /metrics (it answered 307)"),
        (200, "<html>a gateway</html>", "the target's /metrics is of no use: the answer is not Prometheus text"),
        (
            200,
            "# TYPE up gauge\nup 1\n",
            "the target's /metrics is of no use: it has none of the metrics of vLLM, SGLang or llama.cpp",
        ),
    ],
)
def test_a_server_without_metrics_is_asked_once_and_the_reason_is_kept(
    tmp_path: Path, status: int, text: str, why: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    with PageServer(lambda k: (status, text)) as server, scraping(server.url, path, every_s=0.01) as scraper:
        assert scraper.await_sample(1, time.sleep)
        assert not scraper.await_sample(FOREVER, time.sleep, most_s=5)  # its thread has ended, so nobody waits
        assert len(server.asked_ns) == 1
    assert [sample.error for sample in samples(path)] == [why]


def test_a_server_that_had_metrics_is_asked_again_whatever_it_answers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    answers = [(200, PAGE), (404, ""), (500, ""), (200, "junk"), (200, PAGE)]
    with (
        PageServer(lambda k: answers[min(k, 4)]) as server,
        scraping(server.url, path, every_s=0.02) as scraper,
    ):
        deadline = time.monotonic() + 10
        while len(server.asked_ns) < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert scraper.latest is not None
    told = [sample.error for sample in samples(path)[:5]]
    assert told[0] is None and told[4] is None
    assert told[2] == "the target's /metrics answered 500"
    assert all(told[1:4])


def test_a_server_that_is_not_there_is_a_sample_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with PageServer(lambda k: (200, PAGE)) as server:
        url = server.url
    with scraping(url, path) as scraper:
        assert scraper.await_sample(1, time.sleep)
    (sample,) = samples(path)
    assert sample.error == "the target's /metrics did not answer (ConnectionRefusedError: Connection refused)"
    assert (sample.gauges, sample.counters) == ({}, {})


def test_closing_does_not_wait_for_the_next_scrape(tmp_path: Path) -> None:
    with PageServer(lambda k: (200, PAGE)) as server:
        scraper = Scraper(server.url, tmp_path / "m", route=Route(), watch_gpus=False)
        assert scraper.await_sample(1, time.sleep)
        begun = time.monotonic()
        scraper.close()
        assert time.monotonic() - begun < 0.9


def test_the_key_goes_along_only_where_it_is_given(tmp_path: Path) -> None:
    with PageServer(lambda k: (200, PAGE)) as server:
        for key in ("k1", None):
            with scraping(server.url, tmp_path / "m", api_key=key) as scraper:
                assert scraper.await_sample(1, time.sleep)
    assert [headers.get("Authorization") for headers in server.headers] == ["Bearer k1", None]


def test_a_torn_last_line_is_left_for_the_next_read_and_a_torn_one_within_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer, reader = SampleWriter(path), SampleReader(path)
    one, two, three = (ServerSample(at, at + 1, "x") for at in (10, 20, 30))
    writer.append(one)
    with path.open("ab") as file:
        file.write(b'{"asked_ns":15,"answ')
    assert reader.between(0, 100) == [one]
    with path.open("ab") as file:  # the controller was killed there, and another one went on
        file.write(b"\n")
    writer.append(two)
    writer.append(three)
    writer.close()
    assert reader.between(0, 100) == [one, two, three]
    assert reader.between(20, 29) == [two]
    assert SampleReader(path).between(0, 100) == [one, two, three]


def test_a_run_without_samples_has_none(tmp_path: Path) -> None:
    assert SampleReader(tmp_path / "none.jsonl").between(0, 100) == []
