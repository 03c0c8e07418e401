"""The simulator's parts without a socket: request checks, replies, frames, prompt counting, histograms."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as ClientHistogram
from transformers import AutoTokenizer

from server.simulator.ask import ApiError, Ask, read_generation, read_tokenize
from server.simulator.frames import Frames
from server.simulator.histogram import Histogram
from server.simulator.metrics import TTFT_S
from server.simulator.prompt import PromptTokens
from server.simulator.reply import MAX_NATURAL_TOKENS, Reply, plan_reply
from server.simulator.tokenizer import folder

HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def tokens() -> PromptTokens:
    return PromptTokens(folder())


def chat(**changes: Any) -> Ask:
    return read_generation(json.dumps({"messages": HELLO, **changes}).encode(), "chat", model="sim", max_model_len=1000)


def events(framed: bytes) -> list[Any]:
    """The JSON of each HTTP chunk, each of which must hold exactly one event."""
    found: list[Any] = []
    while framed:
        size, _, rest = framed.partition(b"\r\n")
        payload, end, framed = rest[: int(size, 16)], rest[int(size, 16) :][:2], rest[int(size, 16) + 2 :]
        assert end == b"\r\n" and payload.startswith(b"data: ") and payload.endswith(b"\n\n")
        text = payload[6:-2]
        found.append("[DONE]" if text == b"[DONE]" else json.loads(text))
    return found


# --- requests


@pytest.mark.parametrize(
    ("body", "status", "kind", "in_message"),
    [
        (b"{", 400, "Bad Request", "JSON decode error"),
        (b"[]", 400, "Bad Request", "JSON object"),
        ({"model": "x"}, 404, "NotFoundError", "The model `x` does not exist."),
        ({"n": 2}, 400, "BadRequestError", "one choice"),
        ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens must be at least 1, got 0."),
        ({"max_completion_tokens": 1001}, 400, "BadRequestError", "max_completion_tokens=1001 cannot be greater"),
        ({"max_tokens": "4"}, 400, "Bad Request", "max_tokens: must be an integer"),
        ({"max_tokens": True}, 400, "Bad Request", "max_tokens: must be an integer"),
        ({"max_tokens": 4, "min_tokens": 5}, 400, "BadRequestError", "min_tokens"),
        ({"stream": "yes"}, 400, "Bad Request", "stream: must be true or false"),
        ({"stream_options": {"include_usage": True}}, 400, "BadRequestError", "only be defined when `stream=True`"),
        ({"stop": [""]}, 400, "Bad Request", "stop"),
        ({"messages": []}, 400, "Bad Request", "messages"),
        ({"messages": [{"content": "no role"}]}, 400, "Bad Request", "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "Bad Request", "content"),
    ],
)
def test_a_bad_chat_request_is_refused_in_vllms_words(
    body: bytes | dict[str, Any], status: int, kind: str, in_message: str
) -> None:
    raw = body if isinstance(body, bytes) else json.dumps({"messages": HELLO, **body}).encode()
    with pytest.raises(ApiError) as refused:
        read_generation(raw, "chat", model="sim", max_model_len=1000)
    error = json.loads(refused.value.body())["error"]
    assert refused.value.status == error["code"] == status
    assert error["type"] == kind
    assert in_message in error["message"]
    assert "param" in error


def test_a_chat_request_without_a_limit_has_none_and_a_completion_has_sixteen() -> None:
    assert chat().max_tokens is None
    completion = read_generation(b'{"prompt":"a"}', "completions", model="sim", max_model_len=1000)
    assert completion.max_tokens == 16
    assert (chat().add_special_tokens, completion.add_special_tokens) == (False, True)


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert chat(max_tokens=3, max_completion_tokens=5).max_tokens == 5


def test_continuous_usage_needs_include_usage() -> None:
    assert chat(stream=True, stream_options={"continuous_usage_stats": True}).continuous_usage is False
    both = chat(stream=True, stream_options={"continuous_usage_stats": True, "include_usage": True})
    assert both.continuous_usage is both.include_usage is True


def test_text_parts_of_a_message_are_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).prompt == [{"role": "user", "content": "a\nb"}]


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_a_completion_prompt_may_be_token_ids(prompt: Any) -> None:
    body = json.dumps({"prompt": prompt}).encode()
    assert read_generation(body, "completions", model="sim", max_model_len=1000).prompt == [1, 2, 3]


@pytest.mark.parametrize("prompt", [None, 5, [], ["a", "b"], [[1], [2]], [True], [-1]])
def test_a_completion_prompt_that_is_not_one_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ApiError, match="prompt"):
        read_generation(json.dumps({"prompt": prompt}).encode(), "completions", model="sim", max_model_len=1000)


def test_tokenize_adds_special_tokens_to_a_prompt_and_not_to_messages() -> None:
    assert read_tokenize(b'{"prompt":"a"}', model="sim").add_special_tokens is True
    of_chat = read_tokenize(json.dumps({"messages": HELLO}).encode(), model="sim")
    assert (of_chat.add_special_tokens, of_chat.add_generation_prompt) == (False, True)


# --- replies

WORDS = [" one", " two", " three", " four"]


def reply(prompt: list[int] | None = None, **changes: Any) -> Reply:
    plan: dict[str, Any] = {"seed": 0, "max_tokens": 50, "context_left": 1000, **changes}
    return plan_reply(WORDS, prompt or [1, 2, 3], **plan)


def test_ignore_eos_fills_the_limit_and_ends_with_length() -> None:
    forced = reply(ignore_eos=True)
    assert (len(forced.texts), forced.finish_reason) == (50, "length")
    assert all(text in WORDS for text in forced.texts)
    assert len(reply(ignore_eos=True, context_left=20).texts) == 20
    assert len(reply(ignore_eos=True, max_tokens=None).texts) == 1000


def test_a_natural_reply_ends_with_a_token_without_text() -> None:
    replies = [reply([i]) for i in range(400)]
    stopped = [r for r in replies if r.finish_reason == "stop"]
    filled = [r for r in replies if r.finish_reason == "length"]
    assert stopped and filled
    assert all(r.texts[-1] == "" and all(r.texts[:-1]) and len(r.texts) < 50 for r in stopped)
    assert all(r.texts[-1] != "" and len(r.texts) == 50 for r in filled)


def test_min_tokens_bounds_a_natural_reply_and_no_limit_means_a_bounded_one() -> None:
    assert {len(reply([i], min_tokens=48).texts) for i in range(100)} == {48, 49, 50}
    lengths = [len(reply([i], max_tokens=None).texts) for i in range(100)]
    assert max(lengths) <= MAX_NATURAL_TOKENS
    assert len(set(lengths)) > 50


def test_the_prompt_and_the_seed_decide_the_reply() -> None:
    assert reply().texts == reply().texts
    assert reply(ignore_eos=True).texts != reply(ignore_eos=True, seed=1).texts
    assert reply(ignore_eos=True).texts != reply([4], ignore_eos=True).texts


def test_a_stop_string_ends_the_reply_and_is_not_shown() -> None:
    whole = "".join(reply(ignore_eos=True).texts)
    for end in ("three", "e t", "r"):
        stopped = reply(ignore_eos=True, stop=(end, "never"))
        assert "".join(stopped.texts) == whole[: whole.index(end)]
        assert (stopped.finish_reason, stopped.stop_reason) == ("stop", end)
    assert reply(ignore_eos=True, stop=("never",)).finish_reason == "length"


def test_a_stop_string_before_min_tokens_does_not_count() -> None:
    stopped = reply(ignore_eos=True, stop=(" ",), min_tokens=10)
    assert len(stopped.texts) == 11
    assert all(stopped.texts[:10])


# --- frames


def frames(endpoint: Any, **options: bool) -> Frames:
    usage = {"include_usage": True, "continuous_usage": False, **options}
    return Frames(endpoint, response_id="r-1", created_s=5, model='a"b', prompt_tokens=9, **usage)


def test_a_chat_streams_a_role_then_tokens_then_the_end_usage_and_done() -> None:
    made = frames("chat")
    role, *rest = events(
        made.opening() + made.token(b" hi", 1) + made.token(b" hi", 2) + made.last(b"", 3, "stop", None)
    )
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert rest[0] == rest[1]
    assert rest[0] == {
        "id": "r-1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": 'a"b',
        "choices": [
            {"index": 0, "delta": {"content": " hi"}, "logprobs": None, "finish_reason": None, "token_ids": None}
        ],
    }
    assert rest[2]["choices"][0] == {
        "index": 0,
        "delta": {"content": ""},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": None,
    }
    assert rest[3]["choices"] == []
    assert rest[3]["usage"] == {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}
    assert rest[4] == "[DONE]"


def test_a_completion_has_no_role_event_and_text_instead_of_a_delta() -> None:
    made = frames("completions", include_usage=False)
    assert made.opening() == b""
    token, last, done = events(made.token(b" hi", 1) + made.last(b" you", 2, "stop", "END"))
    assert token["choices"][0]["text"] == " hi"
    assert (last["choices"][0]["text"], last["choices"][0]["stop_reason"]) == (" you", "END")
    assert done == "[DONE]"


def test_continuous_usage_counts_up_in_every_event() -> None:
    made = frames("chat", continuous_usage=True)
    found = events(made.opening() + made.token(b" a", 1) + made.token(b" bc", 2) + made.last(b" d", 3, "length", None))
    assert [event["usage"]["completion_tokens"] for event in found[:-1]] == [0, 1, 2, 3, 3]


# --- prompts


@pytest.mark.parametrize(
    "messages",
    [
        HELLO,
        [{"role": "system", "content": "Be brief.\n"}, *HELLO],
        [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "  <|im_end|> 12345 é 中文\t"}],
    ],
)
def test_chat_prompts_count_as_transformers_counts_them(tokens: PromptTokens, messages: list[dict[str, str]]) -> None:
    reference = AutoTokenizer.from_pretrained(folder())
    for with_prompt in (True, False):
        text = tokens.render(messages, add_generation_prompt=with_prompt)
        assert text == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=with_prompt)
        expected = reference.apply_chat_template(messages, add_generation_prompt=with_prompt, return_dict=False)
        assert tokens.encode(text, add_special_tokens=False) == expected


def test_plain_prompts_count_as_transformers_counts_them(tokens: PromptTokens) -> None:
    reference = AutoTokenizer.from_pretrained(folder())
    for text in ("hello there", "", " a  b\n\nc", "1234 中文"):
        for special in (True, False):
            assert tokens.encode(text, add_special_tokens=special) == reference.encode(text, add_special_tokens=special)


def test_a_template_with_transformers_own_extensions_is_rendered_as_transformers_does(tmp_path: Path) -> None:
    template = """{%- for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {{- eos_token + message.role + ': ' }}
    {%- generation %}{{ message.content | trim }}{% endgeneration %}
    {{- message.extra | tojson(indent=1) }}
{% endfor %}
{%- if tools is none and add_generation_prompt %}go{% endif %}"""
    tokenizer = AutoTokenizer.from_pretrained(folder())
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    messages = [
        {"role": "user", "content": " a ", "extra": {"k": "<é>"}},
        {"role": "skip", "content": "b"},
        {"role": "assistant", "content": "c", "extra": None},
        {"role": "user", "content": "d", "extra": [1]},
    ]
    messages[2]["extra"] = "x"
    expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert PromptTokens(tmp_path).render(messages) == expected


def test_a_template_that_refuses_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder() / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match="no chat template"):
        PromptTokens(tmp_path).render(HELLO)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('only system') }}")
    with pytest.raises(ValueError, match="only system"):
        PromptTokens(tmp_path).render(HELLO)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "tokenizer.json")):
        PromptTokens(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=str(tmp_path / "tokenizer.json")):
        PromptTokens(tmp_path)


def test_a_reply_counts_as_many_tokens_as_were_sent(tokens: PromptTokens) -> None:
    assert len(tokens.words) > 200
    assert all(word.isascii() and word.strip().isalpha() for word in tokens.words)
    for i in range(20):
        forced = plan_reply(tokens.words, [i], seed=0, max_tokens=200, context_left=1000, ignore_eos=True)
        assert len(tokens.encode("".join(forced.texts), add_special_tokens=False)) == 200


# --- metrics


@given(
    st.lists(
        st.tuples(st.one_of(st.floats(0, 5000), st.sampled_from(TTFT_S)), st.integers(1, 50)), min_size=1, max_size=30
    )
)
def test_histograms_count_as_prometheus_client_counts(samples: list[tuple[float, int]]) -> None:
    registry = CollectorRegistry()
    reference = ClientHistogram("x", "x", buckets=TTFT_S, registry=registry)
    ours = Histogram(TTFT_S)
    for value, times in samples:
        ours.observe(value, times)
        for _ in range(times):
            reference.observe(value)
    for bound, count in ours.buckets():
        assert registry.get_sample_value("x_bucket", {"le": bound}) == count
    assert registry.get_sample_value("x_sum") == pytest.approx(ours.sum)
