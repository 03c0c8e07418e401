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
      share: 40%
      input_tokens: {{distribution: lognormal, mean: 80, stddev: 40, max: 400}}
      output_tokens: {{distribution: uniform, min: 1, max: 3}}
    - {{name: observed, share: 30%, lengths_file: pairs.csv}}
    - name: shared
      share: 30%
      input_tokens: {{distribution: normal, mean: 200, stddev: 15, min: 170, max: 260}}
      output_tokens: 2
      prefixes: {{count: 2, tokens: {PREFIX_TOKENS}}}
      extra_body: {{temperature: 0}}
load: {{concurrency: 4, warmup: 1s, duration: 40s}}
"""


def run(vllm: Vllm, folder: Path, endpoint: str) -> dict[str, Any]:
    (folder / "pairs.csv").write_text("input_tokens,output_tokens\n48,1\n97,2\n190,3\n")
    (folder / "mix.yaml").write_text(SCENARIO)
    _, cores = split_cores()
    with on_cores(cores):
        ended = subprocess.run(
            [str(LOADGEN), "run", "mix.yaml", "--base-url", vllm.base_url, "--model", MODEL, "-o", "run"]
            + ["--endpoint", endpoint, "--metrics-port", "off"],
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
    level = run(vllm, tmp_path, endpoint)
    after = scrape(f"{vllm.base_url}/metrics")
    records = [one for path in (tmp_path / "run/records").glob("*.spool") for one in read_records(path)]
    done = [one for one in records if one.status == OK]
    counts = Counter(one.kind for one in done)
    assert min(counts[kind] for kind in range(3)) > 15, counts
    assert [one for one in done if one.input_tokens != one.input_tokens_requested] == []
    assert [one for one in done if one.output_tokens != one.output_tokens_requested] == []
    assert level["input_tokens_mismatched"] == 0

    hits, queries = (
        after.value(f"vllm:prefix_cache_{name}_total") - before.value(f"vllm:prefix_cache_{name}_total")
        for name in ("hits", "queries")
    )
    # Whole blocks of 32 tokens are cached: the template's own beginning, then three or four blocks of the prefix.
    assert 0.6 * level["intended_prefix_share"] < hits / queries < 1.3 * level["intended_prefix_share"]
