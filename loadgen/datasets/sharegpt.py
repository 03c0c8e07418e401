"""ShareGPT: an array of conversations, or one on each line; the prompt is the user's first turn.

[{"id": "…", "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}, …]}, …]
"""

from __future__ import annotations

from typing import Any

from loadgen.datasets.errors import Place
from loadgen.datasets.fields import parsed_object, shown
from loadgen.datasets.rows import LeftOut, Row

_USER, _SYSTEM = ("human", "user"), ("system",)


def looks_like(row: dict[str, Any]) -> bool:
    """Whether a first line is of this format; a file that begins with `[` is taken for it, too."""
    return "conversations" in row or "conversation" in row


def parse(data: bytes, place: Place) -> Row | LeftOut:
    """The row of one conversation. Raises DatasetError.

    Turns before the user's first are left aside but for a system prompt. Nobody has counted the answer's tokens, so its
    length is the scenario's.
    """
    row = parsed_object(data, place)
    turns = row.get("conversations", row.get("conversation"))
    if not isinstance(turns, list):
        raise place.refusal(
            f"conversations is {shown(turns)}, not a list of turns.",
            'Every conversation is {"conversations": [{"from": "human", "value": "…"}, …]}.',
        )
    system: str | None = None
    for turn in turns:
        if not isinstance(turn, dict):
            raise place.refusal("A turn is not an object.", 'A turn is {"from": "human", "value": "…"}.')
        speaker, said = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if not isinstance(speaker, str) or not isinstance(said, str):
            raise place.refusal("A turn lacks `from` or `value`.", 'A turn is {"from": "human", "value": "…"}.')
        if speaker in _SYSTEM and said:
            system = said
        elif speaker in _USER and said:
            break
    else:
        return LeftOut("no turn of the user")
    return Row(place.line or 0, text=said, system=system)
