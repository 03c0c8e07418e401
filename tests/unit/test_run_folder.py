"""Reading a run back: which records belong to which level, what a killed worker left, which spools are adopted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.open_table import OpenTable, read_open
from loadgen.record import CENSORED, OK, LevelPlan, RequestRecord
from loadgen.run_folder import RunFolder
from loadgen.run_reader import RunReader
from loadgen.spool import SpoolWriter, encode_records
from loadgen.stats.level import level_object

S = 1_000_000_000
PLANS = [
    LevelPlan(level, 2, start * S, (start + 4) * S, drained_ns=(start + 5) * S) for level, start in ((0, 10), (1, 20))
]


def request(level: int, index: int, start_s: float, end_s: float, **changes: object) -> RequestRecord:
    """A request with a token every 100 ms from its start to its end."""
    arrivals = np.arange(round(start_s * S) + S // 10, round(end_s * S) + 1, S // 10, dtype=np.int64)
    values = {
        "level": level,
        "index": index,
        "user": index % 2,
        "worker": 0,
        "status": OK,
        "dispatched_ns": round(start_s * S),
        "sent_ns": round(start_s * S),
        "finished_ns": round(end_s * S),
        "first_token_ns": int(arrivals[0]),
        "last_token_ns": int(arrivals[-1]),
        "output_tokens": len(arrivals),
        "output_tokens_source": "usage",
        "arrivals_ns": arrivals,
        "coalesced": np.zeros(len(arrivals), np.bool_),
    }
    return RequestRecord(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path / "run", scenario_yaml="name: x\n", nonce="n")
    for plan in PLANS:
        made.note_level(plan, {0: 0, 1: 5 * S})
    return made


def spool(folder: RunFolder, worker: int, *records: RequestRecord) -> SpoolWriter:
    writer = SpoolWriter(folder.spool(worker))
    writer.append(encode_records(records))
    return writer


def indices(folder: RunFolder) -> list[set[tuple[int, int]]]:
    return [{(r.level, r.index) for r in data.records} for data in RunReader(folder).all()]


def test_a_request_of_the_level_before_that_reaches_into_a_window_is_part_of_its_load(folder: RunFolder) -> None:
    spool(folder, 0, request(0, 1, 11, 13), request(0, 2, 14, 22), request(1, 0, 20, 24)).close()
    assert indices(folder) == [{(0, 1), (0, 2)}, {(0, 2), (1, 0)}]
    levels = [level_object(data.plan, data.records, data.health) for data in RunReader(folder).all()]
    # In level 1's window of four seconds: one request all the time, the other for two seconds.
    assert levels[1]["achieved_concurrency"] == pytest.approx(1.5)
    assert levels[1]["output_throughput"] == pytest.approx(15, rel=0.02)
    assert levels[1]["requests"] == {OK: 1}


def test_levels_that_are_read_as_they_end_see_what_they_see_afterwards(folder: RunFolder) -> None:
    reader = RunReader(folder)
    writer = spool(folder, 0, request(0, 1, 11, 13))
    live = [{(r.level, r.index) for r in data.records} for data in reader.drained()]
    assert live == [{(0, 1)}, set()]
    writer.close()


def test_a_request_given_up_as_censored_counts_once_and_with_its_real_end(folder: RunFolder) -> None:
    given_up = request(0, 1, 12, 15, status=CENSORED, reason="still open at the end of the drain")
    real = request(0, 1, 12, 23, status=CENSORED, reason="still open at the end of the drain")
    spool(folder, 0, given_up, real).close()
    first, second = RunReader(folder).all()
    assert [r.finished_ns for r in first.records] == [23 * S]
    assert [r.finished_ns for r in second.records] == [23 * S]
    assert level_object(first.plan, first.records, [])["requests"] == {OK: 0, CENSORED: 1}


def test_a_workers_clock_offset_is_taken_off(folder: RunFolder) -> None:
    spool(folder, 1, request(0, 1, 16, 18, worker=1)).close()
    first, second = RunReader(folder).all()
    (moved,) = first.records
    assert (moved.dispatched_ns, moved.finished_ns, moved.sent_ns) == (11 * S, 13 * S, 11 * S)
    assert moved.arrivals_ns[-1] == moved.last_token_ns == 13 * S
    assert second.records == []


def test_what_a_killed_worker_had_under_way_is_censored_unless_its_spool_has_it(folder: RunFolder) -> None:
    spool(folder, 0, request(0, 1, 11, 13)).close()
    table = OpenTable(folder.open_table(0))
    for index in (1, 2):
        table.begin(0, index, (11 + index) * S, kind=index)
    table.close()
    first = next(RunReader(folder).all())
    assert {(r.index, r.status, r.kind) for r in first.records} == {(1, OK, 0), (2, CENSORED, 2)}


def test_a_level_whose_controller_was_killed_ends_with_the_last_that_is_known(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", scenario_yaml="name: x\n", nonce="n")
    folder.note_level(dataclasses.replace(PLANS[0], drained_ns=None), {})
    folder.note_level(dataclasses.replace(PLANS[1], drained_ns=None), {})
    with folder.journal.open("ab") as journal:
        journal.write(b'{"event":"level","pla')
    spool(folder, 0, request(0, 1, 11, 13)).close()
    (only,) = RunReader(folder).all()
    assert only.plan.interrupted
    assert (only.plan.level, only.plan.window_end_ns) == (0, 13 * S)


def test_the_table_of_open_requests_grows_and_gives_back_its_slots(tmp_path: Path) -> None:
    table = OpenTable(tmp_path / "worker-0.open")
    slots = [table.begin(0, index, index) for index in range(5000)]
    assert len(set(slots)) == 5000
    for slot in slots[:4990]:
        table.end(slot)
    assert {index for _, _, index, _ in read_open(tmp_path / "worker-0.open")} == set(range(4990, 5000))
    assert table.begin(1, 0, 0) in slots[:4990] or table.begin(1, 1, 0) >= 5000
    table.close()


def test_a_remote_spool_is_adopted_only_when_it_continues_what_was_shipped(folder: RunFolder, tmp_path: Path) -> None:
    shipped = spool(folder, 1, request(0, 1, 16, 18, worker=1))
    shipped.close()
    own = tmp_path / "elsewhere" / "worker-1.spool"
    own.parent.mkdir()
    own.write_bytes(folder.spool(1).read_bytes())
    with own.open("ab") as file:
        more = tmp_path / "more"
        writer = SpoolWriter(more)
        start = writer.bytes_written
        writer.append(encode_records([request(0, 3, 16, 17, worker=1)]))
        writer.close()
        file.write(more.read_bytes()[start:])
    folder.adopt(own)
    assert indices(folder)[0] == {(0, 1), (0, 3)}
    other = tmp_path / "elsewhere" / "worker-0.spool"
    other.write_bytes(b"loadgen spool 1\n")
    folder.adopt(other)
    other.rename(own)
    with pytest.raises(UsageError, match="not the whole"):
        folder.adopt(own)
    with pytest.raises(UsageError, match="not a worker's spool"):
        folder.adopt(tmp_path / "more")


def test_a_run_that_goes_on_is_not_judged_by_another_command(folder: RunFolder) -> None:
    with folder.lock(), pytest.raises(UsageError, match="still going on"):
        RunFolder.open(folder.path)
    assert RunFolder.open(folder.path).path == folder.path


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run folder"):
        RunFolder.open(tmp_path)


def cut_off(folder: RunFolder) -> None:
    """The controller was killed in level 1."""
    folder.note_level(dataclasses.replace(PLANS[1], drained_ns=None), {0: 0})


def test_a_level_that_was_run_again_when_the_run_was_resumed_is_that_of_the_newest_part(folder: RunFolder) -> None:
    """The clock of the second controller begins anew, as after a restart of the machine."""
    cut_off(folder)
    spool(folder, 0, request(0, 0, 11, 12), request(1, 0, 21, 22)).close()
    part = folder.begin_part("again")
    spool(part, 0, request(1, 0, 11, 12), request(1, 1, 12, 13)).close()
    part.note_level(dataclasses.replace(PLANS[0], level=1), {0: 0})
    first, again = RunReader(folder).all()
    assert {(r.level, r.index) for r in first.records} == {(0, 0)}
    assert {(r.level, r.index) for r in again.records} == {(1, 0), (1, 1)}
    assert not again.plan.interrupted and again.plan.window_start_ns == 10 * S


def test_a_run_that_was_resumed_and_cut_off_before_its_level_keeps_what_there_was(folder: RunFolder) -> None:
    cut_off(folder)
    spool(folder, 0, request(0, 0, 11, 12), request(1, 0, 21, 22)).close()
    folder.begin_part("again")
    first, cut = RunReader(folder).all()
    assert not first.plan.interrupted and cut.plan.interrupted and len(cut.records) == 1


def test_failures_are_those_since_the_run_was_begun_or_resumed(folder: RunFolder) -> None:
    folder.note_failure({"max_num_seqs": 2}, 0, "died", "It ended.")
    assert [failure["text"] for failure in folder.failures()] == ["It ended."]
    assert [entry.plan for entry in folder.plans()] == PLANS
    folder.begin_part("again")
    assert folder.failures() == []


def test_a_spool_that_was_left_elsewhere_goes_to_the_part_that_has_the_beginning_of_it(
    folder: RunFolder, tmp_path: Path
) -> None:
    part = folder.begin_part("again")
    for of, record in ((folder, request(0, 0, 11, 12)), (part, request(1, 7, 11, 12))):
        spool(of, 0, record).close()
    elsewhere = tmp_path / "elsewhere" / "worker-0.spool"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes((part.records / "worker-0.spool").read_bytes() + b"more")
    folder.adopt(elsewhere)
    assert (part.records / "worker-0.spool").read_bytes().endswith(b"more")
    assert not (folder.records / "worker-0.spool").read_bytes().endswith(b"more")
