"""Takes a series, gives the closest one that never falls; pure."""

from __future__ import annotations

from collections.abc import Sequence


def monotonic(values: Sequence[float]) -> list[float]:
    """The closest series that never falls (least squares; pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while blocks and blocks[-1][0] >= mean:
            other, others = blocks.pop()
            mean, size = (mean * size + other * others) / (size + others), size + others
        blocks.append((mean, size))
    return [mean for mean, size in blocks for _ in range(size)]
