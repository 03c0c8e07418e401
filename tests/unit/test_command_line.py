"""The command line as it is written down: to be typed again, and without any secret."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from loadgen.command_line import LONGEST, SECRET, command_line
from loadgen.scenario.target import Target

URL = "http://127.0.0.1:8000"


def told(*words: str, environment: dict[str, str] | None = None, **target: Any) -> str:
    return command_line(["/srv/venv/bin/loadgen", "run", *words], Target(base_url=URL, **target), environment or {})


def test_words_are_quoted_so_that_a_shell_reads_them_as_they_were() -> None:
    words = ["my scenario.yaml", "--slo", "ttft_p95<2s,tpot_p95<50ms", "--name", "it's; rm -rf $HOME\n`x`"]
    assert shlex.split(told(*words)) == ["loadgen", "run", *words]


def test_the_program_is_named_without_its_folder() -> None:
    target = Target(base_url=URL)
    assert command_line(["/srv/secret-project/loadgen/__main__.py", "run"], target, {}) == "python -m loadgen run"
    assert command_line(["/usr/bin/locust", "-f", "x.py"], target, {}) == "locust -f x.py"
    assert command_line([], target, {}) == "loadgen"


@pytest.mark.parametrize(
    "words",
    [
        ("-H", "Authorization: Bearer abcd"),
        ("--header", "Authorization: Bearer abcd"),
        ("--header=Authorization: Bearer abcd",),
        ("-HAuthorization: Bearer abcd",),
        ("--header", "X-Api-Key=abcd"),
        ("-H", "X-Tenant: blue\nX-Api-Key: abcd"),
        ("-H", "abcd"),
        ("--set", "target.headers.X-Api-Key=abcd"),
        ("--set=target.headers.X-Api-Key=abcd",),
        ("--set", 'target.headers={X-Api-Key: "ab\\u0063d"}'),
        ("--proxy", "http://me:abcd@proxy:3128"),
        ("--set", "target.proxy=http://me:ab@cd@proxy:3128"),
        ("--api-key", "abcd"),
        ("--my-token=abcd",),
        ("--extra-body", '{"auth": "Bearer abcd"}'),
        ("--extra-body", '{"key": "sk-abcdabcdabcd"}'),
    ],
)
def test_secrets_are_cut_out_wherever_they_stand(words: tuple[str, ...]) -> None:
    text = told(*words, "--seed", "7")
    assert SECRET in text
    assert not [part for part in ("abcd", "cd@proxy", "u0063d") if part in text]
    assert text.endswith(" --seed 7")


def test_what_is_known_to_be_secret_is_cut_out_of_any_word() -> None:
    text = told(
        *("--name", "with-of-the-variable-and-written-out", "--model", "pass%40word", "-c", "of-the-key.yaml"),
        headers={"X-Gateway-Auth": "${GATEWAY}", "X-Token": "written-out"},
        proxy="http://me:pass%40word@proxy:3128",
        environment={"GATEWAY": "of-the-variable", "OPENAI_API_KEY": "of-the-key"},
    )
    assert text == f"loadgen run --name 'with-{SECRET}-and-{SECRET}' --model '{SECRET}' -c '{SECRET}.yaml'"


def test_what_is_no_secret_stays() -> None:
    words = ["-H", "X-Tenant: blue", "--header=Authorization: Bearer ${TOKEN}", "--output-tokens", "8"]
    words += ["--api-key-env", "MY_KEY", "--between-tokens-timeout=5s", "--base-url", "http://llm:8000/gateway"]
    assert shlex.split(told(*words, headers={"Authorization": "Bearer ${TOKEN}"})) == ["loadgen", "run", *words]


def test_bytes_that_are_no_text_do_not_keep_the_run_from_being_noted() -> None:
    text = told("caf\udce9.yaml")
    assert "caf\ufffd.yaml" in text
    text.encode()


def test_a_command_line_without_end_is_cut() -> None:
    text = told("--extra-body", "x" * 100_000)
    assert len(text) <= LONGEST + 2
    assert text.endswith(" …")
