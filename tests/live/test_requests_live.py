"""Tools, structured and whole answers and a second model, as a real vLLM takes and counts them."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.record import OK
from loadgen.spool import read_records
from tests.live.environment import Environment
from tests.live.launch import MODEL, Vllm, running_vllm, split_cores
from tests.live.test_workload_live import run

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]  # the first test also builds the environment

OTHER = f"{MODEL}-other"
# The model's own, which knows no tools.
TEMPLATE = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face' }}{% if tools %}{{ '
' + (tools | tojson) }}{% endif %}{{ '<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
SCENARIO = f"""
workload:
  classes:
    - {{name: chat, share: 25%, input_tokens: 60, output_tokens: 3, extra_body: {{temperature: 0.2}}}}
    - {{name: jobs, share: 25%, input_tokens: 64, output_tokens: 3, model: {OTHER}, stream: false}}
    - name: tools
      share: 25%
      input_tokens: {{distribution: uniform, min: 170, max: 200}}
      output_tokens: 24
      ignore_eos: false
      extra_body:
        tools:
          - type: function
            function: {{name: weather, parameters: {{type: object, properties: {{city: {{type: string, maxLength: 9}}}}, required: [city]}}}}
        tool_choice: required
    - name: extract
      share: 25%
      input_tokens: 60
      output_tokens: 8
      ignore_eos: false
      extra_body: {{structured_outputs: {{choice: ["yes", "no"]}}}}
load: {{concurrency: 4, warmup: 1s, duration: 30s}}
"""


@pytest.fixture
def vllm_with_tools(environment: Environment, tmp_path: Path) -> Iterator[Vllm]:
    (tmp_path / "tools.jinja").write_text(TEMPLATE)
    arguments = ["--served-model-name", MODEL, OTHER, "--chat-template", str(tmp_path / "tools.jinja")]
    arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    core, _ = split_cores()
    with running_vllm(environment, core, tmp_path / "server.log", *arguments) as server:
        yield server


def test_vllm_counts_the_prompts_of_tools_structures_and_models_as_they_were_made(
    vllm_with_tools: Vllm, tmp_path: Path
) -> None:
    level = run(vllm_with_tools, tmp_path, "chat", SCENARIO)
    records = [one for path in (tmp_path / "run/records").glob("*.spool") for one in read_records(path)]
    done = [one for one in records if one.status == OK]
    assert {one.status for one in records} <= {OK, "cancelled", "censored"}, Counter(one.reason for one in records)
    counts = Counter(one.kind for one in done)
    assert min(counts[kind] for kind in range(4)) > 5, counts
    assert [one for one in done if one.input_tokens != one.input_tokens_requested] == []
    assert level["input_tokens_mismatched"] == 0

    chat, jobs, tools, extract = level["classes"]
    assert jobs["n_ttft"] == 0 and jobs["p50_ttft_ms"] is None and jobs["p50_e2el_ms"] > 0
    assert jobs["mean_output_tokens"] == chat["mean_output_tokens"] == 3
    assert all(one["n_ttft"] > 0 for one in (chat, tools, extract))
    # A choice of words ends by itself, within its grammar.
    assert 1 <= extract["mean_output_tokens"] < 8
    called = [one for one in done if one.kind == 2]
    assert all(one.first_visible_ns is not None for one in called)
    summary = json.loads((tmp_path / "run/provenance.json").read_text())
    assert summary["target"]["model"] == MODEL
