"""Random numbers by their number: takes a seed and what is asked, gives a number in [0, 1); there is no state to share.

Any worker gets the same number for the same request, whoever asked before. The generator is a bijection that mixes
(level, k), keyed by the seed and by what the number is for.
"""

from __future__ import annotations

import hashlib

from loadgen.prompts.recipe import K_BITS, mixed


class Draws:
    """The random numbers for one purpose, such as `"input_tokens"`; other purposes have others."""

    def __init__(self, seed: int, purpose: str) -> None:
        digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest, "little")

    def at(self, level: int, k: int) -> float:
        """The number for request `k` of `level`; one of 2**53, evenly spread."""
        return (mixed((level << K_BITS | k) ^ self._key) >> 11) * 2.0**-53
