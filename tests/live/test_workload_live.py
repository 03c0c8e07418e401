"""Mixed lengths and shared prefixes, held against what a real vLLM counts and against its prefix cache."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadgen.record import OK
from loadgen.spool import read_records
from tests.live.launch import MODEL, Vllm, on_cores, split_cores
from tests.live.scrape import scrape
from tests.live.sweep import LOADGEN, scrape_idle

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]  # the first test also builds the environment

PREFIX_TOKENS = 128
SCENARIO = f"""
workload:
  classes:
    - name: drawn
      share: 34%
      input_tokens: {{distribution: lognormal, mean: 80, stddev: 40, max: 400}}
      output_tokens: {{distribution: uniform, min: 1, max: 3}}
    - {{name: observed, share: 33%, lengths_file: pairs.csv}}
    - name: shared
      share: 33%
      input_tokens: {{distribution: normal, mean: 200, stddev: 15, min: 170, max: 260}}
      output_tokens: 2
      prefixes: {{count: 2, tokens: {PREFIX_TOKENS}}}
      extra_body: {{temperature: 0}}
load: {{concurrency: 4, warmup: 1s, duration: 60s}}
"""
FEWEST_COMPARED = 200
"""Prompts of each class; runs with other prompts follow until there are as many."""
MOST_RUNS = 12


def run(vllm: Vllm, folder: Path, endpoint: str, scenario: str = SCENARIO, *options: str) -> dict[str, Any]:
    (folder / "pairs.csv").write_text("input_tokens,output_tokens\n48,1\n97,2\n190,3\n")
    (folder / "mix.yaml").write_text(scenario)
    _, cores = split_cores()
    with on_cores(cores):
        ended = subprocess.run(
            [str(LOADGEN), "run", "mix.yaml", "--base-url", vllm.base_url, "--model", MODEL, "-o", "run"]
            + ["--endpoint", endpoint, "--metrics-port", "off", *options],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=folder,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (level,) = json.loads((folder / "run/summary.json").read_text())["levels"]
    return dict(level)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_vllm_counts_every_prompt_as_it_was_made_and_finds_the_shared_prefixes(
    vllm: Vllm, tmp_path: Path, endpoint: str
) -> None:
    before = scrape_idle(vllm)
    counts: Counter[int] = Counter()
    asked = intended = 0.0
    for number in range(MOST_RUNS):
        folder = tmp_path / str(number)
        folder.mkdir()
        level = run(vllm, folder, endpoint, SCENARIO, "--prompt-set", str(number))
        records = [one for path in (folder / "run/records").glob("*.spool") for one in read_records(path)]
        done = [one for one in records if one.status == OK]
        assert [one for one in done if one.input_tokens != one.input_tokens_requested] == []
        assert [one for one in done if one.output_tokens != one.output_tokens_requested] == []
        assert level["input_tokens_mismatched"] == 0
        counts.update(one.kind for one in done)
        tokens = sum(one.input_tokens or 0 for one in done)
        asked, intended = asked + tokens, intended + level["intended_prefix_share"] * tokens
        if min(counts[kind] for kind in range(3)) >= FEWEST_COMPARED:
            break
    after = scrape(f"{vllm.base_url}/metrics")
    assert min(counts[kind] for kind in range(3)) >= FEWEST_COMPARED, counts

    hits, queries = (
        after.value(f"vllm:prefix_cache_{name}_total") - before.value(f"vllm:prefix_cache_{name}_total")
        for name in ("hits", "queries")
    )
    # Whole blocks of 32 tokens are cached: the template's own beginning, then three or four blocks of the prefix.
    assert 0.6 * intended / asked < hits / queries < 1.3 * intended / asked


CONVERSATIONS = """
workload:
  turns: 3
  shared_prefix_tokens: 70
  input_tokens: {distribution: uniform, min: 110, max: 160}
  turn_input_tokens: {distribution: uniform, min: 30, max: 60}
  output_tokens: {distribution: uniform, min: 4, max: 12}
load: {concurrency: 3, warmup: 6s, duration: 40s}
"""


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("answers", ["server", "synthetic"])
def test_vllm_counts_conversations_as_planned_and_finds_each_turn_in_the_next(
    vllm: Vllm, tmp_path: Path, endpoint: str, answers: str
) -> None:
    before = scrape_idle(vllm)
    level = run(vllm, tmp_path, endpoint, CONVERSATIONS, "--carried-answers", answers)
    after = scrape(f"{vllm.base_url}/metrics")
    records = [one for path in (tmp_path / "run/records").glob("*.spool") for one in read_records(path)]
    done = [one for one in records if one.status == OK]
    assert min(Counter(one.turn for one in done)[turn] for turn in (1, 2, 3)) > 5
    exact = [one for one in done if answers == "synthetic" or one.turn == 1]
    assert [one for one in exact if one.input_tokens != one.input_tokens_requested] == []
    turns = level["turns"]
    assert level["input_tokens_mismatched"] == 0 == turns["broken_conversations"]
    if answers == "server":
        # What the model made past its own end is special tokens, which have no text, and other spellings.
        assert turns["carried_answers"] > 10 and abs(turns["mean_recount_tokens"]) < 4
    else:
        assert turns["carried_answers"] == 0
    hits, queries = (
        after.value(f"vllm:prefix_cache_{name}_total") - before.value(f"vllm:prefix_cache_{name}_total")
        for name in ("hits", "queries")
    )
    # Whole blocks of 32 tokens are cached, so up to 31 tokens of each turn are not; an answer that is spelt otherwise is not.
    assert 0.6 * level["intended_prefix_share"] < hits / queries < 1.1 * level["intended_prefix_share"]
