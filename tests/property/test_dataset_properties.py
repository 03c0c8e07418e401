"""Datasets whatever is in them: arrays cut anywhere, and orders of any number of rows."""

import io
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loadgen.datasets import units
from loadgen.datasets.order import Shuffled

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), max_size=6)


class Pieces(io.BytesIO):
    """A file that is read in pieces of a given size."""

    size = 1

    def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        return super().read(self.size)


@given(OBJECTS, st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
def test_an_array_read_in_pieces_of_any_size_gives_its_objects(
    objects: list[dict[str, Any]], size: int, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(objects, ensure_ascii=ascii_only, indent=indent)
    data = text.encode()
    source = Pieces(data)
    source.size = size
    found = list(units.elements(source, "x.json"))
    assert [data[unit.offset : unit.offset + len(unit.data)] for unit in found] == [unit.data for unit in found]
    assert [json.loads(unit.data) for unit in found] == objects


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 4095), st.integers(0, 2**32))
def test_any_window_as_long_as_the_file_takes_each_row_once(rows: int, seed: int, level: int, first: int) -> None:
    order = Shuffled(rows, seed)
    assert sorted(order.row(level, first + k) for k in range(rows)) == list(range(rows))
