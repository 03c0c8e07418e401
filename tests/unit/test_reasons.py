"""Reasons: equal errors give equal strings."""

import pytest

from loadgen.wire.reasons import LONGEST, answered_message, http_reason, plain, printable, spoken_error


@pytest.mark.parametrize(
    "text",
    [
        "request chatcmpl-9f2c1d77aa {} failed",
        "request cmpl-0b6e8a1e-3f2f-4a51-9d75-1d2f6a8f0c33-0 {} failed",
        "request req_011CSHoEeqs5C35K2UUqR7Fy {} failed",
        "request 0b6e8a1e-3f2f-4a51-9d75-1d2f6a8f0c33 {} failed",
        "request 4bf92f3577b34da6a3ce929d0e0e4736 {} failed",
        "request 0x7f3a2c001d30 {} failed",
        "request 1754300000123 {} failed",
        "request 01J8ZQ4K3N7W9V2X5Y6B8C0D1E {} failed",
    ],
)
def test_ids_are_taken_out(text: str) -> None:
    assert plain(text.format("has")) == "request <id> has failed"


@pytest.mark.parametrize(
    "time",
    ["2025-08-04T09:33:20.123Z", "2025-08-04 09:33:20,123", "2025-08-04", "09:33:20", "1.234s", "20 ms", "7 seconds"],
)
def test_times_are_taken_out(time: str) -> None:
    assert plain(f"retry after {time}, please") == "retry after <time>, please"


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 131072 tokens.",
        "The model `meta-llama/Llama-3.1-8B-Instruct` does not exist.",
        "max_num_batched_tokens (2048) is smaller than max_model_len (32768)",
        "bfloat16 is not supported on compute capability 7.5",
        "run request_rate and task_type unchanged, error 500",
        "default decade facade",
    ],
)
def test_words_names_and_settings_stay(text: str) -> None:
    assert plain(text) == text


def test_a_reason_is_one_short_line() -> None:
    assert plain("  a\n\n b\t c ") == "a b c"
    assert len(plain("word " * 1_000_000)) == LONGEST


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"no","type":"x","code":400}}', "no"),
        (b'{"error":"no"}', "no"),
        (b'{"object":"error","message":"no","code":400}', "no"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"detail":[{"loc":["body"],"msg":"field required"}]}', "field required"),
        (b'{"error":{"error":{"message":"deep"}}}', "deep"),
        (b'{"errors":[{"message":"one"},{"message":"two"}]}', "one"),
        (b'{"type":"about:blank","title":"Too many requests","status":429}', "Too many requests"),
        (b'{"code":500,"details":"it died"}', "it died"),
        (b'{"error":"half \\ud83d"}', "half \ufffd"),
        (b'{"error":"no","logprob":NaN}', "no"),
        (b'"no"', "no"),
        (b"<html><head><title>502 Bad\nGateway</title></head><body>x</body></html>", "502 Bad Gateway"),
        (b"upstream connect error", "upstream connect error"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
        (b"{}", ""),
        (b"[]", ""),
        (b"null", ""),
        (b"5", ""),
        (b'{"error":{"message":{"a":1}}}', ""),
    ],
)
def test_the_servers_message_is_found(body: bytes, message: str) -> None:
    assert answered_message(body) == message


def test_a_code_without_a_message_is_named() -> None:
    assert http_reason(503, b"") == "the server answered 503 (Service Unavailable) without a message"
    assert http_reason(599, b"{}") == "the server answered 599 (not a code of the standard) without a message"


def test_what_no_terminal_should_be_given_is_replaced() -> None:
    assert (
        printable("bell \x07 escape \x1b[31m half \ud83d back \u202e")
        == "bell \ufffd escape \ufffd[31m half \ufffd back \ufffd"
    )
    assert plain("\x1b[2J中文 é") == "\ufffd[2J中文 é"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"error: engine died", "engine died"),
        (b"Error", "an error event without a message"),
        (b"[ERROR] engine died", "engine died"),
        (b'"Error: engine died"', "engine died"),
        (b'error: {"code":400,"message":"too long"}', "400: too long"),
        (b'{"error":"engine died"}', "engine died"),
        (b'{"type":"error","code":"400","message":"no"}', "400: no"),
        (b'{"choices":[],"error":null}', None),
        (b"errors are common", None),
        (b"no error", None),
        (b"[1]", None),
        (b"", None),
    ],
)
def test_an_error_in_words_is_told_from_other_words(text: bytes, reason: str | None) -> None:
    assert spoken_error(text) == reason
