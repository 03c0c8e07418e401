"""Expected errors: each carries a sentence for people, a remedy and the exit code of the command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class LoadgenError(Exception):
    """Something that can go wrong in ordinary use. `str(error)` is a full sentence, `hint` says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def report(self) -> str:
        """The text for standard error: `error: …` and, on a last line of its own, `hint: …`."""
        return _report(str(self), self.hint)


class RunInterruptedError(LoadgenError):
    """A signal asked the run to end; what was measured is in its folder."""

    exit_code = 130


class TargetLostError(LoadgenError):
    """The server under test is gone in the middle of the run."""


class SafetyStopError(LoadgenError):
    """A guardrail of the scenario ends the run; what was measured is in its folder."""


class UsageError(LoadgenError):
    """The command line asks for something that cannot be done."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a scenario. No field ever holds a secret."""

    source: str
    """Where it was said: `chat.yaml:7`, `--concurrency`, `--set load.concurrency=0`, `LOADGEN_LOAD_CONCURRENCY`."""
    wrong: str
    """What is wrong, as a full sentence."""
    hint: str | None = None
    """What to do about it, as a full sentence."""
    key: str | None = None
    """Path of the key, e.g. `load.concurrency`; None when the whole file is meant."""
    value: str | None = None
    """The value as it was written; None when it says nothing, or is or may be a secret."""

    def __str__(self) -> str:
        given = f"{self.key} is {self.value}. " if self.key and self.value is not None else ""
        return f"{self.source}: {given}{self.wrong}"


class ScenarioError(LoadgenError):
    """The scenario is refused, before anything was started. `problems` has every reason, at least one."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    def report(self) -> str:
        return "\n".join(_report(str(problem), problem.hint) for problem in self.problems)


def _report(message: str, hint: str | None) -> str:
    return f"error: {message}" + (f"\nhint: {hint}" if hint else "")
