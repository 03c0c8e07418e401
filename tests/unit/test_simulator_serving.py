"""The running simulator's newer parts over HTTP: caches, events of several tokens, its start, its log."""

import json
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadgen.cli import app
from server.simulator.settings import SimulatorSettings
from server.simulator.start_log import beginning, end
from tests.simulator_process import COMMAND, SimulatorProcess, running_simulator

FAST = ("--step-overhead-ms", "0.5", "--decode-base-ms", "0", "--decode-time-per-seq-ms", "0")
FAST += ("--prefill-time-per-token-ms", "0.001")
USAGE = {"include_usage": True, "continuous_usage_stats": True}


def value(simulator: SimulatorProcess, name: str) -> float:
    text = simulator.ask("GET", "/metrics").body.decode()
    found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
    assert found, name
    return float(found[1])


def completion(simulator: SimulatorProcess, prompt: Any, **changes: Any) -> Any:
    content = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, **changes}
    return simulator.ask("POST", "/v1/completions", content)


def test_a_repeated_prompt_is_found_in_the_prefix_cache_and_so_is_a_conversation() -> None:
    with running_simulator(*FAST, "--enable-prefix-caching") as simulator:
        prompt = list(range(5, 105))
        completion(simulator, prompt)
        assert value(simulator, "vllm:prefix_cache_hits_total") == 0
        completion(simulator, prompt)
        assert value(simulator, "vllm:prefix_cache_hits_total") == 96
        assert value(simulator, "vllm:prefix_cache_queries_total") == 200
        assert value(simulator, "vllm:prompt_tokens_cached_total") == 96
        assert value(simulator, "vllm:prompt_tokens_total") == 200
        # The text of a reply, as it is part of the next turn.
        first = "Tell me more about it."
        reply = completion(simulator, first, max_tokens=100).json()["choices"][0]["text"]
        before = value(simulator, "vllm:prefix_cache_hits_total")
        completion(simulator, first + reply + " Go on.")
        assert value(simulator, "vllm:prefix_cache_hits_total") - before >= 80


def test_a_stream_interval_gives_the_first_token_at_once_and_the_others_in_groups() -> None:
    with running_simulator(*FAST, "--stream-interval", "4") as simulator:

        def counts(**changes: Any) -> list[int]:
            events = completion(simulator, "a", max_tokens=12, stream=True, stream_options=USAGE, **changes).events()
            return [event["usage"]["completion_tokens"] for event in events if event["choices"]]

        assert counts() == [1, 5, 9, 12]
        # As in vLLM, a request can ask for more than the server's interval, not for less.
        assert counts(stream_interval=10) == [1, 11, 12]
        assert counts(stream_interval=1) == [1, 5, 9, 12]
        assert completion(simulator, "a", stream_interval=0).status == 400


def test_the_groups_of_a_stream_say_what_the_whole_answer_says(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    options = ("--num-speculative-tokens", "3", "--speculative-acceptance-rate", "0.9", "--truth", str(truth))
    with running_simulator(*FAST, *options) as simulator:
        whole = completion(simulator, "a", max_tokens=50).json()["choices"][0]["text"]
        events = completion(simulator, "a", max_tokens=50, stream=True, stream_options=USAGE).events()
        texts = [event["choices"][0]["text"] for event in events if event["choices"]]
        assert "".join(texts) == whole
        assert len(texts) < 25
        assert value(simulator, "vllm:generation_tokens_total") == 100
        assert value(simulator, "vllm:spec_decode_num_accepted_tokens_total") > 40
        assert simulator.stop() == 0
    lines = [json.loads(line) for line in truth.read_text().splitlines()]
    assert [len(line["token_ns"]) for line in lines] == [50, 50], "the tokens of one event have one instant"
    assert len(set(lines[1]["token_ns"])) == len(texts)


def test_a_full_kv_cache_shows_in_the_metrics() -> None:
    options = ("--max-num-seqs", "8", "--max-model-len", "512", "--num-gpu-blocks-override", "33")
    with running_simulator(*FAST, *options, "--step-overhead-ms", "2") as simulator:
        threads = [
            threading.Thread(target=completion, args=(simulator, [7] * 64), kwargs={"max_tokens": 256})
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert value(simulator, "vllm:num_preemptions_total") > 0
        assert value(simulator, "vllm:request_success_total") == 0, "none stopped by itself"
        assert value(simulator, "vllm:request_generation_tokens_count") == 6
        assert value(simulator, "vllm:kv_cache_usage_perc") == 0
        config = simulator.ask("GET", "/metrics").body.decode()
    line = next(line for line in config.splitlines() if line.startswith("vllm:cache_config_info{"))
    assert 'num_gpu_blocks="33"' in line and 'block_size="16"' in line and line.endswith(" 1.0")


def test_the_port_answers_only_after_the_start_up_delay() -> None:
    began = time.monotonic()
    with running_simulator(*FAST, "--startup-delay-s", "1.5") as simulator:
        assert time.monotonic() - began >= 1.5
        assert simulator.ask("GET", "/health").status == 200


def test_a_start_up_can_be_broken_off() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--startup-delay-s", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        # Its first line is written once it heeds signals.
        assert "version" in process.stderr.readline()
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--gpu", "H100"), "simulated_model"),
        (("--faults", "explode"), "explode"),
        (("--num-gpu-blocks-override", "10"), "max seq len"),
        (("--kv-cache-dtype", "fp4"), "fp4"),
        (("--step-noise", "7"), "--step-noise is 7"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_the_start(options: tuple[str, ...], named: str) -> None:
    ended = CliRunner().invoke(app, ["serve", "sim", *options])
    assert ended.exit_code == 2
    assert named in ended.output


def test_the_start_log_has_what_vllms_has() -> None:
    settings = SimulatorSettings(
        served_model_name="llama", simulated_model="llama-3.1-8b", gpu="H100", max_num_seqs=32, max_model_len=4096
    )
    lines = [*beginning(settings, "127.0.0.1", 8000), *end(settings, took_s=2.5, url="http://127.0.0.1:8000")]
    assert all(
        re.match(r"\((APIServer|EngineCore) pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] ", line)
        for line in lines
    )
    log = "\n".join(lines)
    assert re.search(r"version 0\.\d+\.\d+\+simulator$", log, re.M)
    chosen = re.search(r"non-default args: (\{.*\})$", log, re.M)
    assert chosen and "'max_num_seqs': 32" in chosen[1] and "'served_model_name': ['llama']" in chosen[1]
    assert "'block_size'" not in chosen[1]
    assert re.search(
        r"Initializing a V1 LLM engine \(v\S+\) with config: model='llama-3.1-8b', .*max_seq_len=4096, ", log
    )
    size = re.search(
        r"GPU KV cache size: ([\d,]+) tokens, Maximum concurrency for 4,096 tokens per request: ([\d.]+)x$", log, re.M
    )
    assert size
    tokens = int(size[1].replace(",", ""))
    assert tokens == settings.num_gpu_blocks * 16
    assert float(size[2]) == pytest.approx(tokens / 4096, abs=0.01)
