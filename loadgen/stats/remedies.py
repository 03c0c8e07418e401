"""Takes a level object, gives a remedy that fits it better than its rule's own, or None; pure. The rules are in `validity`."""

from __future__ import annotations

from loadgen import record
from loadgen.stats.client_rules import Level

_IN_VAIN = frozenset(
    {
        record.TIMEOUT_FIRST_BYTE,
        record.TIMEOUT_FIRST_TOKEN,
        record.TIMEOUT_BETWEEN_TOKENS,
        record.TIMEOUT_TOTAL,
        *record.UNDECIDED,
    }
)
"""Ends of a request that the target took and did not answer to its end."""


def after_a_stop(level: Level) -> str | None:
    """Of a level that was ended because of the target or by a guard of `safety`: the same load would do the same."""
    by = level["interrupted_by"]
    if not by:
        return None
    if "safety.max_request_rate" in by:
        return "Lower the load before it is run again, or raise safety.max_request_rate if the target can bear more."
    return (
        "Look at the server first: its log, its queue, what lies before it, and who else uses it. Load it again only once it "
        "is well, and with less."
    )


def unanswered(level: Level) -> str | None:
    """Of a level without an ok request: where requests were taken, it is not the address that is wrong."""
    ends = {status for status, count in level["requests"].items() if count}
    if not ends <= _IN_VAIN or (not ends and not level["peak_concurrency"]):
        return None
    return (
        "The server takes requests and has stopped answering: look at its log, its queue and what lies before it, and see that "
        "it answers one request by hand before it is loaded again. If it is only slow, raise the limits in `timeouts`, or `load.drain_timeout`."
    )
