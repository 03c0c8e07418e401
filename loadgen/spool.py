"""Append-only files of request records: a worker writes them, everybody can read them, a torn end costs only itself.

A file is a magic line and then blocks: length (u32), CRC-32 (u32), and a zlib-compressed payload. A payload is a JSON
header (length-prefixed) with one list a column, followed by the arrays of all records of the block, concatenated.
Arrivals are kept as differences; a block is complete or absent.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadgen.record import SCHEMA_VERSION, RequestRecord, WorkerHealth

MAGIC = b"loadgen spool 1\n"
_FRAME = struct.Struct("<II")
_U32 = struct.Struct("<I")
_ARRAYS = ("arrivals_ns", "event_tokens", "coalesced")
_COLUMNS = tuple(f.name for f in fields(RequestRecord) if f.name not in _ARRAYS)


def encode_records(records: Sequence[RequestRecord]) -> bytes:
    """One block's payload for any number of records."""
    counts = [len(r.arrivals_ns) for r in records]
    differences = [np.diff(r.arrivals_ns, prepend=r.dispatched_ns) for r in records]
    with_tokens = [r.event_tokens is not None for r in records]
    header = {
        "kind": "records",
        "schema_version": SCHEMA_VERSION,
        "columns": {name: [getattr(r, name) for r in records] for name in _COLUMNS},
        "events": counts,
        "with_tokens": with_tokens,
    }
    tokens = [r.event_tokens for r in records if r.event_tokens is not None]
    arrays = [
        np.concatenate([*differences, np.empty(0, np.int64)]).astype("<i8").tobytes(),
        np.concatenate([*tokens, np.empty(0, np.int32)]).astype("<i4").tobytes(),
        np.concatenate([*(r.coalesced for r in records), np.empty(0, np.bool_)]).astype(np.uint8).tobytes(),
    ]
    return _payload(header, arrays)


def encode_health(health: WorkerHealth) -> bytes:
    """One block's payload for a worker's own figures of a level."""
    body = {f.name: getattr(health, f.name) for f in fields(WorkerHealth)}
    return _payload({"kind": "health", "schema_version": SCHEMA_VERSION, "health": body}, [])


def _payload(header: dict[str, Any], arrays: list[bytes]) -> bytes:
    encoded = orjson.dumps(header)
    return zlib.compress(_U32.pack(len(encoded)) + encoded + b"".join(arrays), level=1)


def decode_block(payload: bytes) -> list[RequestRecord] | WorkerHealth:
    """The records, or the health, of one block's payload.

    Raises ValueError when the block was written by another version of the format.
    """
    raw = zlib.decompress(payload)
    (size,) = _U32.unpack_from(raw)
    header = orjson.loads(raw[_U32.size : _U32.size + size])
    if header["schema_version"] != SCHEMA_VERSION:
        raise ValueError(
            f"the spool has schema version {header['schema_version']}, this program reads {SCHEMA_VERSION}"
        )
    if header["kind"] == "health":
        return WorkerHealth(**header["health"])
    offset = _U32.size + size
    counts: list[int] = header["events"]
    with_tokens: list[bool] = header["with_tokens"]
    total = sum(counts)
    total_with_tokens = sum(n for n, has in zip(counts, with_tokens, strict=True) if has)
    differences = np.frombuffer(raw, "<i8", total, offset)
    tokens = np.frombuffer(raw, "<i4", total_with_tokens, offset + 8 * total)
    coalesced = np.frombuffer(raw, np.uint8, total, offset + 8 * total + 4 * total_with_tokens).astype(np.bool_)
    columns = header["columns"]
    records = []
    event = token = 0
    for i, (count, has_tokens) in enumerate(zip(counts, with_tokens, strict=True)):
        # A figure that the program did not know yet when it wrote has its default: not measured.
        values = {name: columns[name][i] for name in _COLUMNS if name in columns}
        arrivals = np.cumsum(differences[event : event + count]) + values["dispatched_ns"]
        records.append(
            RequestRecord(
                **values,
                arrivals_ns=arrivals.astype(np.int64),
                event_tokens=tokens[token : token + count].astype(np.int32) if has_tokens else None,
                coalesced=coalesced[event : event + count],
            )
        )
        event += count
        token += count if has_tokens else 0
    return records


class SpoolWriter:
    """Appends blocks to one file. Every block is handed to the kernel at once, so killing the process loses none."""

    def __init__(self, path: Path) -> None:
        """Raises FileExistsError when the file is there already: two writers would tear each other's blocks."""
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self.bytes_written = 0
        self._write(MAGIC)

    def append(self, payload: bytes) -> None:
        """Writes one block. Raises OSError (disk full); the file then ends with the block before, as if never tried."""
        try:
            self._write(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
        except OSError:
            os.ftruncate(self._fd, self.bytes_written)
            raise

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            view = view[written:]
        self.bytes_written += len(data)

    def close(self) -> None:
        os.close(self._fd)


class SpoolReader:
    """Reads the blocks of one file as they come; call `blocks` again to go on where the last complete block ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._damaged_bytes = 0

    @property
    def offset(self) -> int:
        """Bytes of the file that were complete blocks so far."""
        return self._offset

    def blocks(self) -> Iterator[list[RequestRecord] | WorkerHealth]:
        """Every complete block since the last call.

        Raises ValueError when the file is not a spool. A torn end is left for the next call; a damaged block is left out:
        `lost_bytes` counts both.
        """
        with self.path.open("rb") as file:
            if self._offset == 0:
                magic = file.read(len(MAGIC))
                if magic != MAGIC:
                    if MAGIC.startswith(magic):
                        return
                    raise ValueError(f"{self.path} is not a spool of request records")
                self._offset = len(MAGIC)
            file.seek(self._offset)
            while len(frame := file.read(_FRAME.size)) == _FRAME.size:
                length, checksum = _FRAME.unpack(frame)
                payload = file.read(length)
                if len(payload) < length:
                    return
                self._offset = file.tell()
                if zlib.crc32(payload) != checksum:
                    self._damaged_bytes += len(frame) + length
                    continue
                yield decode_block(payload)

    def lost_bytes(self) -> int:
        """Bytes of damaged blocks, and after the last complete block: 0 for a whole file."""
        return self._damaged_bytes + self.path.stat().st_size - self._offset


def read_records(path: Path) -> Iterator[RequestRecord]:
    """Every record of one spool file, in the worker's clock."""
    for block in SpoolReader(path).blocks():
        if isinstance(block, list):
            yield from block
