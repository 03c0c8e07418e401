"""A soak's windows, its verdict and its memory, in virtual time and from spools."""

from __future__ import annotations

import dataclasses
import re
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen import run_reader
from loadgen.record import CENSORED, CONNECT, LevelPlan, RequestRecord
from loadgen.run_folder import RunFolder
from loadgen.run_reader import PartReader, RunReader
from loadgen.server_metrics.sample import ServerSample
from loadgen.soak_file import FILE_NAME, append_windows, read_windows, write_windows
from loadgen.soak_reader import JUDGED_NS
from loadgen.spool import SpoolWriter, encode_records
from loadgen.stats.soak import FIGURES, soak_object
from loadgen.stats.soak_windows import NO_ANSWER, REFUSED, RESTARTED, SoakWindows
from loadgen.virtual import open_loop
from server.simulator.settings import SimulatorSettings
from tests.level_records import request

MINUTE_NS = 60_000_000_000
START_NS = 1_000_000_000
A_MINUTE = 60


def ten_minutes(seed: int, *, slower_a_minute: float) -> list[RequestRecord]:
    """Poisson arrivals at a server whose steps take longer from minute to minute, as with a leak that is searched linearly."""
    rng = np.random.default_rng(seed)
    records: list[RequestRecord] = []
    for minute in range(10):
        slower = 1 + slower_a_minute * minute
        settings = SimulatorSettings(step_overhead_ms=8 * slower, prefill_time_per_token_ms=0.1 * slower)
        part = open_loop(
            settings,
            offsets_s=np.cumsum(rng.exponential(0.5, 200)).tolist(),
            input_tokens=64,
            output_tokens=12,
            duration_ns=MINUTE_NS,
            start_ns=START_NS + minute * MINUTE_NS,
        )
        records += [dataclasses.replace(one, index=len(records) + k) for k, one in enumerate(part)]
    return records


