"""The simulator's tokenizer can be made again, and is small."""

import json
import os
import subprocess
import sys

from transformers import AutoTokenizer

from server.simulator.tokenizer import folder
from server.simulator.tokenizer.train import VOCABULARY, main

MADE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def test_training_gives_the_same_files_again(tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    assert main([str(here)]) == 0
    subprocess.run(
        [sys.executable, "-m", "server.simulator.tokenizer.train", str(elsewhere)],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        check=True,
        capture_output=True,
        timeout=60,
    )
    for name in MADE:
        assert (here / name).read_bytes() == (elsewhere / name).read_bytes()
    # Another version of the library may lay the file out otherwise, but must learn the same.
    made, shipped = (json.loads((place / "tokenizer.json").read_text("utf-8")) for place in (here, folder()))
    for part in ("model", "pre_tokenizer", "decoder", "post_processor", "added_tokens"):
        assert made[part] == shipped[part]
    assert (here / "chat_template.jinja").read_text() == (folder() / "chat_template.jinja").read_text()


def test_the_folder_is_small():
    assert sum(file.stat().st_size for file in folder().iterdir() if file.is_file()) < 500_000


def test_any_text_survives_the_round_trip():
    tokenizer = AutoTokenizer.from_pretrained(folder())
    assert len(tokenizer) == VOCABULARY
    for text in ("The quick brown fox's 12,345 jumps!", " naïve café — 日本語 😀\n\n\tend ", "a  b   c"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text


def test_a_chat_is_written_as_chatml():
    tokenizer = AutoTokenizer.from_pretrained(folder())
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|startoftext|><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
