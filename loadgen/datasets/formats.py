"""Which format a file has, by its first line, and how its rows are read; the formats themselves are a module each."""

from __future__ import annotations

import functools
import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from loadgen.datasets import csv_traces, jsonl, mooncake, openai_batch, sharegpt
from loadgen.datasets.errors import Place
from loadgen.datasets.fields import parsed_object
from loadgen.datasets.rows import LeftOut, Row
from loadgen.datasets.units import BYTE_ORDER_MARK, Unit, elements, lines

Parse = Callable[[bytes, Place], Row | LeftOut]

FORMATS = ("sharegpt", "jsonl", "openai-batch", "mooncake", "azure", "burstgpt")

_KNOWN = (
    "The formats are sharegpt (an array of conversations), jsonl (a line is an object with prompt, text or messages, or a "
    "whole request body), openai-batch (custom_id, method, url, body), mooncake (timestamp, input_length, output_length, "
    "hash_ids), azure (CSV with ContextTokens and GeneratedTokens) and burstgpt (CSV with Request tokens and Response "
    "tokens)."
)
# The order matters: a line of a batch or a trace may hold a key of the plainer formats as well.
_JSON_FORMATS: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    ("openai-batch", openai_batch.looks_like),
    ("sharegpt", sharegpt.looks_like),
    ("mooncake", mooncake.looks_like),
    ("jsonl", jsonl.looks_like),
)
_HEAD = 1 << 16


@dataclass(frozen=True, slots=True)
class Reader:
    """How the rows of one file are read."""

    format: str
    """One of `FORMATS`."""
    parse: Parse
    _units: Callable[[BinaryIO, str], Iterator[Unit]]
    _has_header: bool = False

    def units(self, source: BinaryIO, path: str) -> Iterator[Unit]:
        """The pieces of the file that hold a row each. Raises DatasetError."""
        found = self._units(source, path)
        if self._has_header:
            next(found, None)
        return found


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The content of a file, unpacked where it is gzip. What goes wrong in reading it is a DatasetError."""
    place = Place(str(path))
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
    except FileNotFoundError:
        raise place.refusal(
            "There is no such file.",
            "A path in a scenario counts from the scenario's folder, one on the command line from here; check it.",
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise place.refusal(
            f"It is gzip, and cannot be unpacked: {str(error).rstrip('.')}.",
            "Get the file again: it is damaged or cut short.",
        ) from None
    except OSError as error:
        raise place.refusal(
            f"The file cannot be read: {error.strerror or error}.", "Check its path and rights."
        ) from None


def reader_of(path: Path, format: str = "auto", *, block_tokens: int = mooncake.BLOCK_TOKENS) -> Reader:
    """How `path` is read. `format`: one of `FORMATS`, or `auto` to tell by the first line. Raises DatasetError."""
    place = Place(str(path))
    with opened(path) as source:
        head = source.read(_HEAD)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise place.refusal("It is UTF-16 text.", "Save the file as UTF-8.")
    is_array = head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"[")
    if (format == "auto" and is_array) or format == "sharegpt":
        return Reader("sharegpt", sharegpt.parse, elements if is_array else lines)
    if is_array:
        raise place.refusal(
            f"It is a JSON array, which {format} is not.", "Write one object a line, without commas between."
        )
    with opened(path) as source:
        first = next(lines(source, str(path)), None)
    if first is None:
        raise place.refusal("The file is empty.", _KNOWN)
    place = Place(str(path), first.line)
    if format == "auto":
        format = _told_by(first.data, place)
    match format:
        case "azure" | "burstgpt":
            wanted = csv_traces.AZURE if format == "azure" else csv_traces.BURSTGPT
            trace = csv_traces.CsvTrace.of_header(first.data, place, wanted)
            return Reader(format, trace.parse, lines, _has_header=True)
        case "mooncake":
            return Reader(format, functools.partial(mooncake.parse, block_tokens=block_tokens), lines)
        case "openai-batch":
            return Reader(format, openai_batch.parse, lines)
        case "sharegpt":
            return Reader(format, sharegpt.parse, lines)
        case _:
            return Reader("jsonl", jsonl.parse, lines)


def _told_by(first: bytes, place: Place) -> str:
    """The format of a file that begins with this line."""
    if first.startswith(b"{"):
        row = parsed_object(first, place)
        for name, looks_like in _JSON_FORMATS:
            if looks_like(row):
                return name
        raise place.refusal(f"No format is known by the keys {', '.join(list(row)[:6]) or '(none)'}.", _KNOWN)
    header = {name.lower() for name in csv_traces.cells(first, place)}
    if set(csv_traces.AZURE[1:]) & header:
        return "azure"
    if set(csv_traces.BURSTGPT[1:]) & header:
        return "burstgpt"
    raise place.refusal("The first line is that of no known format.", _KNOWN)
