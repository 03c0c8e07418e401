"""Streams as real servers write them, one file a shape: each gives the record that `expected.json` states, however the
bytes are cut; and whatever `make fuzz` has found stays mended."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from loadgen.wire.decode import decode
from loadgen.wire.stream import read_stream
from tests.fuzz.invariants import check
from tests.fuzz.mutations import mutate
from tests.fuzz.run import FIELDS, corpus, smallest
from tests.sse_events import exchange

STREAMS = corpus()
EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text())


def test_every_shape_has_an_expected_outcome_and_every_outcome_a_shape() -> None:
    assert {name for name in STREAMS if not name.startswith("found-")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_shape_gives_its_expected_record(name: str) -> None:
    body = STREAMS[name]
    # A read for every byte, so that no two events have the same stamp.
    record = decode(exchange([(float(k), body[k : k + 1]) for k in range(len(body))]))
    arrivals = record.arrivals_ns.tolist()
    assert {
        "status": record.status,
        "reason": record.reason,
        "events": len(arrivals),
        "first_visible": None if record.first_visible_ns is None else arrivals.index(record.first_visible_ns),
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "event_tokens": None if record.event_tokens is None else record.event_tokens.tolist(),
        "finish_reason": record.finish_reason,
        "texts": read_stream(body, body_complete=True, keep_text=True).whole_texts(),
    } == EXPECTED[name]


@pytest.mark.parametrize("name", STREAMS)
def test_a_shape_may_be_cut_anywhere(name: str) -> None:
    body = STREAMS[name]
    rng = random.Random(name)
    for fields in FIELDS:
        check(body, [rng.randint(0, len(body)) for _ in range(5)], **fields)
    for cut in rng.sample(range(len(body) + 1), min(20, len(body) + 1)):
        check(body, [cut])


def test_streams_made_of_the_corpus_by_chance_give_sound_records() -> None:
    rng = random.Random(1)
    bodies = [body for body in STREAMS.values() if len(body) < 3_000]
    for _ in range(400):
        body = mutate(rng.choice(bodies), bodies, rng)[:6_000]
        check(body, [rng.randint(0, len(body)) for _ in range(rng.randrange(6))], **rng.choice(FIELDS))


def test_a_found_stream_is_made_as_small_as_its_failure_allows() -> None:
    assert smallest(b"....a.......b...", lambda body: b"a" in body and b"b" in body) == b"ab"
