"""Takes the path that a command was given for a run, gives the run folder that is meant: itself, or the newest that has ended in it.

By default runs lie in `runs/NAME/TIME`, so `runs/NAME` means the newest of NAME. It measures and changes nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.run_folder import RunFolder


def chosen_run(path: Path) -> Path:
    """The run folder; says on standard error which where it had to choose. A file is given back as it is.

    Raises UsageError for a path that does not exist. A folder without runs in it is given back: whoever opens it refuses it.
    """
    if not path.exists():
        raise UsageError(
            f"{path} does not exist.",
            hint="give the path that `loadgen run` printed as its last line, or the folder above it",
        )
    if path.is_file() or RunFolder(path).nonce() is not None:
        return path
    inside = [one for one in path.iterdir() if RunFolder(one).nonce() is not None]
    ended = [one for one in inside if _has_ended(RunFolder(one))]
    if not ended:
        return path
    newest = max(ended, key=_began)
    of = "the only one" if len(inside) == 1 else f"the newest of {len(inside)} runs"
    if len(ended) < len(inside):
        of = f"the newest that has ended and has levels, of {len(inside)} runs"
    sys.stderr.write(f"run: {newest}, {of} in {path}\n")
    return newest


def _has_ended(folder: RunFolder) -> bool:
    """Whether it goes on no more and has a level that was measured."""
    try:
        RunFolder.open(folder.path)
    except UsageError:
        return False
    return any(part.journal.is_file() for part in folder.parts())


def _began(path: Path) -> tuple[str, str]:
    """By what the run noted, in UTC; the name, by default a time too, decides between equals."""
    return str(RunFolder(path).provenance().get("started") or ""), path.name
