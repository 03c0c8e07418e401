"""The spool: what is written is read back, in blocks, and a damaged end costs only itself."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from loadgen.record import RequestRecord, WorkerHealth
from loadgen.spool import MAGIC, SpoolReader, SpoolWriter, decode_block, encode_health, encode_records, read_records

START_NS = 10**15


def request(index: int, events: int = 3, *, counted: bool = True, **changes: Any) -> RequestRecord:
    arrivals = START_NS + 50_000_000 + np.arange(events, dtype=np.int64) * 10_000_001
    values: dict[str, Any] = {
        "level": 1,
        "index": index,
        "user": index % 4,
        "worker": 0,
        "status": "ok",
        "dispatched_ns": START_NS + index,
        "finished_ns": START_NS + 90_000_000,
        "sent_ns": START_NS + index + 5,
        "send_gap_ns": 20_000 + index if index else None,
        "first_token_ns": int(arrivals[0]) if events else None,
        "finish_reason": "length",
        "output_tokens": events,
        "output_tokens_source": "usage",
        "arrivals_ns": arrivals,
        "event_tokens": np.ones(events, np.int32) if counted else None,
        "coalesced": np.arange(events) % 2 == 1,
    }
    return RequestRecord(**(values | changes))


def assert_equal(ours: RequestRecord, theirs: RequestRecord) -> None:
    for field in dataclasses.fields(RequestRecord):
        left, right = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            assert left.tolist() == right.tolist(), field.name
        else:
            assert left == right, field.name


HEALTH = WorkerHealth(
    worker=0,
    level=1,
    loop_lag_p50_ms=0.1,
    loop_lag_p99_ms=1.0,
    loop_lag_max_ms=2.0,
    read_delay_p99_ms=None,
    cpu_loop_thread=0.5,
    cpu_process=0.6,
    refused_stamps=0,
    clock_offset_ns=-17,
    clock_error_ns=3,
    hub_lag_max_ms=4.5,
    read_delay_max_ms=None,
    gc_pauses=2,
    gc_pause_total_ms=30.5,
    gc_pause_max_ms=20.25,
    resident_bytes=123_456_789,
)


def test_every_field_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = [
        request(0),
        request(1, events=0, status="empty", reason="no token came", first_token_ns=None),
        request(2, counted=False, output_tokens=None, output_tokens_source=None),
        request(3, events=200, scheduled_ns=START_NS - 4, first_visible_ns=START_NS, kernel_stamps=True),
    ]
    spool = SpoolWriter(tmp_path / "worker-0.spool")
    spool.append(encode_records(written[:2]))
    spool.append(encode_health(HEALTH))
    spool.append(encode_records(written[2:]))
    spool.close()
    blocks = list(SpoolReader(spool.path).blocks())
    assert blocks[1] == HEALTH
    read = list(read_records(spool.path))
    assert len(read) == len(written)
    for ours, theirs in zip(written, read, strict=True):
        assert_equal(ours, theirs)


def test_a_reader_goes_on_where_it_was(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path / "s")
    reader = SpoolReader(spool.path)
    assert list(reader.blocks()) == []
    spool.append(encode_records([request(0)]))
    assert [r.index for block in reader.blocks() if isinstance(block, list) for r in block] == [0]
    spool.append(encode_records([request(1)]))
    assert [r.index for block in reader.blocks() if isinstance(block, list) for r in block] == [1]
    assert reader.lost_bytes() == 0
    assert reader.offset == spool.bytes_written
    spool.close()


def test_a_spool_cut_at_any_byte_gives_every_whole_block(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path / "s")
    ends = [spool.bytes_written]
    for index in range(3):
        spool.append(encode_records([request(index)]))
        ends.append(spool.bytes_written)
    spool.close()
    whole = spool.path.read_bytes()
    for cut in range(len(whole) + 1):
        torn = tmp_path / "torn"
        torn.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends[1:])
        assert [r.index for r in read_records(torn)] == list(range(complete)), cut


def test_a_damaged_block_is_left_out_and_counted(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path / "s")
    ends = []
    for index in range(3):
        spool.append(encode_records([request(index)]))
        ends.append(spool.bytes_written)
    spool.close()
    content = bytearray(spool.path.read_bytes())
    content[ends[0] + 20] ^= 0xFF
    spool.path.write_bytes(content)
    reader = SpoolReader(spool.path)
    assert [r.index for block in reader.blocks() if isinstance(block, list) for r in block] == [0, 2]
    assert reader.lost_bytes() == ends[1] - ends[0]


def test_a_file_that_is_no_spool_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "summary.json"
    other.write_text('{"levels": []}' + " " * len(MAGIC))
    with pytest.raises(ValueError, match=r"summary\.json is not a spool"):
        list(read_records(other))


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    SpoolWriter(tmp_path / "s").close()
    with pytest.raises(FileExistsError):
        SpoolWriter(tmp_path / "s")


def test_the_class_of_a_request_is_kept_and_a_block_from_before_there_were_classes_has_the_first() -> None:
    payload = encode_records([request(0, kind=2), request(1)])
    kept = decode_block(payload)
    assert isinstance(kept, list) and [one.kind for one in kept] == [2, 0]
    raw = zlib.decompress(payload)
    size = int.from_bytes(raw[:4], "little")
    header = orjson.loads(raw[4 : 4 + size])
    del header["columns"]["kind"]
    older = orjson.dumps(header)
    read = decode_block(zlib.compress(len(older).to_bytes(4, "little") + older + raw[4 + size :]))
    assert isinstance(read, list) and [one.kind for one in read] == [0, 0]
