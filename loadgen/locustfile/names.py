"""The names that a locustfile gives its requests, as classes of a level: records carry a number, judgement the names; pure.

A worker meets a name when a task first uses it, and workers must not have to agree on an order: so the number in a record is
computed from the name alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from loadgen.record import RequestRecord
from loadgen.stats.classes import RequestKind


def number_of(name: str) -> int:
    """What stands in `RequestRecord.kind` for a name: 31 bits of its CRC-32."""
    return zlib.crc32(name.encode()) & 0x7FFF_FFFF


def named_kinds(names: Sequence[str]) -> list[RequestKind]:
    """The classes; how often each was to come up and what its prompts share nobody said."""
    return [RequestKind(name, None, None) for name in names]


def renumbered(records: Iterable[RequestRecord], names: Sequence[str]) -> list[RequestRecord]:
    """The records with the place of their name in `names` as their `kind`; one that was never sent belongs to none."""
    places = {number_of(name): place for place, name in enumerate(names)}
    return [replace(record, kind=places.get(record.kind, len(names))) for record in records]
