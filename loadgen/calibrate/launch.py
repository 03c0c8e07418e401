"""Becomes another Python program, on one core and tied to the life of the process that started it.

`python -m loadgen.calibrate.launch PARENT CORE|any ARGUMENTS…`. Both hold for the program that follows and, the core, for
all that it starts; done here because nothing but this may safely run between fork and exec of a process with threads.
"""

from __future__ import annotations

import os
import sys

from server.parent import tie_to_parent


def main(parent: str, core: str, *arguments: str) -> None:
    """Never returns."""
    tie_to_parent(int(parent))
    if core != "any":
        os.sched_setaffinity(0, {int(core)})
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
