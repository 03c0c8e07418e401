"""Which row of a dataset request k of a level takes: a function of seed, run, level and k, in no memory at all.

All rows are gone through before one comes again. The order is a permutation of the rows that the seed chooses, the same
one for every level; a level begins at its own place in it, so that levels share as few rows as can be.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

_ROUNDS = 4
_MASK = (1 << 64) - 1
# Multiples of the golden ratio modulo one: any first n of them are spread evenly.
_GOLDEN_RATIO = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Shuffled:
    """The rows in an order drawn by seed."""

    rows: int
    seed: int
    run: int = 0
    _keys: tuple[int, ...] = field(init=False, repr=False)
    _half_bits: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        drawn = hashlib.blake2b(
            f"{self.seed} {self.run}".encode(), person=b"loadgen rows", digest_size=8 * _ROUNDS
        ).digest()
        keys = tuple(int.from_bytes(drawn[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS))
        object.__setattr__(self, "_keys", keys)
        object.__setattr__(self, "_half_bits", max(1, ((self.rows - 1).bit_length() + 1) // 2))

    def row(self, level: int, k: int) -> int:
        """From 0. Any `rows` consecutive k of a level give each row once."""
        begins = self.rows * (level * _GOLDEN_RATIO & _MASK) >> 64
        place = (begins + k) % self.rows
        # A Feistel network permutes the numbers below a power of four. Applied again until it gives a number of a row, it
        # permutes the rows (cycle walking; Black and Rogaway 2002). Fewer than four times on average.
        while True:
            place = self._permuted(place)
            if place < self.rows:
                return place

    def _permuted(self, number: int) -> int:
        half = self._half_bits
        mask = (1 << half) - 1
        left, right = number >> half, number & mask
        for key in self._keys:
            mixed = (right + key & _MASK) * _GOLDEN_RATIO & _MASK
            mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & _MASK
            left, right = right, left ^ mixed >> 40 & mask
        return left << half | right


@dataclass(frozen=True, slots=True)
class InFileOrder:
    """The rows as they stand in the file, from the first one on in every level."""

    rows: int

    def row(self, level: int, k: int) -> int:
        """From 0."""
        return k % self.rows


Order = Shuffled | InFileOrder
