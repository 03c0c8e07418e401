"""The short ones of scenarios/, as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.busy_machine import measured, sound

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
SHORT_S = 30


def told_s(path: Path) -> float:
    """How long a scenario says that it takes."""
    told = re.search(r"^# Time: about ([\d.]+) (s|min)$", path.read_text(encoding="utf-8"), re.M)
    assert told, f"{path.name} does not say how long it takes, such as `# Time: about 70 s`"
    return float(told[1]) * {"s": 1, "min": 60}[told[2]]


@pytest.mark.parametrize(
    "path", [path for path in sorted(SCENARIOS.glob("*.yaml")) if told_s(path) <= SHORT_S], ids=lambda path: path.stem
)
def test_a_short_scenario_runs_as_it_stands_and_takes_about_as_long_as_it_says(path: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "loadgen", "run", str(path), "-o", "out", "--metrics-port", "off"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    took_s = time.monotonic() - began
    assert measured(ended), ended.stderr
    assert 0.5 * told_s(path) < took_s < 3 * told_s(path) + 20  # a busy machine starts programs slowly
    levels = json.loads((tmp_path / "out/summary.json").read_text())["levels"]
    assert all(sound(level) and level["requests"] == {"ok": level["requests"]["ok"]} for level in levels)
    if path.stem == "smoke":  # what good looks like, by its own words
        throughput = [level["output_throughput"] for level in levels]
        assert len(throughput) == 3 and throughput == sorted(throughput)
