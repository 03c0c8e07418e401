"""The one error of this package: a prompt of the wanted length cannot be made, and what to do about it."""

from __future__ import annotations


class PromptError(ValueError):
    """An exact prompt is impossible as asked. The message is a full sentence; `hint` says what to change."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.args[0]}\nhint: {self.hint}"

    def __reduce__(self) -> tuple[type[PromptError], tuple[str, str]]:
        return type(self), (self.args[0], self.hint)
