"""Writes what really happened: takes finished answers, appends one JSON line each; buffered, flushed by its owner.

Line: {"id", "client_request_id", "received_ns", "prompt_tokens", "token_ns": […], "finished_ns", "cancelled"}; instants
are CLOCK_MONOTONIC nanoseconds of this machine.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from server.simulator.answer import Answer


class TruthLog:
    """One file, begun anew, or gone on with after a restart."""

    def __init__(self, path: Path, *, go_on: bool = False) -> None:
        """OSError when the file cannot be written."""
        self._file = path.open("ab" if go_on else "wb", buffering=0)
        self._lines: list[bytes] = []

    def add(self, answer: Answer) -> None:
        """Keep the line of an answer that has ended, complete or cancelled."""
        line = {
            "id": answer.response_id,
            "client_request_id": answer.client_request_id,
            "received_ns": answer.received_ns,
            "prompt_tokens": answer.request.prompt_tokens,
            "token_ns": answer.token_ns.tolist(),
            "finished_ns": answer.finished_ns,
            "cancelled": not answer.complete,
        }
        self._lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def flush(self) -> None:
        """Write what is kept."""
        if self._lines:
            self._file.write(b"".join(self._lines))
            self._lines.clear()

    def close(self) -> None:
        """Write what is kept and close the file."""
        self.flush()
        self._file.close()
