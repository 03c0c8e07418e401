"""The one error of this package: a dataset that cannot be used, where in it, why, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.errors import UsageError


class DatasetError(UsageError):
    """A file of requests is refused. The message begins with the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, as people are told of it."""

    path: str
    line: int | None = None
    """From 1; None where the file as a whole is meant."""

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"

    def refusal(self, wrong: str, hint: str) -> DatasetError:
        """The error to raise. `wrong`: what is wrong here, as a full sentence."""
        return DatasetError(f"{self}: {wrong}", hint=hint)
