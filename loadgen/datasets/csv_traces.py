"""Traces in CSV, Azure's and BurstGPT's: when a request came and its two lengths; the prompts are made up.

    TIMESTAMP,ContextTokens,GeneratedTokens                                        2023-11-16 18:17:03.9799600,4808,10
    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type           5,ChatGPT,472,18,490,Conversation log

Columns are found by name, further ones are not looked at. BurstGPT's rows with an answer of no tokens are requests that
failed. Formats: github.com/Azure/AzurePublicDataset (2023 and 2024), github.com/HPMLL/BurstGPT.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from loadgen.datasets.errors import Place
from loadgen.datasets.fields import MOST_TOKENS, shown
from loadgen.datasets.rows import LeftOut, Row

AZURE = ("timestamp", "contexttokens", "generatedtokens")
BURSTGPT = ("timestamp", "request tokens", "response tokens")
_EXAMPLES = {
    AZURE: "TIMESTAMP,ContextTokens,GeneratedTokens",
    BURSTGPT: "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
}


def cells(data: bytes, place: Place) -> list[str]:
    """The cells of one line, without the blanks around them. Raises DatasetError where it is not UTF-8 or CSV."""
    try:
        text = data.decode("utf-8")
        # Reading one line at a time is what makes it possible to read any one: a cell cannot hold a line break.
        return [cell.strip() for cell in next(csv.reader([text], strict=True))]
    except UnicodeDecodeError:
        raise place.refusal("It is not UTF-8 text.", "Save the file as UTF-8.") from None
    except csv.Error as error:
        raise place.refusal(f"It is not valid CSV: {error}.", "Mend the line or take it out.") from None


@dataclass(frozen=True, slots=True)
class CsvTrace:
    """Reads the rows of one file, once its header is known."""

    columns: tuple[int, int, int]
    """Where instant, prompt tokens and answer tokens stand."""
    names: tuple[str, str, str]
    """What they are called in the file."""
    width: int
    instant_s: Callable[[str], float]

    @classmethod
    def of_header(cls, data: bytes, place: Place, wanted: tuple[str, str, str]) -> CsvTrace:
        """`wanted`: `AZURE` or `BURSTGPT`. Raises DatasetError when a column is not there."""
        header = cells(data, place)
        found = [name.lower() for name in header]
        missing = [name for name in wanted if name not in found]
        if missing:
            raise place.refusal(
                f"The header has no column {', '.join(map(repr, missing))}.",
                f"The first line must be {_EXAMPLES[wanted]}.",
            )
        first, second, third = (found.index(name) for name in wanted)
        return cls(
            columns=(first, second, third),
            names=(header[first], header[second], header[third]),
            width=len(header),
            instant_s=_date if wanted is AZURE else _seconds,
        )

    def parse(self, data: bytes, place: Place) -> Row | LeftOut:
        """The row of one line. Raises DatasetError."""
        row = cells(data, place)
        if len(row) != self.width:
            raise place.refusal(
                f"It has {len(row)} cells, and the header has {self.width}.", "Mend the line or take it out."
            )
        at, input_at, output_at = self.columns
        try:
            timestamp_s = self.instant_s(row[at])
        except ValueError:
            example = "2023-11-16 18:17:03.97" if self.instant_s is _date else "12.5"
            raise place.refusal(
                f"{self.names[0]} is {shown(row[at])}, not an instant.", f"Write it such as {example}."
            ) from None
        input_tokens = _count(row[input_at], self.names[1], place)
        output_tokens = _count(row[output_at], self.names[2], place)
        if not input_tokens or not output_tokens:
            return LeftOut("a prompt of no tokens" if not input_tokens else "an answer of no tokens")
        return Row(place.line or 0, input_tokens=input_tokens, output_tokens=output_tokens, timestamp_s=timestamp_s)


def _date(text: str) -> float:
    """Seconds since 1970 of a date with or without a zone; without, it is taken for UTC. To the microsecond."""
    date = datetime.fromisoformat(text)
    return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()


def _seconds(text: str) -> float:
    seconds = float(text)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError
    return seconds


def _count(text: str, name: str, place: Place) -> int:
    # A table that went through pandas has 472.0 where a column had gaps.
    digits = text.removesuffix(".0")
    if not (digits.isascii() and digits.isdigit()) or int(digits) > MOST_TOKENS:
        raise place.refusal(
            f"{name} is {shown(text)}, not a number of tokens.", "It must be a whole number, zero or more."
        )
    return int(digits)
