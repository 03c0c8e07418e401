"""The documents that are made from the code are what the code says."""

import pytest

from loadgen.cli.reference import DOCUMENTS, ROOT


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_reference_document_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == DOCUMENTS[name](), "run python -m loadgen.cli.reference --write"
