"""Says a number of replicas in words, with how far it is from certain; pure."""

from __future__ import annotations

from collections.abc import Sequence


def count_text(count: int, interval: Sequence[int] | None, *, upper_bound: bool) -> str:
    """Such as `7 replicas (6 to 10 over the 95 % interval of the measured capacity)`.

    `interval`: fewest and most over the interval of the capacity; None where it is not known. `upper_bound`: a replica may do
    more than was measured, so fewer may do; only then, and never below the interval, it says `at most`.
    """
    noun = "replica" if count == 1 else "replicas"
    if interval is None:
        return f"{count} {noun} (how sure is not known: the capacity's 95 % interval has no lower end)"
    fewest, most = interval
    if upper_bound:
        return f"at most {count} {noun}" if most <= count else f"{count} {noun}, at most {most} over the 95 % interval"
    if fewest == most:
        return f"{count} {noun}"
    return f"{count} {noun} ({fewest} to {most} over the 95 % interval of the measured capacity)"
