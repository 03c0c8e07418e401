"""Prompts of an exact length, made by asking vLLM and with the model's own tokenizer, held against vLLM's count."""

import json
from urllib.request import Request, urlopen

import pytest

from loadgen.prompts.pool import make_recipe
from loadgen.prompts.tokenizers import LocalCounter, ServerCounter
from loadgen.wire.client import PATHS
from loadgen.wire.exchange import Endpoint
from tests.live.environment import Environment
from tests.live.launch import MODEL, Vllm

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]  # the first test also builds the environment


def prompt_tokens(vllm: Vllm, endpoint: Endpoint, prompt: str) -> int:
    """`usage.prompt_tokens` of a real request for one token."""
    asked: object = [{"role": "user", "content": prompt}] if endpoint == "chat" else prompt
    key = "messages" if endpoint == "chat" else "prompt"
    body = json.dumps({"model": MODEL, "max_tokens": 1, key: asked}).encode()
    with urlopen(Request(vllm.base_url + PATHS[endpoint], body, {"Content-Type": "application/json"})) as answer:
        return int(json.load(answer)["usage"]["prompt_tokens"])


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("input_tokens", [64, 1500])
def test_prompts_made_by_asking_vllm_have_the_length_that_vllm_counts(
    vllm: Vllm, endpoint: Endpoint, input_tokens: int
) -> None:
    counter = ServerCounter(vllm.base_url, model=MODEL)
    recipe = make_recipe(counter, endpoint=endpoint, seed=4711)
    assert {prompt_tokens(vllm, endpoint, recipe.build(0, k, input_tokens)) for k in range(3)} == {input_tokens}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_prompts_made_with_the_models_tokenizer_have_the_length_that_vllm_counts(
    vllm: Vllm, environment: Environment, endpoint: Endpoint
) -> None:
    recipe = make_recipe(LocalCounter(environment.model_dir), endpoint=endpoint, seed=4711)
    assert {prompt_tokens(vllm, endpoint, recipe.build(0, k, 200)) for k in range(3)} == {200}


def test_the_models_tokenizer_and_vllm_count_alike(vllm: Vllm, environment: Environment) -> None:
    """Text that no recipe would make: special tokens spelt out, other scripts, white space, nothing."""
    asked, local = ServerCounter(vllm.base_url, model=MODEL), LocalCounter(environment.model_dir)
    for text in ("", " ", "Hello,  world\n\n", "<|im_start|>user", "中文 🦔", "naïve café", "1234567890" * 9):
        assert (asked.count_text(text), asked.count_chat(text)) == (local.count_text(text), local.count_chat(text)), (
            text
        )
