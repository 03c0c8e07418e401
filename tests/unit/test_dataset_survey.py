"""A whole file read once: what it holds, where its rows lie, and that its size costs no memory."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.datasets.dataset import Dataset
from loadgen.datasets.errors import DatasetError, Place
from loadgen.datasets.rows import Row
from loadgen.datasets.survey import INDEX_FILE, Source, Survey, survey
from loadgen.datasets.workload import check_fits
from loadgen.errors import LoadgenError

SAMPLES = Path(__file__).parents[1] / "samples" / "datasets"


def surveyed(source: Source, folder: Path) -> tuple[Survey, Dataset]:
    return survey(source, folder), Dataset(source, folder)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_any_row_is_found_again_without_its_neighbours(sample: str, packed: bool, tmp_path: Path) -> None:
    seen: list[Row] = []
    path = SAMPLES / sample
    if packed:
        path = tmp_path / sample
        path.write_bytes(gzip.compress((SAMPLES / sample).read_bytes()))
    source = Source(str(path))
    found = survey(source, tmp_path, check=lambda row, place: seen.append(row))
    dataset = Dataset(source, tmp_path)
    assert found.rows == len(dataset) == len(seen) > 0
    for number in (len(seen) - 1, 0, len(seen) // 2):
        row = dataset.row(number)
        assert (row.text, row.messages, row.body, row.input_tokens, row.hash_ids) == (
            seen[number].text,
            seen[number].messages,
            seen[number].body,
            seen[number].input_tokens,
            seen[number].hash_ids,
        )


def test_a_survey_says_what_a_trace_holds(tmp_path: Path) -> None:
    found, dataset = surveyed(Source(str(SAMPLES / "mooncake.jsonl")), tmp_path)
    assert (found.format, found.rows, found.timed, found.span_s) == ("mooncake", 6, True, 1.5)
    assert found.left_out == {"an answer of no tokens": 1}
    assert found.longest == (2, 1300, 8)
    assert found.short_inputs == {300: 1}
    assert dataset.timestamps_s().tolist() == [0.0, 0.15, 0.15, 0.6, 0.9, 1.5]


def test_prompts_without_instants_are_not_timed(tmp_path: Path) -> None:
    found, _ = surveyed(Source(str(SAMPLES / "prompts.jsonl")), tmp_path)
    assert (found.timed, found.span_s, found.longest) == (False, None, None)


def test_rows_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    found, dataset = surveyed(Source(str(SAMPLES / "azure.csv"), max_tokens=420), tmp_path)
    assert found.left_out == {"more tokens than workload.dataset.max_tokens": 1}
    assert found.rows == len(dataset) == 4
    assert [dataset.row(i).input_tokens for i in range(4)] == [374, 396, 91, 381]


def test_a_trace_out_of_order_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n1,5,5\n\n9,5,5\n8.5,5,5\n")
    with pytest.raises(DatasetError, match=r"trace\.csv:5: .*0\.5 s before the one in line 4") as refused:
        survey(Source(str(path)), tmp_path)
    assert refused.value.hint == "Sort the file by its instants."


def test_a_file_without_a_row_to_send_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n1,5,0\n2,7,0\n")
    with pytest.raises(DatasetError, match="No row of it can be sent: 2 with an answer of no tokens"):
        survey(Source(str(path)), tmp_path)


@pytest.mark.parametrize(
    ("sample", "endpoint", "line"),
    [("openai-batch.jsonl", "completions", 1), ("prompts.jsonl", "completions", 3)],
)
def test_rows_for_the_other_endpoint_are_refused_with_the_line(
    sample: str, endpoint: str, line: int, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=rf"{sample}:{line}: It holds messages, which the completions endpoint"):
        survey(
            Source(str(SAMPLES / sample)),
            tmp_path,
            check=lambda row, place: check_fits(row, place, endpoint),  # type: ignore[arg-type]
        )


def test_a_body_with_a_prompt_is_not_for_the_chat_endpoint() -> None:
    with pytest.raises(DatasetError, match=r"x:7: It holds a body with a prompt, which the chat endpoint"):
        check_fits(Row(7, body={"model": "m", "prompt": "a"}), Place("x", 7), "chat")
    check_fits(Row(7, text="a"), Place("x", 7), "chat")
    check_fits(Row(7, text="a"), Place("x", 7), "completions")


def test_a_file_that_changed_under_a_run_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    _, dataset = surveyed(Source(str(path)), tmp_path)
    path.write_text('{"pro')
    with pytest.raises(DatasetError, match="has changed since it was read"):
        dataset.row(1)


def test_whoever_waits_is_told_how_far_the_reading_is(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n' * 10_000)
    shares: list[float] = []
    survey(Source(str(path)), tmp_path, pause=shares.append)
    assert shares == sorted(shares) and len(shares) >= 3 and all(0 < share <= 1 for share in shares)


def test_a_full_disk_is_not_taken_for_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).symlink_to("/dev/full")
    with pytest.raises(LoadgenError, match="index of the dataset cannot be written: No space left") as refused:
        survey(Source(str(SAMPLES / "prompts.jsonl")), tmp_path)
    assert not isinstance(refused.value, DatasetError)


GROWTH = """
import json, resource, sys
from pathlib import Path
from loadgen.datasets.dataset import Dataset
from loadgen.datasets.order import Shuffled
from loadgen.datasets.survey import Source, survey

def resident_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

small, big, folder = sys.argv[1:]
survey(Source(small), Path(folder))
before = resident_kib()
found = survey(Source(big), Path(folder))
dataset, order = Dataset(Source(big), Path(folder)), Shuffled(found.rows, 7)
for k in range(500):
    assert dataset.row(order.row(0, k)).text
print(json.dumps([found.rows, found.size_bytes, (resident_kib() - before) * 1024]))
"""


@pytest.mark.parametrize("format", ["jsonl", "sharegpt"])
def test_a_big_file_is_read_and_drawn_from_in_bounded_memory(format: str, tmp_path: Path) -> None:
    rows = 60_000
    if format == "jsonl":
        line = json.dumps({"prompt": "word " * 200}) + "\n"
        whole = (line * 10, line * rows)
    else:
        one = json.dumps({"conversations": [{"from": "human", "value": "word " * 200}]})
        whole = (f"[{one}]", "[" + ",\n".join([one] * rows) + "]")
    paths = [tmp_path / "small", tmp_path / "big"]
    for path, text in zip(paths, whole, strict=True):
        path.write_text(text)
    ran = subprocess.run(
        [sys.executable, "-c", GROWTH, *map(str, paths), str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    found, size_bytes, grown_bytes = json.loads(ran.stdout)
    assert found == rows and size_bytes > 60e6
    # What is kept of a row lies in the index, a file.
    assert grown_bytes < 12e6
