"""docs/simulator.md says what the simulator has: its faults, models, GPUs and metrics, and no others."""

import json
import math
import re
from pathlib import Path

import pytest

from bench.fidelity import BEGIN, CHART, END, FITTED, RESULTS, SHAPES, fit, section
from server.model_config import KNOWN_CONFIGS
from server.roofline import GPUS
from server.simulator.engine import Engine
from server.simulator.faults import DEFAULTS
from server.simulator.fit import STEP_TIMES
from server.simulator.metrics import EngineMetrics
from server.simulator.settings import SimulatorSettings

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_every_fault_is_in_the_table_with_its_values_and_defaults() -> None:
    table = TEXT[TEXT.index("## Faults on demand") : TEXT.index("## Its metrics")]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| `")]
    told = {kind: values for kinds, values, _ in rows for kind in re.findall(r"`(\w+)`", kinds)}
    assert list(told) == list(DEFAULTS)
    for kind, values in DEFAULTS.items():
        found = dict(re.findall(r"`(\w+)`(?: after the start)? \(([^)]*)\)", told[kind]))
        assert list(found) == list(values), kind
        for name, default in values.items():
            assert found[name] == (f"{default:g}" if math.isfinite(default) else found[name]), (kind, name)


@pytest.mark.parametrize("name", [*KNOWN_CONFIGS, *GPUS])
def test_every_known_model_and_gpu_is_named(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_every_metric_is_named_or_belongs_to_a_histogram_that_is() -> None:
    settings = SimulatorSettings(num_speculative_tokens=1)
    told = TEXT[TEXT.index("## Its metrics") : TEXT.index("## Against a real vLLM")]
    for series in EngineMetrics(settings, Engine(settings)).series():
        if series.kind == "histogram" and series.name.startswith("vllm:"):
            continue
        name = series.name.removeprefix("vllm:") + ("_total" if series.kind == "counter" else "")
        shown = re.sub(r"^spec_decode_num(?!_drafts)", "…", name)
        assert f"`{shown}`" in told or series.name in told, name


def test_the_comparison_with_vllm_is_that_of_the_results() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert TEXT[TEXT.index(BEGIN) : TEXT.index(END) + len(END)] == section(results)
    assert CHART.read_text(encoding="utf-8").startswith("<svg")
    levels = [(row["input_tokens"], row["output_tokens"], row["concurrency"]) for row in results["vllm"]]
    assert levels == [(i, o, c) for i, o, concurrencies in SHAPES for c in concurrencies]
    assert set(FITTED) < set(levels)
    again = fit(results["vllm"], max(c for _, _, c in FITTED))
    assert [getattr(again, name) for name in STEP_TIMES] == pytest.approx(
        [results["fitted"][name] for name in STEP_TIMES], abs=0.001
    )