def judged(records: Sequence[RequestRecord], samples: Sequence[ServerSample] = (), minutes: int = 10) -> dict[str, Any]:
    windows = SoakWindows(START_NS, MINUTE_NS, open_loop=True)
    windows.add(records)
    windows.add_samples(samples)
    return soak_object(
        windows.finish(START_NS + minutes * MINUTE_NS), window_s=60.0, max_drift=0.1, judged_s=minutes * 60.0
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_server_that_slows_down_over_ten_minutes_drifts(seed: int) -> None:
    found = judged(ten_minutes(seed, slower_a_minute=0.08))
    assert found["drift"] == "yes"
    ttft = found["figures"]["p50_ttft_ms"]
    assert ttft["drift"] == "yes"
    # 8 % of the first minute each minute; the interval of the slope says so too.
    assert 0.3 < ttft["change"] < 0.8
    low, high = ttft["interval_per_hour"]
    assert ttft["threshold_per_hour"] < low <= ttft["slope_per_hour"] <= high
    assert "no" not in {found["figures"][name]["drift"] for name in ("p95_ttft_ms", "p50_tpot_ms", "p95_tpot_ms")}
    assert found["text"].startswith("DRIFT for the worse over 10 min in windows of 1 min: TTFT P50 +")


@pytest.mark.parametrize("seed", range(6))
def test_a_steady_server_under_random_arrivals_does_not_drift(seed: int) -> None:
    found = judged(ten_minutes(seed, slower_a_minute=0.0))
    assert found["drift"] in ("no", "undecided")
    assert found["figures"]["p50_tpot_ms"]["drift"] == "no"
    assert found["figures"]["error_rate"]["drift"] == "no"


def row(number: int, **changed: Any) -> dict[str, Any]:
    figures = dict.fromkeys(FIGURES, 100.0) | {"error_rate": 0.0, "kv_usage": 0.2}
    return {
        **figures,
        "window": number,
        "start_s": 60.0 * number,
        "window_s": 60.0,
        "requests": {"ok": 100},
        "server_restarts": 0,
        "late_requests": 0,
        "mark": None,
        **changed,
    }


def verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return soak_object(rows, window_s=60.0, max_drift=0.1, judged_s=600.0)


def test_the_part_that_the_level_s_own_figures_are_of_is_told_where_it_is_not_the_whole() -> None:
    told = "The level's own figures are of its last 10 min."
    assert verdict([row(k) for k in range(30)])["text"].endswith(told)
    assert told not in verdict([row(k) for k in range(10)])["text"]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_drift(name: str) -> None:
    rng = np.random.default_rng(3)
    rises = [
        row(k, **{name: (row(k)[name] + 0.002) * (1 + 0.02 * k) + 0.004 * k + rng.normal(0, 1e-4)}) for k in range(60)
    ]
    found = verdict(rises)
    assert found["figures"][name]["drift"] == found["drift"] == "yes"
    assert [other for other, one in found["figures"].items() if one["drift"] == "yes"] == [name]


def test_noise_many_seeds_is_seldom_called_a_drift() -> None:
    wrong = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = [row(k, **{name: 100 + rng.normal(0, 8) for name in list(FIGURES)[:5]}) for k in range(30)]
        wrong += verdict(rows)["drift"] == "yes"
    assert wrong <= 5


def test_windows_in_which_the_server_was_away_are_marked_and_left_out_of_trends() -> None:
    rows = [row(k) for k in range(30)]
    for k in (20, 21):
        rows[k] = row(k, output_throughput=0.0, p50_ttft_ms=None, error_rate=1.0, mark=NO_ANSWER, requests={CONNECT: 9})
    rows[22] = row(22, output_throughput=1.0, mark=RESTARTED, server_restarts=1)
    found = verdict(rows)
    assert found["drift"] == "no"
    assert (found["marked_windows"], found["server_restarts"]) == (3, 1)
    assert found["figures"]["output_throughput"]["windows"] == 27
    assert "began anew once" in found["text"] and "3 windows are marked" in found["text"]


def test_stalls_inside_streams_that_grow_are_a_drift_though_tpot_hardly_moves() -> None:
    records: list[RequestRecord] = []
    for minute in range(30):
        for k in range(20):
            begun_ms = 60_000 * minute + 2_000 * k + 1_000
            arrivals_ms = [begun_ms + 50 + 10 * n + (30 + 6 * minute) * (n > 100) for n in range(600)]
            records.append(request(begun_ms, arrivals_ms, index=len(records), scheduled_ms=begun_ms))
    found = judged(records, minutes=30)
    assert found["figures"]["p50_tpot_ms"]["drift"] == "no"
    assert found["figures"]["p50_longest_gap_ms"]["drift"] == "yes"
    assert found["worse"] and "longest gap in a stream P50 +" in found["text"]
    assert found["windows"][0]["p50_longest_gap_ms"] == pytest.approx(40)
    assert found["windows"][29]["p95_longest_gap_ms"] == pytest.approx(40 + 6 * 29)


def test_failures_that_stay_until_the_end_are_a_drift() -> None:
    rows = [row(k, error_rate=max(0.0, 0.02 * (k - 10)), mark=REFUSED if k > 20 else None) for k in range(40)]
    assert verdict(rows)["figures"]["error_rate"]["drift"] == "yes"


def test_every_key_of_a_window_and_of_a_verdict_is_documented_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs/soak.md").read_text(encoding="utf-8")
    tables = [part.split("\n\n")[0] for part in page.split("| key | meaning |")[1:]]
    written = [set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*)\|", table, re.M)))) for table in tables]
    found = judged(ten_minutes(0, slower_a_minute=0))
    assert written == [set(found["windows"][0]), set(found)]
    (told,) = re.findall(r"By name of the figure: (.*); null", page)
    one = found["figures"]["p50_ttft_ms"]
    assert set(re.findall(r"`(\w+)`", told)) == set(one)


def test_too_few_windows_are_undecided() -> None:
    found = verdict([row(k) for k in range(5)])
    assert found["drift"] == "undecided" and "8 windows" in found["text"]
    assert set(found["figures"].values()) == {None}


def test_a_restart_seen_in_the_scrapes_marks_its_window_and_memory_is_the_most_of_it() -> None:
    samples = [
        ServerSample(
            START_NS + k * 20_000_000_000,
            START_NS + k * 20_000_000_000,
            kind="vllm",
            started_s=1.0 if k < 7 else 2.0,
            gauges={"kv_usage": 0.1 * (k % 3), "resident_bytes": 1000.0 + k},
        )
        for k in range(12)
    ]
    windows = judged(ten_minutes(0, slower_a_minute=0), samples, minutes=4)["windows"]
    assert [one["mark"] for one in windows] == [None, None, RESTARTED, None]
    assert [one["server_memory_bytes"] for one in windows] == [1002, 1005, 1008, 1011]
    assert windows[0]["kv_usage"] == pytest.approx(0.1)


def test_windows_do_not_depend_on_how_the_records_come() -> None:
    records = ten_minutes(1, slower_a_minute=0)
    at_once = judged(records)["windows"]
    windows = SoakWindows(START_NS, MINUTE_NS, open_loop=True)
    for first in range(0, len(records), 17):
        windows.add(records[first : first + 17])
        windows.ready(windows.newest_ns)
    in_portions = windows.finish(START_NS + 10 * MINUTE_NS)
    for one, other in zip(at_once, in_portions, strict=True):
        assert one | {"requests": 0} == pytest.approx(other | {"requests": 0}) and one["requests"] == other["requests"]


def test_tokens_are_counted_in_the_window_of_their_arrival_and_those_of_a_censored_request_once() -> None:
    ended = next(one for one in ten_minutes(2, slower_a_minute=0) if one.status == "ok")
    shift = START_NS + MINUTE_NS - int(ended.arrivals_ns[5])
    moved = dataclasses.replace(
        ended, arrivals_ns=ended.arrivals_ns + shift, finished_ns=ended.finished_ns + shift, sent_ns=START_NS
    )
    given_up = dataclasses.replace(moved, status=CENSORED, arrivals_ns=moved.arrivals_ns[:5], event_tokens=None)
    windows = SoakWindows(START_NS, MINUTE_NS, open_loop=True)
    windows.add([given_up])
    windows.add([moved])
    rows = windows.finish(START_NS + 2 * MINUTE_NS)
    assert [one["output_throughput"] * 60 for one in rows] == pytest.approx([5, 7])
    assert [one["requests"]["ok"] for one in rows] == [0, 1]


def test_the_file_of_windows_grows_line_by_line_and_a_torn_end_is_passed_over(tmp_path: Path) -> None:
    append_windows(tmp_path, 0, [row(0), row(1)])
    append_windows(tmp_path, 0, [row(2)])
    whole = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(whole[:-9])
    assert [one["window"] for one in read_windows(tmp_path)] == [0, 1]
    write_windows(tmp_path, [{"level": 0, "soak": {"windows": [row(0), row(1), row(2)]}}])
    assert [one["window"] for one in read_windows(tmp_path)] == [0, 1, 2]


class GrowingRun:
    """A run folder whose two spools grow minute by minute, as fast as they can be written."""

    def __init__(self, path: Path, minutes: int) -> None:
        self.folder = RunFolder.create(path, scenario_yaml="", nonce="n")
        self.plan = LevelPlan(0, None, START_NS, START_NS + minutes * MINUTE_NS, request_rate=1.0, soak_window_s=60.0)
        self.folder.note_level(self.plan, {0: 0, 1: 5_000})
        self._spools = [SpoolWriter(self.folder.spool(worker)) for worker in (0, 1)]
        self._minute = open_loop(
            SimulatorSettings(),
            offsets_s=[60 / A_MINUTE * k for k in range(A_MINUTE)],
            input_tokens=64,
            output_tokens=8,
            duration_ns=MINUTE_NS,
            start_ns=0,
        )[:-3]

    def grow(self, minute: int, *, slower_ms: float = 0.0) -> None:
        shift = START_NS + minute * MINUTE_NS
        for worker in (0, 1):
            mine = [_moved(one, shift + 5_000 * worker, 1000 * minute, worker) for one in self._minute[worker::2]]
            mine = [_later(one, round(slower_ms * 1e6)) for one in mine]
            for first in range(0, len(mine), 40):
                self._spools[worker].append(encode_records(mine[first : first + 40]))

    def end(self) -> None:
        self.folder.note_level(dataclasses.replace(self.plan, drained_ns=self.plan.window_end_ns + 1), {0: 0, 1: 5_000})


def _later(one: RequestRecord, by_ns: int) -> RequestRecord:
    """Its answer came so much later."""
    late = {name: getattr(one, name) + by_ns for name in ("finished_ns", *_OF_THE_ANSWER)}
    return dataclasses.replace(one, arrivals_ns=one.arrivals_ns + by_ns, **late)


_OF_THE_ANSWER = ("response_started_ns", "first_token_ns", "first_visible_ns", "last_token_ns")


def _moved(one: RequestRecord, by_ns: int, first: int, worker: int) -> RequestRecord:
    instants = [*("dispatched_ns", "finished_ns", "scheduled_ns", "sent_ns", "response_started_ns")]
    instants += ["first_token_ns", "first_visible_ns", "last_token_ns"]
    moved: dict[str, Any] = {name: getattr(one, name) + by_ns for name in instants}
    return dataclasses.replace(
        one, index=first + one.index, worker=worker, arrivals_ns=one.arrivals_ns + by_ns, **moved
    )


def test_memory_does_not_grow_with_the_length_of_a_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reader, "_THIN_AT", 256)
    minutes = 50
    run = GrowingRun(tmp_path / "run", minutes)
    reader = PartReader(run.folder)
    held = []
    tracemalloc.start()
    try:
        for minute in range(minutes):
            run.grow(minute)
            reader.soak_windows(START_NS + (minute + 1) * MINUTE_NS)
            held.append(tracemalloc.get_traced_memory()[0])
        traced_mb = np.array(held) / 1e6
    finally:
        tracemalloc.stop()
    # Ten minutes of records are kept, and as many again before they are thinned; beside that a row a minute, below 2 kB.
    # Without thinning it were 70 kB a minute.
    early, late = traced_mb[15:30].max(), traced_mb[-15:].max()
    assert (late - early) / (minutes - 30) < 0.005
    assert len(reader._records) <= 2 * A_MINUTE * 11


