"""Files cut into rows: where each lies, on which line, and what is refused."""

import io
import json

import pytest

from loadgen.datasets import units
from loadgen.datasets.errors import DatasetError


class Dribble(io.BytesIO):
    """A file whose reads give a few bytes at a time, as a decompressor may."""

    def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        return super().read(3)


def lines_of(data: bytes) -> list[units.Unit]:
    return list(units.lines(io.BytesIO(data), "x.jsonl"))


def elements_of(data: bytes, source: type[io.BytesIO] = io.BytesIO) -> list[units.Unit]:
    return list(units.elements(source(data), "x.json"))


def test_a_line_is_found_again_at_its_offset() -> None:
    data = b'\xef\xbb\xbf\n  {"a": 1}  \r\n\n{"b": 2}\n \t\n{"c": 3}'
    found = lines_of(data)
    assert [unit.data for unit in found] == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']
    assert [unit.line for unit in found] == [2, 4, 6]
    assert all(data[unit.offset : unit.offset + len(unit.data)] == unit.data for unit in found)


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    data = b'\xef\xbb\xbf{"a": 1}\n'
    (unit,) = lines_of(data)
    assert (unit.offset, unit.data) == (3, b'{"a": 1}')


def test_a_file_in_one_endless_line_is_refused_and_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "LONGEST_UNIT", 1000)
    with pytest.raises(DatasetError, match=r"^x\.jsonl:2: What begins here is longer than"):
        lines_of(b"{}\n" + b"x" * 1001)


NASTY = [
    {"quotes": 'a " b \\" c', "brackets": "]}[{", "n": 1},
    {"nested": [[{"deep": [1, [2, [3]]]}], "\\"], "unicode": "ä – 🐘"},
    {},
    {"newline": "in\ntext", "ends with a backslash": "\\\\"},
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("source", [io.BytesIO, Dribble])
def test_elements_of_an_array_are_found_whatever_their_strings_hold(
    indent: int | None, source: type[io.BytesIO]
) -> None:
    data = b"\xef\xbb\xbf \n" + json.dumps(NASTY, indent=indent, ensure_ascii=False).encode() + b"\n\n"
    found = elements_of(data, source)
    assert [json.loads(unit.data) for unit in found] == NASTY
    assert all(data[unit.offset : unit.offset + len(unit.data)] == unit.data for unit in found)
    assert [unit.line for unit in found] == [1 + data[: unit.offset].count(b"\n") for unit in found]


@pytest.mark.parametrize("data", [b"[]", b" [ \n ] \n"])
def test_an_empty_array_has_no_element(data: bytes) -> None:
    assert elements_of(data) == []


@pytest.mark.parametrize(
    ("data", "line", "wrong"),
    [
        (b"", 1, "not a JSON array"),
        (b'{"a": 1}', 1, "not a JSON array"),
        (b'[{"a": 1},\n{"b": 2}\n', 3, "ends within the array"),
        (b'[{"a": 1},\n', 2, "ends within the array"),
        (b'[{"a": 1},\n{"b": [2}\n', 2, "does not end"),
        (b'[{"a": 1},\n{"b": "2}]', 2, "does not end"),
        (b'[{"a": 1}\n{"b": 2}]', 2, "comma or the end of the array is missing"),
        (b'[{"a": 1},\n17]', 2, "not an object"),
        (b'[{"a": 1},\n]', 2, "not an object"),
        (b'[{"a": 1}]\n[{"b": 2}]', 2, "follows the end"),
    ],
)
def test_a_broken_array_is_refused_with_the_line(data: bytes, line: int, wrong: str) -> None:
    with pytest.raises(DatasetError, match=rf"^x\.json:{line}: .*{wrong}") as refused:
        elements_of(data)
    assert refused.value.hint


def test_an_element_that_never_ends_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "LONGEST_UNIT", 5000)
    monkeypatch.setattr(units, "_CHUNK", 100)
    with pytest.raises(DatasetError, match=r"^x\.json:1: What begins here is longer than"):
        elements_of(b'[{"a": "' + b"x" * 100_000)
