"""Takes a level object, gives evidence that its stamps and its packets do not fit together; the rules are in `validity`."""

from __future__ import annotations

from loadgen.stats.client_rules import Level, percent

MOST_DIFFERENCE_MS = 1.0
"""At P99 of the single events. Both stamps are the kernel's for the same packet, so what is left is the
conversion to the monotonic clock (below 0.1 ms) and, where packets are lost, the wait for the one sent again."""
MOST_UNMATCHED = 0.01


def stamps_disagree(level: Level) -> str | None:
    audit = level["audit"]
    p99_ms = None if audit is None else audit["single"]["p99_ms"]
    if p99_ms is None or p99_ms <= MOST_DIFFERENCE_MS:
        return None
    return (
        f"Arrival stamps differ from the packets' by {p99_ms:.3g} ms at P99 (limit {MOST_DIFFERENCE_MS:g} ms), "
        f"over {audit['single']['n']} events that no other was read with."
    )


def audit_incomplete(level: Level) -> str | None:
    audit = level["audit"]
    stamped = 0 if audit is None else audit["events"] - audit["user_space"]
    if not stamped or audit["unmatched"] <= MOST_UNMATCHED * stamped:
        return None
    causes = [
        f"{audit[name]} {what}"
        for name, what in (
            ("ring_drops", "packets dropped by the ring"),
            ("beyond_limit", "packets beyond the file's limit"),
            ("refused_stamps", "packets whose stamp cannot be believed"),
        )
        if audit[name]
    ]
    why = f": {', '.join(causes)}" if causes else ""
    return f"{percent(audit['unmatched'] / stamped)} of the events have no packet to be compared with{why}."
