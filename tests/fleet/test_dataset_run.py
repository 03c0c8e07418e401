"""Files of requests through the whole of `loadgen run`, against the simulator, which counts every prompt's tokens itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.controller.target import inspect
from loadgen.datasets.plan import provenance_of, surveyed_dataset
from loadgen.datasets.workload import DatasetWorkload
from loadgen.record import OK, RequestRecord
from loadgen.scenario.load import load_scenario
from loadgen.spool import read_records
from loadgen.wire.client import Client
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from tests.command_here import loadgen_here
from tests.measuring import measure
from tests.simulator_process import SimulatorProcess, running_simulator

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "samples" / "datasets"
TRACE = ROOT / "scenarios" / "data" / "support-desk.jsonl"
FAST = ("--step-overhead-ms", "4", "--prefill-time-per-token-ms", "0.005", "--decode-base-ms", "0.5")


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with running_simulator(*FAST) as running:
        yield running


def loadgen(*arguments: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "loadgen", *arguments], capture_output=True, text=True, timeout=90, cwd=ROOT
    )


def run(simulator: SimulatorProcess, out: Path, *options: str, workers: int = 1) -> dict[str, Any]:
    """The only level; every request of it went well, and on a busy machine it may be marked late all the same."""
    ended = loadgen(
        *["run", "--base-url", simulator.url, "--metrics-port", "off", "-o", str(out), "--workers", str(workers)],
        *options,
    )
    assert ended.returncode in (0, 3), ended.stderr + ended.stdout
    (level,) = json.loads((out / "summary.json").read_text())["levels"]
    assert level["requests"] == {"ok": sum(level["requests"].values())}
    return dict(level)


def records_of(out: Path) -> list[RequestRecord]:
    return [record for path in sorted((out / "records").glob("*.spool")) for record in read_records(path)]


@pytest.mark.parametrize(
    ("sample", "format", "rows", "answers"),
    [
        ("sharegpt.json", "sharegpt", 6, {11}),
        ("prompts.jsonl", "jsonl", 5, {24, 11, 8, 40}),
        ("bodies.jsonl", "jsonl", 5, None),
        ("openai-batch.jsonl", "openai-batch", 4, None),
        ("mooncake.jsonl", "mooncake", 6, {12, 8, 16, 10, 9, 20}),
        ("azure.csv", "azure", 5, {44, 19, 55, 16, 30}),
        ("burstgpt.csv", "burstgpt", 4, {18, 50, 22, 31}),
    ],
)
def test_every_format_is_answered_as_it_says(
    sample: str, format: str, rows: int, answers: set[int] | None, simulator: SimulatorProcess, tmp_path: Path
) -> None:
    """What a run does with the file before it starts its fleet, and the requests that the fleet would send."""
    scenario = load_scenario(sets=[f"workload.dataset.path={SAMPLES / sample}", "workload.output_tokens=11", "seed=7"])
    dataset = surveyed_dataset(scenario, tmp_path / "dataset")
    assert dataset is not None
    workload = inspect(scenario, simulator.url, dataset=dataset, tell=print, pause=time.sleep).workload
    assert isinstance(workload, DatasetWorkload)
    told = provenance_of(dataset, workload)
    assert (told["format"], told["rows"], told["order"]) == (format, rows, "shuffled")

    async def send(client: Client) -> list[RequestRecord]:
        exchanges = []
        for k in range(2 * rows):
            planned = workload.build(0, k)
            exchanges.append(
                Exchange(
                    level=0,
                    index=k,
                    user=0,
                    worker=0,
                    endpoint="chat",
                    dispatched_ns=time.monotonic_ns(),
                    input_tokens_requested=planned.input_tokens,
                    output_tokens_requested=planned.output_tokens,
                    output_forced=planned.output_forced,
                )
            )
            await client.send(planned.body, exchanges[-1], f"r{k}")
        return [decode(exchange) for exchange in exchanges]

    records = measure(simulator.url, send)
    assert {record.status for record in records} == {OK}
    if answers is not None:
        assert {record.output_tokens for record in records} == answers
    if format in ("mooncake", "azure", "burstgpt"):
        assert all(record.input_tokens == record.input_tokens_requested for record in records)
    else:
        assert all(record.input_tokens_requested is None for record in records)


@pytest.mark.parametrize(
    ("sample", "format", "rows", "answers"),
    [("bodies.jsonl", "jsonl", 5, None), ("mooncake.jsonl", "mooncake", 6, {12, 8, 16, 10, 9, 20})],
)
def test_a_file_is_gone_through_again_and_again_and_the_level_says_so(
    sample: str, format: str, rows: int, answers: set[int] | None, simulator: SimulatorProcess, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path = shutil.copy(SAMPLES / sample, tmp_path)
    level = run(
        *[simulator, out, "--dataset-path", str(path), "--osl", "11"],
        *["--concurrency", "4", "--warmup", "0.1s", "--duration", "0.8s", "--ramp", "0.1s"],
    )
    told = json.loads((out / "provenance.json").read_text())["dataset"]
    assert (told["format"], told["rows"], told["order"], told["path"]) == (format, rows, "shuffled", path)
    requests = [record for record in records_of(out) if record.status == OK]
    assert level["dataset_passes"] == (1 + max(record.index for record in records_of(out))) / rows > 1
    assert "dataset_repeated" in [warning["rule"] for warning in level["warnings"]]
    if answers is not None:
        assert {record.output_tokens for record in requests} == answers
    if format == "mooncake":
        assert all(record.input_tokens == record.input_tokens_requested for record in requests)
        assert level["input_tokens_mismatched"] == 0
    else:
        assert all(record.input_tokens_requested is None for record in requests)
        assert level["input_tokens_mismatched"] is None
    assert not (out / "dataset").exists()


def test_a_trace_is_replayed_at_its_own_instants_by_two_workers(simulator: SimulatorProcess, tmp_path: Path) -> None:
    out, speed = tmp_path / "out", 8
    rows = [json.loads(line) for line in TRACE.read_text().splitlines()]
    level = run(simulator, out, "--dataset-path", str(TRACE), "--replay-speed", str(speed), workers=2)
    records = sorted(records_of(out), key=lambda record: record.index)
    assert [record.index for record in records] == list(range(len(rows)))
    assert {record.worker for record in records} == {0, 1}
    assert [record.input_tokens for record in records] == [row["input_length"] for row in rows]
    assert [record.output_tokens for record in records] == [row["output_length"] for row in rows]
    scheduled = [record.scheduled_ns for record in records]
    for record, row, at_ns in zip(records, rows, scheduled, strict=True):
        assert at_ns is not None and scheduled[0] is not None
        assert at_ns - scheduled[0] == pytest.approx(row["timestamp"] * 1e6 / speed, abs=1000)
        assert record.dispatched_ns >= at_ns
    assert level["requests"]["ok"] == len(rows) and level["dataset_passes"] == 1.0
    assert json.loads((out / "provenance.json").read_text())["dataset"]["order"] == "file"


def test_a_dataset_is_found_beside_its_scenario_and_again_from_the_run_folder(
    simulator: SimulatorProcess, tmp_path: Path
) -> None:
    folder, out = tmp_path / "mine", tmp_path / "out"
    (folder / "data").mkdir(parents=True)
    shutil.copy(SAMPLES / "prompts.jsonl", folder / "data")
    scenario = folder / "mine.yaml"
    scenario.write_text(
        "workload: {dataset: {path: data/prompts.jsonl}, output_tokens: 4}\n"
        "load: {concurrency: 2, warmup: 0.2s, duration: 1s, ramp: 0.1s}\n"
    )
    run(simulator, out, str(scenario))
    again = loadgen_here("validate", str(out / "scenario.yaml"))
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1] == f"# dataset {folder / 'data' / 'prompts.jsonl'} (jsonl): 5 rows"


def test_a_file_that_is_changed_under_a_run_ends_it_with_what_was_measured(
    simulator: SimulatorProcess, tmp_path: Path
) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    path.write_text("".join(f'{{"prompt": "number {i}"}}\n' for i in range(5000)))
    command = [sys.executable, "-m", "loadgen", "run", "--base-url", simulator.url, "--metrics-port", "off"]
    command += [
        "--dataset-path",
        str(path),
        "--osl",
        "4",
        "--concurrency",
        "2",
        "--warmup",
        "0.1s",
        "--duration",
        "60s",
    ]
    with subprocess.Popen([*command, "-o", str(out)], stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        spool, deadline = out / "records" / "worker-0.spool", time.monotonic() + 60
        while not (spool.exists() and spool.stat().st_size > 2000) and time.monotonic() < deadline:
            time.sleep(0.05)
        path.write_text("not what it was")
        _, said = running.communicate(timeout=60)
    assert running.returncode == 1, said
    assert f"gave up: {path}: The file has changed since it was read." in said
    assert records_of(out)


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_bad_line_is_refused_before_anything_is_started(command: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": 2}\n')
    ended = loadgen_here(command, "--dataset-path", str(path), "--metrics-port", "off")
    assert ended.returncode == 2
    assert ended.stderr == (f"error: {path}:2: prompt is 2, not a text.\nhint: It must be a text that is not empty.\n")


def test_a_row_beyond_max_model_len_is_refused_with_the_arithmetic(simulator: SimulatorProcess, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 50, "output_length": 5}\n' * 3)
    with path.open("a") as file:
        file.write('{"timestamp": 0, "input_length": 8000, "output_length": 400}\n')
    ended = loadgen_here(
        *["run", "--base-url", simulator.url, "--metrics-port", "off"],
        *["--dataset-path", str(path), "-o", str(tmp_path / "out")],
    )
    assert ended.returncode == 2
    assert "trace.jsonl:4: Prompt and answer have 8000 + 400 = 8400 tokens, more than the 8192" in ended.stderr
    assert "--dataset-max-tokens 8192" in ended.stderr


def test_prompts_without_instants_cannot_be_replayed(tmp_path: Path) -> None:
    ended = loadgen_here(
        *["run", "--dataset-path", str(SAMPLES / "prompts.jsonl"), "--replay-speed", "1", "--metrics-port", "off"],
        *["-o", str(tmp_path / "out")],
    )
    assert ended.returncode == 2
    assert "do not all say when they were sent" in ended.stderr


def test_a_replay_needs_a_trace() -> None:
    ended = loadgen_here("validate", "--replay-speed", "1")
    assert ended.returncode == 2
    assert "workload.dataset.path names none" in ended.stderr
