"""Baselines: the script in the target's Python, what becomes of its figures, and each way in which it can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadgen.baseline.figures import result
from loadgen.baseline.files import read_result
from loadgen.baseline.launch import check_python, run_script
from loadgen.baseline.text import condition_lines, difference_lines
from loadgen.cli import app
from loadgen.errors import LoadgenError, UsageError

LIBRARIES = Path(__file__).parents[1] / "samples/baseline_libraries"
ASKED: dict[str, Any] = {
    "engine": {"model": "m", "max_model_len": 40, "max_num_seqs": 4, "enable_prefix_caching": False},
    "input_tokens": 20,
    "output_tokens": 11,
    "batch": 4,
    "passes": 3,
    "seed": 1,
}


def env(how: str) -> dict[str, str]:
    return {"PYTHONPATH": str(LIBRARIES), "FAKE_VLLM": how}


def run_vllm(how: str, log: Path, timeout_s: float = 60) -> Any:
    return run_script("vllm_generate", ASKED, python=sys.executable, log=log, timeout_s=timeout_s, env=env(how))


def made(batch: int = 1, output_tokens: int = 11, *, engine: str = "transformers", **effective: Any) -> dict[str, Any]:
    """A prompt of 20 tokens takes 0.1 s, each further token 10 ms; the warm-up is a hundred times slower."""
    total_s = 0.1 + 0.01 * (output_tokens - 1)
    one = {"output_tokens": batch * output_tokens, "prefill_s": 0.1, "total_s": total_s}
    slow = {**one, "prefill_s": 10.0, "total_s": 100 * total_s}
    asked = {"model": "m", "input_tokens": 20, "output_tokens": output_tokens, "batch": batch, "warmup": 1, "seed": 0}
    loaded = {
        "load_s": 1.0,
        "versions": {engine: "1"},
        "effective": {"dtype": "bfloat16", "device": "cpu", **effective},
    }
    return result(engine, asked, loaded, [slow, one, one], files=None, host={"cpu": "c", "cores": 2})


def median(of: dict[str, Any], name: str) -> float:
    return float(of["figures"][name]["median"])


def test_one_request_is_called_single_stream_and_its_prefill_stands_apart() -> None:
    one = made()
    assert one["speed_of"] == "single-stream"
    assert median(one, "ttft_ms") == pytest.approx(100)
    assert median(one, "prefill_tok_s") == pytest.approx(200)
    assert median(one, "tpot_ms") == pytest.approx(10)
    assert median(one, "decode_tok_s_per_request") == median(one, "decode_tok_s") == pytest.approx(100)
    assert median(one, "output_tok_s") == pytest.approx(11 / 0.2)
    assert one["conditions"]["passes"] == 2 and one["conditions"]["warmup_passes"] == 1


def test_a_batch_is_called_an_aggregate_and_says_what_each_request_gets() -> None:
    batch = made(16)
    assert batch["speed_of"] == "aggregate"
    assert median(batch, "decode_tok_s_per_request") == pytest.approx(100)
    assert median(batch, "decode_tok_s") == pytest.approx(1600)
    assert median(batch, "prefill_tok_s") == pytest.approx(3200)


def test_a_single_token_tells_nothing_of_decoding() -> None:
    one = made(output_tokens=1)
    assert one["figures"]["decode_tok_s"] is None and one["figures"]["tpot_ms"] is None
    assert any("one token is all" in line for line in condition_lines(one))


def test_a_prefill_that_took_longer_than_the_whole_leaves_decoding_unknown() -> None:
    asked = {"model": "m", "input_tokens": 20, "output_tokens": 4, "batch": 2, "warmup": 0, "seed": 0}
    loaded = {"load_s": 1.0, "versions": {"vllm": "1"}, "effective": {}}
    passes = [
        {"output_tokens": 8, "prefill_s": 1.0, "total_s": 0.9},
        {"output_tokens": 8, "prefill_s": 1, "total_s": 2},
    ]
    noisy = result("vllm-offline", asked, loaded, passes, files=None, host={"cpu": None, "cores": 2})
    assert noisy["figures"]["decode_tok_s"] is None
    assert noisy["figures"]["output_tok_s"]["high"] == pytest.approx(8 / 0.9)
    assert any("ask for more --output-tokens" in line for line in condition_lines(noisy))


def test_quantized_weights_are_told_by_the_engine_or_by_the_files() -> None:
    assert made(quantization="awq")["conditions"]["precision"] == "bfloat16, weights awq"
    asked = {"model": "m", "input_tokens": 2, "output_tokens": 1, "batch": 1, "warmup": 0, "seed": 0}
    loaded = {"load_s": 1.0, "versions": {}, "effective": {"dtype": "float16", "kv_cache_dtype": "fp8"}}
    one = [{"output_tokens": 1, "prefill_s": 1.0, "total_s": 1.0}]
    told = result("vllm-offline", asked, loaded, one, files={"quantization": "gptq"}, host={})
    assert told["conditions"]["precision"] == "float16, weights gptq, KV cache fp8"


def test_fewer_tokens_than_asked_for_are_refused() -> None:
    asked = {"model": "m", "input_tokens": 2, "output_tokens": 3, "batch": 2, "warmup": 0, "seed": 0}
    one = [{"output_tokens": 5, "prefill_s": 1.0, "total_s": 1.0}]
    with pytest.raises(LoadgenError, match="made 5 tokens where 2 x 3 were asked for"):
        result("transformers", asked, {"load_s": 1.0, "versions": {}, "effective": {}}, one, files=None, host={})


def test_the_script_measures_every_pass_and_tells_what_it_ran_with(tmp_path: Path) -> None:
    told = run_vllm("ok", tmp_path / "log")
    assert told.loaded["versions"]["vllm"] == "9.9.fake"
    effective = told.loaded["effective"]
    assert (effective["dtype"], effective["max_num_seqs"], effective["chunked_prefill"]) == ("bfloat16", 4, None)
    assert [one["output_tokens"] for one in told.passes] == [44, 44, 44]
    for one in told.passes:
        assert one["prefill_s"] >= 0.002 and 0.012 <= one["total_s"] < 5


def test_transformers_is_timed_from_the_first_step_on(tmp_path: Path) -> None:
    asked = {**ASKED, "model": "m", "dtype": "auto", "device": "auto", "attention": None, "batch": 1, "passes": 2}
    variables = {"PYTHONPATH": str(LIBRARIES)}
    log = tmp_path / "log"
    told = run_script("transformers_generate", asked, python=sys.executable, log=log, timeout_s=60, env=variables)
    effective = told.loaded["effective"]
    assert (effective["dtype"], effective["quantization"], effective["threads"]) == ("float16", "gptq", 3)
    assert [one["output_tokens"] for one in told.passes] == [11, 11]
    for one in told.passes:
        assert one["prefill_s"] >= 0.03 and one["total_s"] - one["prefill_s"] >= 0.02


def test_a_cause_that_is_known_is_explained_with_options_of_this_command(tmp_path: Path) -> None:
    with pytest.raises(LoadgenError) as failed:
        run_vllm("memory", tmp_path / "log")
    assert failed.value.exit_code == 1
    assert "CUDA out of memory" in str(failed.value)  # the log's end
    assert "memory" in str(failed.value).splitlines()[-1]
    assert "server." not in (failed.value.hint or "") and failed.value.hint


def test_the_root_cause_is_told_and_not_what_follows_from_it(tmp_path: Path) -> None:
    with pytest.raises(LoadgenError) as failed:
        run_vllm("engine", tmp_path / "log")
    assert "the moon is in the wrong quarter" in str(failed.value).splitlines()[-1]


def test_a_script_that_is_killed_is_told(tmp_path: Path) -> None:
    with pytest.raises(LoadgenError, match="killed by SIGKILL"):
        run_vllm("killed", tmp_path / "log")


def test_one_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(LoadgenError, match=r"not over within 2 s") as failed:
        run_vllm("hang", tmp_path / "log", timeout_s=2)
    assert "--timeout" in (failed.value.hint or "")
    assert time.monotonic() - began < 30
    assert not pids_of(tmp_path)


def pids_of(mark: Path) -> list[int]:
    """Processes whose standard output is a file of this folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            try:
                if str(mark) in str((process / "fd/1").readlink()):
                    found.append(int(process.name))
            except OSError:
                continue
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for processes in /proc")
def test_nothing_is_left_when_loadgen_is_killed(tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from loadgen.baseline.launch import run_script; "
        "run_script('vllm_generate', json.loads(sys.argv[1]), python=sys.executable, log=Path(sys.argv[2]), timeout_s=60)"
    )
    command = [sys.executable, "-c", code, json.dumps(ASKED), str(tmp_path / "log")]
    starter = subprocess.Popen(command, env={**os.environ, **env("hang")})
    try:
        deadline = time.monotonic() + 30
        log = tmp_path / "log"
        while not (log.exists() and "loaded" in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert pids_of(tmp_path)
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    while pids_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pids_of(tmp_path) == []


def test_an_interrupt_ends_the_measurement_and_leaves_no_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "loadgen", "baseline", "vllm-offline", "m", "--python", sys.executable]
    running = subprocess.Popen(
        [*command, "--log", str(log)], env={**os.environ, **env("hang")}, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while not (log.exists() and "loaded" in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
    finally:
        running.kill()
        running.wait()
    assert pids_of(tmp_path) == []


def test_a_python_without_the_library_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError) as refused:
        check_python(sys.executable, ("no_such_library", "json"))
    assert str(refused.value) == f"{sys.executable} has no no_such_library."
    assert "-m pip install no_such_library" in (refused.value.hint or "")


@pytest.mark.parametrize(("python", "sentence"), [("/nowhere/python", "no such program"), ("false", "is no Python")])
def test_what_is_no_python_is_refused(python: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_python(python, ("json",))


def test_the_command_prints_a_table_writes_a_file_and_shows_it_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env("ok").items():
        monkeypatch.setenv(name, value)
    sizes = ["--input-tokens", "20", "--output-tokens", "11", "--repeats", "2", "--python", sys.executable]
    files = [tmp_path / "one.json", tmp_path / "four.json"]
    for file, more in zip(files, (["--batch", "1"], ["--batch", "4", "--quantization", "fp8"]), strict=True):
        ended = CliRunner().invoke(app, ["baseline", "vllm-offline", "m", *sizes, "-o", str(file), *more])
        assert ended.exit_code == 0, ended.output
    assert "4 requests at once (aggregate)" in ended.output and "fp8" in ended.output
    assert read_result(files[1])["conditions"]["max_num_seqs"] == 4
    monkeypatch.setenv("COLUMNS", "200")  # nothing is folded, however many digits this machine's speed has
    shown = CliRunner().invoke(app, ["baseline", "show", *map(str, files)])
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    one, four = (line.split() for line in lines if line.startswith("vLLM"))
    assert one[:5] == ["vLLM", "offline", "bfloat16", "20/11", "1"]
    assert four[:7] == ["vLLM", "offline", "bfloat16,", "weights", "fp8", "20/11", "4"]
    assert len(four) == len(one) + 2 + 1  # what all get together is said of several only
    assert lines[-1] == "not the same: precision: bfloat16 | bfloat16, weights fp8"


def test_a_wrong_word_on_the_command_line_is_refused() -> None:
    for words in (["baseline", "vllm-offline", "m", "--timeout", "soon"], ["baseline", "show", "/nowhere.json"]):
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 2, ended.output


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    for content, sentence in (
        ("{", "no JSON"),
        ("[]", "no result of a baseline"),
        ('{"kind": "baseline", "schema_version": 99}', "schema_version 99"),
    ):
        path = tmp_path / "file.json"
        path.write_text(content)
        with pytest.raises(UsageError, match=sentence):
            read_result(path)


def test_what_differs_between_results_is_told() -> None:
    assert list(difference_lines([made(), made(16)])) == []
    assert list(difference_lines([made(), made(output_tokens=2)])) == ["not the same: output tokens: 11 | 2"]
