"""What people see when a scenario is refused, whole."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.cli import app

SCENARIO = """\
name: mine
target:
  server: sim
  base_url: http://127.0.0.1:8000
  api_key: sk-0123456789
load:
  concurency: [1, 2]
  duration: 0s
slo: {ttft_p95: 500}
"""

REFUSED = """\
error: mine.yaml:5: target.api_key looks like a secret, and secrets do not belong in a scenario, which is written to \
the run folder.
hint: Set the environment variable OPENAI_API_KEY; target.api_key_env can name another one.
error: mine.yaml:7: load.concurency is not a key of a scenario.
hint: Did you mean load.concurrency?
error: mine.yaml:3, mine.yaml:4: Both target.server and target.base_url are given: a run starts a server or uses one \
that is there.
hint: Keep one: target.server for a server that the run starts, target.base_url for one that is there.
error: --isl: workload.input_tokens is "many". It must be a whole number, or a distribution such as {distribution: \
lognormal, mean: 512, stddev: 128, min: 16, max: 4096}.
hint: Write for example --isl 512. Prompt tokens of each request, as the server counts them, chat template included: a \
number, or a distribution.
error: mine.yaml:8: load.duration is "0s". It must be longer than zero.
hint: Length of the measuring window of a level; null is as long as 200 requests and 3 × the P95 of E2E latency take, at least 15s, and with stages or rate_file as long as those.
error: mine.yaml:9: slo.ttft_p95 is 500. A limit needs its unit, since tools disagree about it: write 500ms or 0.5s.
hint: Highest P95 of the time to first token.
"""


def test_every_problem_is_told_with_its_place_and_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(SCENARIO)
    result = CliRunner().invoke(app, ["validate", "mine.yaml", "--isl", "many"])
    assert result.stderr == REFUSED
    assert result.exit_code == 2
