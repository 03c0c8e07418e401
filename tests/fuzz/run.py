"""Looks for a stream whose record is wrong, for as long as it is told, beginning from the corpus: `make fuzz`.

What it finds is made as small as it can be and stored in the corpus as `found-<hash>.sse`, where the everyday tests try
it again. Exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.invariants import check
from tests.fuzz.mutations import mutate

CORPUS = Path(__file__).parent / "corpus"
_LARGEST = 6_000
"""Bytes of a stream that is mutated further: larger ones only take longer."""

FIELDS: list[dict[str, Any]] = [
    {},
    {"body_complete": False},
    {"body_complete": False, "failure": ("transport", "reset")},
    {"output_forced": True, "output_tokens_requested": 3},
    {"http_status": 503},
    {"content_type": "application/json"},
    {"content_type": "text/\udcff\x1b[31m"},
    {"http_status": None, "body_complete": False},
]
"""What else is known of an answer: how its body ended, what was asked, what its head said."""


def corpus() -> dict[str, bytes]:
    """The streams by name."""
    return {path.stem: path.read_bytes() for path in sorted(CORPUS.glob("*.sse"))}


def smallest(body: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """`body` without all that can be left out, piece by piece, while it still fails."""
    size = len(body) // 2
    while size > 0:
        at = 0
        while at < len(body):
            shorter = body[:at] + body[at + size :]
            if fails(shorter):
                body = shorter
            else:
                at += size
        size //= 2
    return body


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="the default is another one every time")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    rng = random.Random(seed)
    known = [body for body in corpus().values() if len(body) <= _LARGEST]
    pool = list(known)
    found: set[str] = set()
    tried = 0
    deadline = time.monotonic() + options.seconds
    while time.monotonic() < deadline:
        body = mutate(rng.choice(pool), pool, rng)[:_LARGEST]
        cuts = sorted(rng.randint(0, len(body)) for _ in range(rng.randrange(8)))
        fields = rng.choice(FIELDS) if rng.random() < 0.5 else {}
        tried += 1
        try:
            record = check(body, cuts, **fields)
        except Exception as error:
            kind = f"{type(error).__name__}: {traceback.extract_tb(error.__traceback__)[-1].name}"
            if kind not in found:
                found.add(kind)
                _store(body, cuts, fields, kind)
            continue
        # What has come out in a new way is worth changing further.
        if rng.random() < 0.02 and record.status in ("ok", "stream_error", "empty"):
            pool.append(body)
            if len(pool) > len(known) + 500:
                pool.pop(len(known))
    print(f"seed {seed}: {tried} streams, {len(found)} kinds of failure")
    return 1 if found else 0


def _store(body: bytes, cuts: list[int], fields: dict[str, Any], kind: str) -> None:
    def fails(shorter: bytes) -> bool:
        try:
            check(shorter, [min(cut, len(shorter)) for cut in cuts], **fields)
        except Exception:
            return True
        return False

    body = smallest(body, fails)
    path = CORPUS / f"found-{hashlib.sha256(body).hexdigest()[:10]}.sse"
    path.write_bytes(body)
    print(f"{kind} with {fields or 'a complete answer'}, cut at {cuts}: {path}\n  {body!r}")


if __name__ == "__main__":
    sys.exit(main())
