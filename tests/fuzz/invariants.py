"""What must hold of the record of any bytes at all, read in any pieces; used by the corpus, by hypothesis and by `run`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from loadgen.record import RequestRecord, is_status
from loadgen.spool import decode_block, encode_records
from loadgen.wire import stream
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from loadgen.wire.shape import ShapeMemory
from loadgen.wire.sse import parse
from tests.sse_events import SENT_NS, exchange
from tests.sse_rules import by_the_rules

_ARRAYS = ("arrivals_ns", "event_tokens", "coalesced")
_STAMPS = {"arrivals_ns", "coalesced", "first_token_ns", "first_visible_ns", "last_token_ns", "finished_ns"}
_LONGEST_REASON = 200
_STEP_NS = 1_000_000


def check(body: bytes, cuts: Sequence[int] = (), **fields: Any) -> RequestRecord:
    """Raises AssertionError unless everything holds of `body`, read in pieces that end at `cuts`; gives its record."""
    assert parse(body) == by_the_rules(body)
    if len(body) % 2:  # half of the streams come to a worker that knows their server, or another one, already
        stream._SHAPES = ShapeMemory()
    pieces = [body[a:b] for a, b in pairwise([0, *sorted(cuts), len(body)])]
    seen = _seen(pieces, **fields)
    record = decode(seen)
    _is_sound(record)
    _survives_the_spool(record)
    _differs_only_in_stamps(record, decode(_seen([body], **fields)))

    # With a tokeniser every event is parsed; without one most are recognised by their shape.
    texts: list[str] = []
    parsed = decode(seen, count_tokens=lambda text: texts.append(text) or len(text.encode()))  # type: ignore[func-returns-value]
    for name in _fields(record) - {"output_tokens", "output_tokens_source", "event_tokens", "status", "reason"}:
        _equal(name, getattr(parsed, name), getattr(record, name))
    assert parsed.status == record.status

    _arrives_with_its_last_byte(seen, body, fields)
    _is_seen_on_the_hot_path(pieces)
    return record


def _seen(pieces: Sequence[bytes], **fields: Any) -> Exchange:
    return exchange([(float(k), piece) for k, piece in enumerate(pieces)], **fields)


def _fields(record: RequestRecord) -> set[str]:
    return set(record.__slots__)


def _equal(name: str, ours: Any, other: Any) -> None:
    if name in _ARRAYS and ours is not None and other is not None:
        ours, other = ours.tolist(), other.tolist()
    assert ours == other, f"{name}: {ours!r} != {other!r}"


def _is_sound(record: RequestRecord) -> None:
    assert is_status(record.status)
    assert bool(record.reason) == (record.status != "ok")
    for text in (record.reason, record.finish_reason or ""):
        assert text.isprintable() and len(text) <= _LONGEST_REASON
    for count in (record.input_tokens, record.output_tokens):
        assert count is None or 0 <= count < 2**31
    arrivals = record.arrivals_ns.tolist()
    assert arrivals == sorted(arrivals)
    assert record.coalesced.shape == record.arrivals_ns.shape
    assert record.first_token_ns == (arrivals[0] if arrivals else None)
    assert record.last_token_ns == (arrivals[-1] if arrivals else None)
    assert record.first_visible_ns is None or record.first_visible_ns in arrivals
    assert record.status != "ok" or arrivals
    if record.event_tokens is not None:
        assert len(record.event_tokens) == len(arrivals)
        assert (record.event_tokens > 0).all()
        assert record.event_tokens.sum() == record.output_tokens


def _survives_the_spool(record: RequestRecord) -> None:
    block = decode_block(encode_records([record]))
    assert isinstance(block, list)
    for name in _fields(record):
        _equal(name, getattr(block[0], name), getattr(record, name))


def _differs_only_in_stamps(record: RequestRecord, whole: RequestRecord) -> None:
    for name in _fields(record) - _STAMPS:
        _equal(name, getattr(record, name), getattr(whole, name))
    assert len(record.arrivals_ns) == len(whole.arrivals_ns)


def _arrives_with_its_last_byte(seen: Exchange, body: bytes, fields: dict[str, Any]) -> None:
    """Read byte by byte, an arrival names the event's last byte; in other pieces, the piece that holds that byte."""
    by_byte = exchange([], **fields)
    for k in range(len(body)):
        by_byte.add(body[k : k + 1], k)
    last_bytes = decode(by_byte).arrivals_ns.tolist()
    ends = list(accumulate(map(len, seen.chunks())))
    expected = [seen.chunk_ns[next(k for k, end in enumerate(ends) if end > byte)] for byte in last_bytes]
    assert decode(seen).arrivals_ns.tolist() == expected


def _is_seen_on_the_hot_path(pieces: Sequence[bytes]) -> None:
    """The exchange names the first token while it reads; of a body that broke off, since a last event without its blank
    line is known only when the body has ended."""
    reading = exchange([], body_complete=False)
    for k, piece in enumerate(pieces):
        reading.add(piece, SENT_NS + k * _STEP_NS)
    reading.note_chunks(SENT_NS)
    assert reading.first_token_ns == decode(reading).first_token_ns