def test_a_followed_soak_gives_the_same_as_one_that_is_read_at_once(tmp_path: Path) -> None:
    minutes = 25
    run = GrowingRun(tmp_path / "run", minutes)
    following = PartReader(run.folder)
    told: list[dict[str, Any]] = []
    for minute in range(minutes):
        run.grow(minute)
        told += [one for _, rows in following.soak_windows(START_NS + (minute + 1) * MINUTE_NS) for one in rows]
    run.end()
    (followed,), (at_once,) = list(following.drained()), list(RunReader(run.folder).all())
    assert followed.soak == at_once.soak and followed.soak is not None
    assert [one["window"] for one in followed.soak] == list(range(minutes))
    assert {one["requests"]["ok"] for one in followed.soak} == {A_MINUTE - 3}
    assert at_once.plan.window_end_ns - at_once.plan.window_start_ns == JUDGED_NS
    keys = [sorted((one.index, one.finished_ns) for one in data.records) for data in (followed, at_once)]
    assert keys[0] == keys[1] and 10 * (A_MINUTE - 3) <= len(keys[0]) <= 11 * A_MINUTE
    assert [one["window"] for one in told] == list(range(len(told)))


def test_a_soak_whose_controller_was_killed_is_judged_up_to_its_last_record(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run", 60)
    for minute in range(12):
        run.grow(minute)
    (data,) = RunReader(run.folder).all()
    assert data.plan.interrupted and data.soak is not None and len(data.soak) == 11
    assert data.plan.window_end_ns < START_NS + 12 * MINUTE_NS
    assert len(data.records) >= 10 * (A_MINUTE - 3) - 1  # the last may not be the last that was under way
