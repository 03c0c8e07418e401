"""The command line of vLLM: flags from keys, templates, and what stands in for a command that is absent or broken."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from server.vllm.command import MODULE, CommandError, Start, command_words, filled, flag_words

START = Start({"max_num_seqs": 8}, "/models/m", ("m", "loadgen-1"), "127.0.0.1", 8123)
EVERY_WORD = [
    *("--model", "/models/m", "--served-model-name", "m", "loadgen-1"),
    *("--host", "127.0.0.1", "--port", "8123", "--max-num-seqs", "8"),
]


def program(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("max_num_seqs", 8, ["--max-num-seqs", "8"]),
        ("enforce_eager", True, ["--enforce-eager"]),
        ("enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        ("quantization", None, []),
        ("gpu_memory_utilization", 0.9, ["--gpu-memory-utilization", "0.9"]),
        ("hf_overrides", {"a": [1, True]}, ["--hf-overrides", '{"a": [1, true]}']),
        ("lora_modules", ["a=/a", "b=/b"], ["--lora-modules", "a=/a", "b=/b"]),
    ],
)
def test_a_key_is_a_flag_with_dashes(key: str, value: object, words: list[str]) -> None:
    assert flag_words({key: value}) == words


def test_a_template_gets_every_flag_where_it_says_args_and_else_at_its_end() -> None:
    assert filled("docker run img {args} --x", START) == ["docker", "run", "img", *EVERY_WORD, "--x"]
    assert filled("docker run img", START) == ["docker", "run", "img", *EVERY_WORD]


def test_what_a_template_spells_itself_is_not_in_args() -> None:
    words = filled("vllm serve {model} --port {port} {args}", START)
    assert words[:5] == ["vllm", "serve", "/models/m", "--port", "8123"]
    assert words[5:] == ["--served-model-name", "m", "loadgen-1", "--host", "127.0.0.1", "--max-num-seqs", "8"]


def test_a_placeholder_inside_of_a_word_is_quoted_for_the_shell_that_will_read_it() -> None:
    start = Start({"hf_overrides": {"a": 1}}, None, ("m",), "h", 1)
    assert filled("ssh box 'cd x && vllm serve m {args}'", start)[2] == (
        """cd x && vllm serve m --served-model-name m --host h --port 1 --hf-overrides '{"a": 1}'"""
    )


def test_braces_of_json_are_no_placeholder() -> None:
    assert filled("""x '{"a": 1}' {port}""", START)[:3] == ["x", '{"a": 1}', "8123"]


def test_a_stop_command_gets_no_flags_of_its_own() -> None:
    assert filled("docker stop lg-{port}", START, key="server.stop_command") == ["docker", "stop", "lg-8123"]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("vllm {modle}", "{modle}, which stands for nothing"),
        ("vllm 'x", "cannot be read"),
        ("  ", "is empty"),
        ("vllm serve {model}", "no model is named"),
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str, why: str) -> None:
    with pytest.raises(CommandError, match=why.replace("{", r"\{")):
        filled(template, Start({}, None, ("m",), "h", 1))


def test_the_environments_own_command_is_taken_where_it_works(tmp_path: Path) -> None:
    python = program(tmp_path / "bin/python", "#!/bin/sh\nprintf 'True\\n0.32.0\\n'\n")
    vllm = program(tmp_path / "bin/vllm", f"#!{python}\n")
    assert command_words(START, template=None, python=python)[:3] == [vllm, "serve", "/models/m"]


def test_the_module_stands_in_for_a_command_that_finds_no_distribution_of_its_name(tmp_path: Path) -> None:
    python = program(tmp_path / "bin/python", "#!/bin/sh\nprintf 'True\\n\\n'\n")
    program(tmp_path / "bin/vllm", f"#!{python}\n")
    assert command_words(START, template=None, python=python) == [python, "-m", MODULE, *EVERY_WORD]


def test_the_module_stands_in_for_a_command_that_is_absent(tmp_path: Path) -> None:
    python = program(tmp_path / "bin/python", "#!/bin/sh\nprintf 'True\\n0.32.0\\n'\n")
    assert command_words(START, template=None, python=python)[:3] == [python, "-m", MODULE]


def test_the_command_of_the_path_is_taken_without_a_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = program(tmp_path / "bin/python3", "#!/bin/sh\nprintf 'True\\n0.32.0\\n'\n")
    vllm = program(tmp_path / "bin/vllm", f"#!{python}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert command_words(START, template=None, python=None)[:2] == [vllm, "serve"]


def test_a_python_without_vllm_is_refused_with_what_to_set(tmp_path: Path) -> None:
    python = program(tmp_path / "bin/python", "#!/bin/sh\nprintf 'False\\n\\n'\n")
    with pytest.raises(CommandError, match="vLLM is not installed") as caught:
        command_words(START, template=None, python=python)
    assert "server.python" in caught.value.hint
    with pytest.raises(CommandError, match="no such program"):
        command_words(START, template=None, python=str(tmp_path / "nowhere"))
