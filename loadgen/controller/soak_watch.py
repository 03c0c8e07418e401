"""Looks at a soak as it goes on: each window that is complete goes into the run folder and to /metrics. In the hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.run_reader import RunReader
from loadgen.soak_file import append_windows
from loadgen.stats.soak_trend import FEWEST

# Spools are read in small portions, so that no look takes long.
_LOOK_S = 1.0


def soak_hint(resume: str) -> str:
    """What is said when a soak is interrupted; `resume` says how another level is measured again."""
    return (
        f"with {FEWEST} whole windows a soak counts as a shorter one; it cannot be taken up where it ended: "
        f"{resume}, and begins the soak anew"
    )


class SoakWatch:
    """Follows the spools of a run for as long as it asks."""

    def __init__(
        self,
        reader: RunReader,
        run: Path,
        show: Callable[[int, dict[str, Any]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`show` gets how many windows there are, and the row of the last."""
        self._reader = reader
        self._run = run
        self._show = show
        self._clock = clock
        self._looked_s = clock()

    def look(self) -> None:
        """Call it often: it looks once a second. Raises LoadgenError when the windows cannot be written."""
        if self._clock() - self._looked_s < _LOOK_S:
            return
        for level, rows in self._reader.soak_windows(time.monotonic_ns()):
            try:
                append_windows(self._run, level, rows)
            except OSError as error:
                raise LoadgenError(
                    f"The windows of the soak cannot be written into {self._run}: {error.strerror or error}.",
                    hint="make room, and run again; what was measured before is in the run folder",
                ) from None
            self._show(rows[-1]["window"] + 1, rows[-1])
        self._looked_s = self._clock()
