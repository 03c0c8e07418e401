"""What goes wrong on demand: takes a line of text, gives the faults and whom each hits. Pure; `faulty` carries them out.

    429 share=0.1 retry_after=2; stall after=20 seconds=3 every=50

Faults are separated by `;` or `,`, each a kind and its values. `docs/simulator.md` has the table.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "429": {"retry_after": 1},
    "500": {},
    "503": {},
    "error": {"after": 1},
    "truncate": {"after": 1},
    "cut": {"after": 1},
    "reset": {"after": 1},
    "stall": {"after": 1, "seconds": math.inf},
    "slow_accept": {"seconds": 1},
    "split": {"bytes": 7, "gap_ms": 1},
    "glue": {"events": 4},
    "buffer": {"bytes": math.inf},
    "restart": {"seconds": math.nan},
    "crash": {"seconds": math.nan},
}
"""Every kind, its own values and their defaults."""

_WHOM = {"share": 1.0, "every": 1.0}
_OF_THE_SERVER = frozenset({"restart", "crash"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, for a share of the requests or every n-th."""

    kind: str
    values: Mapping[str, float]
    share: float = 1.0
    every: int = 1

    def hits(self, number: int, seed: int) -> bool:
        """Whether it hits request `number` (from 0): the same requests for the same seed."""
        if number % self.every != self.every - 1:
            return False
        return self.share >= 1 or random.Random(f"{seed}:{self.kind}:{number}").random() < self.share

    @property
    def timed(self) -> bool:
        """Whether it befalls the server some seconds after its start, not a request."""
        return self.kind in _OF_THE_SERVER and not math.isnan(self.values["seconds"])


def read_faults(text: str) -> tuple[Fault, ...]:
    """The faults of a line; none for an empty one. ValueError names the word that is wrong, and what is known."""
    return tuple(_fault(part.split()) for part in text.replace(",", ";").split(";") if part.strip())


def that_hit(faults: Sequence[Fault], number: int, seed: int) -> dict[str, Fault]:
    """Those that hit request `number`, by kind; the first of a kind counts."""
    hitting: dict[str, Fault] = {}
    for fault in faults:
        if not fault.timed and fault.kind not in hitting and fault.hits(number, seed):
            hitting[fault.kind] = fault
    return hitting


def _fault(words: Sequence[str]) -> Fault:
    kind = words[0].lower()
    own = DEFAULTS.get(kind)
    if own is None:
        raise ValueError(f"no fault is called {words[0]!r}; known are {', '.join(DEFAULTS)}")
    values = {**own, **_WHOM}
    for word in words[1:]:
        name, equals, number = word.partition("=")
        if not equals or name not in values:
            raise ValueError(f"{kind}: {word!r} is none of {', '.join(f'{name}=…' for name in values)}")
        try:
            values[name] = float(number)
        except ValueError:
            raise ValueError(f"{kind}: {name}={number} is not a number") from None
        if math.isnan(values[name]) or values[name] < 0:
            raise ValueError(f"{kind}: {name}={number} must be 0 or more")
    share, every = values.pop("share"), values.pop("every")
    if share > 1:
        raise ValueError(f"{kind}: share={share:g} must be between 0 and 1")
    if every < 1 or every != int(every):
        raise ValueError(f"{kind}: every={every:g} must be a whole number from 1 on")
    if values.get("bytes", 1) < 1 or values.get("events", 1) < 1:
        raise ValueError(f"{kind}: pieces have at least one byte or event")
    return Fault(kind, values, share, int(every))
