"""Every format's rows, how a format is told, and what each refuses; the samples are of our own making."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.datasets.errors import DatasetError, Place
from loadgen.datasets.formats import FORMATS, opened, reader_of
from loadgen.datasets.rows import LeftOut, Row

SAMPLES = Path(__file__).parents[1] / "samples" / "datasets"
FILES = {
    "sharegpt": "sharegpt.json",
    "jsonl": "prompts.jsonl",
    "openai-batch": "openai-batch.jsonl",
    "mooncake": "mooncake.jsonl",
    "azure": "azure.csv",
    "burstgpt": "burstgpt.csv",
}


def rows_of(path: Path, format: str = "auto", **options: Any) -> list[Row | LeftOut]:
    reader = reader_of(path, format, **options)
    with opened(path) as source:
        return [reader.parse(unit.data, Place(str(path), unit.line)) for unit in reader.units(source, str(path))]


def read(tmp_path: Path, text: str | bytes, format: str = "auto", **options: Any) -> list[Row | LeftOut]:
    path = tmp_path / "file"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return rows_of(path, format, **options)


def refusal(tmp_path: Path, text: str | bytes, format: str = "auto", **options: Any) -> str:
    with pytest.raises(DatasetError) as refused:
        read(tmp_path, text, format, **options)
    assert refused.value.hint and refused.value.exit_code == 2
    return str(refused.value).removeprefix(str(tmp_path / "file"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_is_told_by_the_first_line(format: str) -> None:
    assert reader_of(SAMPLES / FILES[format]).format == format


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_reads_the_same_under_its_own_name_packed_and_with_a_byte_order_mark(
    format: str, tmp_path: Path
) -> None:
    sample = SAMPLES / FILES[format]
    content = sample.read_bytes()
    marked, packed = tmp_path / "marked", tmp_path / "packed.gz"
    marked.write_bytes(b"\xef\xbb\xbf" + content)
    packed.write_bytes(gzip.compress(content))
    rows = rows_of(sample)
    assert rows_of(sample, format) == rows_of(marked) == rows_of(packed) == rows


def test_the_first_turn_of_a_conversation_is_its_prompt() -> None:
    rows = rows_of(SAMPLES / "sharegpt.json")
    assert rows[0] == Row(2, text="What is a monsoon?")
    assert rows[2] == LeftOut("no turn of the user")
    assert rows[4] == Row(50, text="Translate ‘good morning’ into Finnish.", system="You translate.")


def test_conversations_may_stand_on_a_line_each(tmp_path: Path) -> None:
    conversations = json.loads((SAMPLES / "sharegpt.json").read_bytes())
    lines = "\n\n".join(json.dumps(one) for one in conversations)
    assert [row.text for row in read(tmp_path, lines) if isinstance(row, Row)][:2] == [
        "What is a monsoon?",
        "Name three rivers of Kenya.",
    ]


def test_prompts_texts_and_messages_are_read_with_the_length_of_the_answer() -> None:
    rows = rows_of(SAMPLES / "prompts.jsonl")
    assert rows[0] == Row(1, text="Write a limerick about rain.", output_tokens=24)
    assert rows[1] == Row(2, text="List five prime numbers.")
    assert isinstance(rows[2], Row) and rows[2].messages is not None and rows[2].output_tokens == 8


def test_a_line_with_a_model_is_a_whole_body() -> None:
    rows = rows_of(SAMPLES / "bodies.jsonl")
    assert isinstance(rows[1], Row) and rows[1].body is not None
    assert rows[1].body["temperature"] == 0.2 and rows[1].output_tokens == 13


def test_a_prompt_with_an_instant_has_it_in_seconds(tmp_path: Path) -> None:
    (row,) = read(tmp_path, '{"text": "Hi.", "timestamp": 1500}')
    assert isinstance(row, Row) and row.timestamp_s == 1.5


def test_the_body_of_a_batch_line_is_what_is_sent() -> None:
    (first, *_) = rows_of(SAMPLES / "openai-batch.jsonl")
    assert isinstance(first, Row) and first.body is not None
    assert first.body["model"] == "gpt-4o-mini" and first.output_tokens == 16


def test_a_mooncake_row_has_lengths_instant_and_blocks() -> None:
    rows = rows_of(SAMPLES / "mooncake.jsonl")
    assert rows[1] == Row(2, input_tokens=1300, output_tokens=8, timestamp_s=0.15, hash_ids=(0, 1, 3))
    assert rows[5] == LeftOut("an answer of no tokens")
    assert rows[6] == Row(7, input_tokens=300, output_tokens=20, timestamp_s=1.5)


def test_mooncake_blocks_may_have_another_size(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 33, "output_length": 5, "hash_ids": [1, 2, 3]}'
    (row,) = read(tmp_path, line, block_tokens=16)
    assert isinstance(row, Row) and row.hash_ids == (1, 2, 3)
    assert "33 tokens are 1 blocks of 512" in refusal(tmp_path, line)


def test_azures_dates_are_instants_with_and_without_a_zone(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = read(tmp_path, head + "2023-11-16 18:15:46.6805900,4808,10\n2023-11-16 19:15:47+01:00,3180,8\n")
    assert [row.timestamp_s for row in rows if isinstance(row, Row)] == pytest.approx([1700158546.68059, 1700158547])
    assert isinstance(rows[0], Row) and (rows[0].input_tokens, rows[0].output_tokens) == (4808, 10)


def test_a_failed_request_of_burstgpt_is_left_out() -> None:
    rows = rows_of(SAMPLES / "burstgpt.csv")
    assert rows[0] == Row(2, input_tokens=472, output_tokens=18, timestamp_s=5.0)
    assert rows[1] == LeftOut("an answer of no tokens")


def test_columns_are_found_by_name_and_cells_may_be_quoted(tmp_path: Path) -> None:
    text = 'Session ID,Model,Timestamp,"Response tokens",Request tokens\n"a, b",GPT-4,"3.5",7.0,12\n'
    assert read(tmp_path, text) == [Row(2, input_tokens=12, output_tokens=7, timestamp_s=3.5)]


BATCH = '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": '


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", ": The file is empty."),
        ("\n \n", ": The file is empty."),
        ("hello,world\n1,2\n", ":1: The first line is that of no known format."),
        ('{"question": "why?"}\n', ":1: No format is known by the keys question."),
        ('{"prompt": "a"}\n\n{"prompt": "b"\n', ":3: It is not valid JSON"),
        ('{"prompt": "a"}\n["b"]\n', ":2: It holds a list, not an object."),
        ('{"prompt": "a"}\n{"answer": "b"}\n', ":2: It has neither messages nor prompt nor text."),
        ('{"prompt": "a"}\n{"prompt": "a", "text": "b"}\n', ":2: It has prompt and text."),
        ('{"prompt": "a"}\n{"prompt": ""}\n', ":2: prompt is empty, not a text."),
        ('{"prompt": "a"}\n{"prompt": 17}\n', ":2: prompt is 17, not a text."),
        ('{"prompt": "a", "output_tokens": -1}\n', ":1: output_tokens is -1, not a number of tokens."),
        ('{"prompt": "a", "output_tokens": 2.5}\n', ":1: output_tokens is 2.5, not a number of tokens."),
        ('{"prompt": "a", "output_tokens": true}\n', ":1: output_tokens is true, not a number of tokens."),
        ('{"prompt": "a", "timestamp": "now"}\n', ":1: timestamp is the text 'now', not an instant."),
        ('{"messages": []}\n', ":1: messages is an empty list, not a list of messages."),
        ('{"messages": ["hi"]}\n', ":1: messages holds something that is not a message."),
        ('{"model": "m", "input": "a"}\n{"prompt": "b"}', ":1: No format is known by the keys model, input."),
        ('{"prompt": "b"}\n{"model": "m", "input": "a"}\n', ":2: The body has neither messages nor prompt."),
        ('{"model": "m", "prompt": ["a", "b"]}\n', ":1: prompt is a list of prompts"),
        ('{"model": "m", "prompt": "a", "n": 4}\n', ":1: n is 4, and the tokens of several answers"),
        ('{"model": "m", "prompt": "a", "max_tokens": 0}\n', ":1: The body allows an answer of no tokens."),
        (BATCH + '{"prompt": "a"}}\n', ":1: The body has no messages"),
        (
            BATCH.replace("POST", "GET") + '{"messages": [{"role": "user"}]}}\n',
            ":1: method is the text 'GET', not POST.",
        ),
        (BATCH.replace("chat/completions", "embeddings") + '{"input": "a"}}\n', ":1: url is the text '/v1/embeddings'"),
        ('[{"id": 1}]', ":1: conversations is null, not a list of turns."),
        ('[{"conversations": ["a"]}]', ":1: A turn is not an object."),
        ('[{"conversations": []},\n{"conversations": [{"from": "human"}]}]', ":2: A turn lacks `from` or `value`."),
        ('[{"conversations": [], "x": 1e}]', ":1: It is not valid JSON"),
        ('{"timestamp": 1, "input_length": 5}\n', ":1: It has no output_length."),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": 3}\n', ":1: hash_ids is 3, not a list"),
        ('{"input_length": 5, "output_length": 5, "hash_ids": ["a"]}\n', ":1: hash_ids holds something"),
        ('{"input_length": 5, "output_length": 5, "hash_ids": [1, 2]}\n', ":1: hash_ids has 2 ids, but 5 tokens"),
        ("TIMESTAMP,ContextTokens\n", ":1: The header has no column 'generatedtokens'."),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,2\n", ":2: TIMESTAMP is the text 'soon', not an instant."),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n\n2024-01-01,1\n", ":3: It has 2 cells, and the header has 3."),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01,x,1\n",
            ":2: ContextTokens is the text 'x', not a number",
        ),
        ("Timestamp,Request tokens,Response tokens\n-1,1,1\n", ":2: Timestamp is the text '-1', not an instant."),
        ("Timestamp,Request tokens,Response tokens\nnan,1,1\n", ":2: Timestamp is the text 'nan', not an instant."),
        ('Timestamp,Request tokens,Response tokens\n1,"1,1\n', ":2: It is not valid CSV"),
        (b"Timestamp,Request tokens,Response tokens\n1,\xff,1\n", ":2: It is not UTF-8 text."),
        ("\ufeff{}".encode("utf-16"), ": It is UTF-16 text."),
        (b"\x1f\x8b\x08\x00broken", ": It is gzip, and cannot be unpacked"),
        (gzip.compress(b'{"prompt": "a"}\n' * 9000)[:-40], ": It is gzip, and cannot be unpacked"),
    ],
)
def test_bad_input_is_refused_with_file_line_and_remedy(text: str | bytes, wrong: str, tmp_path: Path) -> None:
    assert wrong in refusal(tmp_path, text)


def test_an_unknown_format_is_refused_with_all_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as refused:
        read(tmp_path, "what is this?\n")
    assert refused.value.hint is not None
    assert all(format in refused.value.hint for format in FORMATS)


def test_a_format_that_is_given_is_not_guessed_about(tmp_path: Path) -> None:
    assert ":1: The header has no column 'timestamp', 'contexttokens'" in refusal(tmp_path, "a,b\n", "azure")
    assert ": It is a JSON array, which jsonl is not." in refusal(tmp_path, "[]", "jsonl")
    (row,) = read(tmp_path, '{"prompt": "a", "input_length": 3}', "jsonl")
    assert isinstance(row, Row) and row.text == "a"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="There is no such file"):
        rows_of(tmp_path / "nothing.jsonl")
    with pytest.raises(DatasetError, match="cannot be read: Is a directory"):
        rows_of(tmp_path)
