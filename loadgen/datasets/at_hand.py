"""A dataset on a worker's host: finds the controller's index where it can be seen, else surveys the file here, once.

Refuses a file that is not the controller's: each worker would send other requests under the same numbers.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadgen.datasets.errors import Place
from loadgen.datasets.survey import DIGEST_FILE, Source, digest_of, survey

_REMEDY = "Put the controller's file at the same path on the host of every worker."


class DatasetsAtHand:
    """The folders of indices that one worker made. Their files are gone with the process's temporary folders."""

    def __init__(self, pause: Callable[[float], object]) -> None:
        """`pause` is called often while a file is read, which may take minutes, so that the worker stays responsive."""
        self._pause = pause
        self._folders: dict[str, tempfile.TemporaryDirectory[str]] = {}

    def localised(self, workload: Mapping[str, Any]) -> Mapping[str, Any]:
        """A carried workload with the folder of its index on this host; one without a dataset as it is.

        Raises DatasetError when the file is not here, or is another one than the controller's.
        """
        if workload["kind"] != "dataset":
            return workload
        digest, source = workload["digest"], Source(**workload["source"])
        if _is_indexed(source, Path(workload["folder"]), digest):
            return workload
        if digest not in self._folders:
            self._folders[digest] = self._surveyed(source, digest)
        return {**workload, "folder": self._folders[digest].name}

    def _surveyed(self, source: Source, digest: str) -> tempfile.TemporaryDirectory[str]:
        place = Place(source.path)
        try:
            same = digest_of(Path(source.path), self._pause) == digest
        except OSError as error:
            raise place.refusal(f"The file cannot be read here: {error.strerror or error}.", _REMEDY) from None
        if not same:
            raise place.refusal("It is not the controller's file: their contents differ.", _REMEDY)
        with contextlib.ExitStack() as undo:
            folder = tempfile.TemporaryDirectory(prefix="loadgen-dataset-")
            undo.callback(folder.cleanup)
            survey(source, Path(folder.name), pause=self._pause)
            undo.pop_all()
        return folder

    def close(self) -> None:
        for folder in self._folders.values():
            folder.cleanup()


def _is_indexed(source: Source, folder: Path, digest: str) -> bool:
    """Whether `folder` is the controller's and, by its size, the file at the path is the one that was indexed."""
    with contextlib.suppress(OSError):
        return (folder / DIGEST_FILE).read_text(encoding="ascii") == f"{digest} {Path(source.path).stat().st_size}"
    return False
