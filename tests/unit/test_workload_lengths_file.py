"""Files of pairs of lengths: CSV with and without a heading, JSONL, and every line that is none."""

from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.workload.lengths_file import read_lengths


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lengths.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "100,10\n200,20\n100,10\n",
        "100, 10\r\n\r\n200 ,20\r\n100,10",
        "\ufeffinput_tokens,output_tokens\n100,10\n200,20\n100,10\n",
        "id,output_tokens,model,input_tokens\na,10,x,100\nb,20,x,200\nc,10,x,100\n",
        (
            '{"input_tokens": 100, "output_tokens": 10}\n\n{"input_tokens": 200, "output_tokens": 20, "id": 1}\n'
            '{"output_tokens": 10, "input_tokens": 100}\n'
        ),
    ],
)
def test_pairs_are_read_and_counted(tmp_path: Path, text: str) -> None:
    found = read_lengths(written(tmp_path, text))
    assert (found.pairs, found.counts) == (((100, 10), (200, 20)), (2, 1))


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("100,10\n100\n", 2, "it has 1 column."),
        ("100,10\n\n100,ten\n", 3, "output_tokens is 'ten'"),
        ("100,0\n", 1, "output_tokens is '0'"),
        ("100,-3\n", 1, "output_tokens is '-3'"),
        ("100,1.5\n", 1, "output_tokens is '1.5'"),
        ("prompt,answer\n100,10\n", 1, "its heading has no input_tokens and output_tokens"),
        ('{"input_tokens": 100, "output_tokens": 10}\n{"input_tokens": 100}\n', 2, "not an object with"),
        ('{"input_tokens": 100, "output_tokens": 10}\n[1, 2]\n', 2, "not an object with"),
        ('{"input_tokens": 100, "output_tokens": 10}\n{"input_t\n', 2, "not JSON"),
        ('{"input_tokens": true, "output_tokens": 10}\n', 1, "input_tokens is 'True'"),
        ('{"input_tokens": null, "output_tokens": 10}\n', 1, "input_tokens is 'None'"),
    ],
)
def test_a_line_that_is_no_pair_is_refused_with_file_and_line(tmp_path: Path, text: str, line: int, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as refusal:
        read_lengths(path)
    assert str(refusal.value).startswith(f"{path}:{line} ")
    assert why in str(refusal.value)
    assert refusal.value.hint


@pytest.mark.parametrize("text", ["", "\n\n", "input_tokens,output_tokens\n"])
def test_a_file_without_a_pair_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="holds no pair of lengths"):
        read_lengths(written(tmp_path, text))


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_lengths(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"100,10\n\xff\xfe,1\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_lengths(tmp_path / "b.csv")
