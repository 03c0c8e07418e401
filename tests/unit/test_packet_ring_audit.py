"""From the raw answer to the place of its events, the files in between, and what the level says of the comparison."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.audit_reader import AuditReader
from loadgen.audit_trail import (
    SEGMENT,
    AnswersReader,
    AnswersWriter,
    AuditTrail,
    HeardAnswer,
    SegmentsReader,
    SegmentsWriter,
)
from loadgen.errors import ScenarioError
from loadgen.record import RequestRecord
from loadgen.report.figures import audit_lines
from loadgen.scenario.load import load_scenario
from loadgen.stats.level import level_object
from loadgen.wire.http_framing import body_ends_in_answer
from tests.level_records import MS, plan, request

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(payload: bytes, extension: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(payload), extension, payload)


def test_an_event_ends_where_its_chunk_has_its_last_byte_not_where_the_next_begins() -> None:
    first, second = b"data: 1\n\n", b"data: 22\n\n"
    answer = HEAD + chunk(first) + chunk(second) + b"0\r\n\r\n"
    found = body_ends_in_answer(answer, [len(first), len(first + second)])
    assert found is not None
    assert [answer[end - 3 : end] for end in found.tolist()] == [b"1\n\n", b"2\n\n"]


def test_an_answer_without_chunks_and_one_after_an_interim_answer_are_understood() -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ndata: 1\n\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    for answer in (plain, interim + plain, interim + HEAD + chunk(b"data: 1\n\n", b";a=b")):
        found = body_ends_in_answer(answer, [7])
        assert found is not None
        assert answer[: int(found[0])].endswith(b"data: 1")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", HEAD + b"zz\r\nxx\r\n", HEAD + chunk(b"short")])
def test_an_answer_that_has_no_such_byte_is_not_guessed_at(answer: bytes) -> None:
    assert body_ends_in_answer(answer, [9]) is None


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=8), st.data())
def test_any_byte_of_any_body_is_found_in_the_framed_answer(payloads: list[bytes], data: st.DataObject) -> None:
    body = b"".join(payloads)
    ends = sorted(data.draw(st.lists(st.integers(1, len(body)), max_size=5)))
    answer = HEAD + b"".join(map(chunk, payloads)) + b"0\r\n\r\n"
    found = body_ends_in_answer(answer, ends)
    assert found is not None
    assert [answer[at - 1] for at in found.tolist()] == [body[end - 1] for end in ends]


def segments(*values: tuple[int, int, int, int, int, int]) -> np.ndarray:
    return np.array(list(values), SEGMENT)


ONE = segments((10, 99, 0, 40_000, 0, 1), (20, 100, 50, 40_000, 0, 0))


def test_the_file_of_segments_gives_back_what_was_written_and_stops_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "segments.audit"
    reader = SegmentsReader(path)
    assert list(reader.blocks()) == []
    writer = SegmentsWriter(path, most_bytes=150)
    writer.append(ONE, covered_ns=30, ring_drops=0, refused_stamps=1)
    assert [block.tolist() for block in reader.blocks()] == [ONE.tolist()]
    writer.append(segments(*[ONE[1].tolist()] * 9), covered_ns=60, ring_drops=2, refused_stamps=1)
    assert [len(block) for block in reader.blocks()] == [0]
    assert dataclasses.astuple(reader.capture) == (60, 2, 1, 9)  # type: ignore[arg-type]
    writer.close()
    assert path.stat().st_size < 150


def test_a_torn_block_of_either_file_waits_for_its_rest(tmp_path: Path) -> None:
    whole, torn = tmp_path / "segments.audit", tmp_path / "torn.audit"
    writer = SegmentsWriter(whole, most_bytes=10_000)
    writer.append(ONE, covered_ns=30, ring_drops=0, refused_stamps=0)
    writer.close()
    content = whole.read_bytes()
    reader = SegmentsReader(torn)
    for size in range(len(content)):
        torn.write_bytes(content[:size])
        assert list(reader.blocks()) == []
    torn.write_bytes(content)
    assert len(list(reader.blocks())) == 1

    answers = tmp_path / "worker-0.audit"
    of_answers = AnswersWriter(answers)
    for index in (1, 2):
        of_answers.append([HeardAnswer(0, index, 40_000, 0, np.array([5, 9]))])
    of_answers.close()
    content = answers.read_bytes()
    answers.write_bytes(content[:-1])
    readers = AnswersReader(answers)
    assert [answer.index for answer in readers.answers()] == [1]
    answers.write_bytes(content)
    (second,) = readers.answers()
    assert (second.index, second.port, second.ends.tolist()) == (2, 40_000, [5, 9])


@pytest.mark.parametrize("reader", [SegmentsReader, AnswersReader])
def test_another_file_is_not_read_as_one_of_an_audit(tmp_path: Path, reader: type) -> None:
    path = tmp_path / "x.audit"
    path.write_bytes(b"something else altogether")
    read = reader(path).blocks if reader is SegmentsReader else reader(path).answers
    with pytest.raises(ValueError, match="not a file of an audited run"):
        list(read())


def trail(*, stamps_ms: list[float], **counts: int) -> AuditTrail:
    """One answer over one connection, a segment of 10 bytes for each of its events."""
    rows = [(0, 99, 0, 40_000, 0, 1)]
    rows += [(round(at * MS), 100 + 10 * k, 10, 40_000, 0, 0) for k, at in enumerate(stamps_ms)]
    ends = np.arange(1, len(stamps_ms) + 1) * 10
    return AuditTrail(segments(*rows), {(0, 0): HeardAnswer(0, 0, 40_000, 0, ends)}, **counts)


def heard(arrivals_ms: list[float], **fields: Any) -> RequestRecord:
    flags = fields.pop("coalesced", [False] * len(arrivals_ms))
    started_ns = round(arrivals_ms[0] * MS)
    return request(1, arrivals_ms, coalesced=flags, response_started_ns=started_ns, kernel_stamps=True, **fields)


def test_stamps_are_compared_with_the_packets_of_their_events_each_kind_apart() -> None:
    record = heard([10, 20.5, 40, 40, 50.25], coalesced=[False, False, True, True, False])
    level = level_object(plan(), [record], [], audit=trail(stamps_ms=[10, 20, 30, 40, 50]))
    audit = level["audit"]
    assert (audit["events"], audit["matched"], audit["unmatched"], audit["user_space"]) == (5, 5, 0, 0)
    assert audit["single"] == {"n": 2, "mean_ms": 0.25, "p50_ms": 0.0, "p99_ms": 0.5, "p999_ms": 0.5, "max_ms": 0.5}
    assert (audit["last"]["n"], audit["last"]["max_ms"]) == (1, 0.25)
    assert (audit["coalesced"]["n"], audit["coalesced"]["p50_ms"], audit["coalesced"]["max_ms"]) == (2, 0.0, 10.0)
    (line,) = audit_lines([level])
    assert "0 / 0.500 / 0.500 / 0.500 ms" in line and "0 events without a packet" in line


def test_a_level_that_is_not_audited_says_null() -> None:
    level = level_object(plan(), [request(1, [10])], [])
    assert level["audit"] is None
    assert audit_lines([level]) == []


def fired(level: dict[str, Any], field: str) -> set[str]:
    return {found["rule"] for found in level[field]}


def test_stamps_that_disagree_with_the_packets_make_the_level_invalid() -> None:
    late = level_object(plan(), [heard([10, 21.5, 30])], [], audit=trail(stamps_ms=[10, 20, 30]))
    assert "stamps_disagree" in fired(late, "reasons")
    good = level_object(plan(), [heard([10, 20.9, 30])], [], audit=trail(stamps_ms=[10, 20, 30]))
    assert "stamps_disagree" not in fired(good, "reasons")


def test_events_without_packets_are_counted_and_make_the_audit_incomplete() -> None:
    record = heard([10, 20, 30])
    missing = trail(stamps_ms=[10, 20, 30], ring_drops=7)
    without_second = dataclasses.replace(missing, segments=np.delete(missing.segments, 2))
    level = level_object(plan(), [record], [], audit=without_second)
    assert (level["audit"]["matched"], level["audit"]["unmatched"]) == (2, 1)
    (found,) = [one for one in level["warnings"] if one["rule"] == "audit_incomplete"]
    assert "7 packets dropped by the ring" in found["evidence"]

    for none in (dataclasses.replace(missing, answers={}), dataclasses.replace(missing, segments=segments())):
        level = level_object(plan(), [record], [], audit=none)
        assert (level["audit"]["matched"], level["audit"]["unmatched"]) == (0, 3)
        assert level["audit"]["single"]["p99_ms"] is None
        assert "audit_incomplete" in fired(level, "warnings")
        assert "stamps_disagree" not in fired(level, "reasons")


def test_stamps_of_user_space_are_counted_and_not_compared() -> None:
    record = dataclasses.replace(heard([10, 20]), kernel_stamps=False)
    audit = level_object(plan(), [record], [], audit=trail(stamps_ms=[10, 20]))["audit"]
    assert (audit["events"], audit["user_space"], audit["matched"], audit["unmatched"]) == (2, 2, 0, 0)


def test_a_level_knows_its_own_drops_and_forgets_what_no_later_one_needs(tmp_path: Path) -> None:
    writer = SegmentsWriter(tmp_path / "segments.audit", most_bytes=10_000)
    for at_ms, drops in ((1, 0), (500, 3), (1500, 3), (2500, 10)):
        row = segments((at_ms * MS, 100, 10, 40_000, 0, 0), (at_ms * MS, 99, 0, 40_001, 0, 1))
        writer.append(row, covered_ns=at_ms * MS, ring_drops=drops, refused_stamps=0)
    writer.close()
    reader = AuditReader(tmp_path)
    first = dataclasses.replace(plan(), window_start_ns=0, window_end_ns=1000 * MS)
    second = dataclasses.replace(first, level=1, window_start_ns=1000 * MS, window_end_ns=3000 * MS)
    of_first = reader.trail(first, [])
    assert of_first is not None and of_first.ring_drops == 3 and len(of_first.segments) == 4
    reader.forget_before(first)
    of_second = reader.trail(second, [])
    assert of_second is not None and of_second.ring_drops == 7
    assert np.count_nonzero(of_second.segments["syn"]) == 4 and len(of_second.segments) == 6
    assert AuditReader(tmp_path / "elsewhere").trail(first, []) is None


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"target.base_url": "https://h:8000"}, "http://"),
        ({"target.base_url": "http://h:8000", "target.proxy": "http://p:3128"}, "proxy"),
        ({"workers.expect": "2"}, "this host"),
    ],
)
def test_what_cannot_be_audited_is_refused_with_the_scenario(settings: dict[str, str], word: str) -> None:
    assert load_scenario(options=settings).audit is False
    with pytest.raises(ScenarioError, match=word) as refused:
        load_scenario(options={**settings, "audit": True})
    assert refused.value.exit_code == 2
