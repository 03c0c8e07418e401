"""The simulator keeps its own plan: the truth log against the settings, and the client's clock against the truth log."""

import itertools
import json
import statistics
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from server.simulator.capacity import LoadShape, steady_state
from server.simulator.settings import SimulatorSettings
from tests.simulator_process import SimulatorProcess, running_simulator

# Its asserts compare instants: it runs alone, since another test on the same cores would bend them.
pytestmark = pytest.mark.alone

MS = 1_000_000


def stream(simulator: SimulatorProcess, name: str, *, input_tokens: int, output_tokens: int) -> list[int]:
    """The monotonic instants at which the client read each token's event."""
    content = {"prompt": [7] * input_tokens, "max_tokens": output_tokens, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        simulator.url + "/v1/completions",
        json.dumps(content).encode(),
        {"Content-Type": "application/json", "X-Request-Id": name},
    )
    arrivals_ns = []
    with urllib.request.urlopen(request, timeout=30) as response:
        for line in response:
            if b'"text":' in line:
                arrivals_ns.append(time.monotonic_ns())
    return arrivals_ns


def streams(simulator: SimulatorProcess, names: list[str], *, input_tokens: int, output_tokens: int) -> None:
    threads = [
        threading.Thread(
            target=stream, args=(simulator, name), kwargs={"input_tokens": input_tokens, "output_tokens": output_tokens}
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def truth_of(path: Path) -> dict[str, dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["client_request_id"] for line in lines}) == len(lines)
    return {line["client_request_id"]: line for line in lines}


# Two contrasting profiles: a figure that is scaled or shifted cannot pass both.
@pytest.mark.parametrize(
    ("chosen", "input_tokens"),
    [
        (SimulatorSettings(), 128),
        (SimulatorSettings(step_overhead_ms=30, prefill_time_per_token_ms=0.05, decode_base_ms=5), 1000),
    ],
)
def test_one_stream_has_the_first_token_and_the_pace_that_the_settings_say(
    chosen: SimulatorSettings, input_tokens: int, tmp_path: Path
) -> None:
    truth = tmp_path / "truth.jsonl"
    options = [
        f"--{name.replace('_', '-')}={getattr(chosen, name)}"
        for name in ("step_overhead_ms", "prefill_time_per_token_ms", "decode_base_ms")
    ]
    with running_simulator(*options, "--truth", str(truth)) as simulator:
        stream(simulator, "warm", input_tokens=5, output_tokens=2)
        seen_ns = stream(simulator, "measured", input_tokens=input_tokens, output_tokens=50)
        assert simulator.stop() == 0
    line = truth_of(truth)["measured"]
    sent_ns = line["token_ns"]
    assert (line["prompt_tokens"], len(sent_ns), line["cancelled"]) == (input_tokens, 50, False)

    planned_ttft_ms = chosen.step_ns(prefill_tokens=input_tokens, decoding=0) / MS
    planned_gap_ms = chosen.step_ns(prefill_tokens=0, decoding=1) / MS
    ttft_ms = (sent_ns[0] - line["received_ns"]) / MS
    gaps_ms = [(after - before) / MS for before, after in itertools.pairwise(sent_ns)]
    assert planned_ttft_ms <= ttft_ms < planned_ttft_ms + 15
    assert statistics.median(gaps_ms) == pytest.approx(planned_gap_ms, abs=0.5)
    # An absolute schedule: one late token does not shift the later ones.
    planned_ns = [sent_ns[0] + round(i * planned_gap_ms * MS) for i in range(50)]
    errors_ms = [(actual - planned) / MS for actual, planned in zip(sent_ns, planned_ns, strict=True)]
    assert abs(statistics.median(errors_ms[-15:])) < 3

    assert len(seen_ns) == 50
    delays_ms = [(seen - sent) / MS for seen, sent in zip(seen_ns, sent_ns, strict=True)]
    assert min(delays_ms) > 0, "nobody can read a token before it was sent"
    assert statistics.median(delays_ms) < 3
    assert line["finished_ns"] >= sent_ns[-1]


def test_streams_beyond_max_num_seqs_wait_for_a_place(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with running_simulator("--max-num-seqs", "2", "--truth", str(truth)) as simulator:
        streams(simulator, ["a", "b", "c", "d"], input_tokens=5, output_tokens=30)
        assert simulator.stop() == 0
    lines = sorted(truth_of(truth).values(), key=lambda line: line["received_ns"])
    firsts_ns = [line["token_ns"][0] for line in lines]
    lasts_ns = [line["token_ns"][-1] for line in lines]
    assert max(firsts_ns[:2]) < min(lasts_ns[:2])
    assert min(firsts_ns[2:]) > min(lasts_ns[:2]), "the third begins when one of the first two has ended"
    # Two together decode at 10.4 ms a token.
    pace_ms = (lasts_ns[0] - firsts_ns[0]) / 29 / MS
    assert pace_ms == pytest.approx(10.4, abs=1.0)


def test_every_one_of_many_streams_gets_each_token_once(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    names = [str(i) for i in range(40)]
    fast = ("--step-overhead-ms=1", "--decode-base-ms=0", "--decode-time-per-seq-ms=0.01")
    with running_simulator(*fast, "--max-num-seqs=32", "--truth", str(truth)) as simulator:
        streams(simulator, names, input_tokens=20, output_tokens=60)
        metrics = simulator.ask("GET", "/metrics").body.decode()
        assert simulator.stop() == 0
    lines = truth_of(truth)
    assert sorted(lines) == sorted(names)
    assert all(len(line["token_ns"]) == 60 and not line["cancelled"] for line in lines.values())
    assert all(line["token_ns"] == sorted(line["token_ns"]) for line in lines.values())
    assert 'vllm:generation_tokens_total{engine="0",model_name="sim"} 2400.0' in metrics
    assert 'vllm:inter_token_latency_seconds_count{engine="0",model_name="sim"} 2360.0' in metrics


def test_users_get_the_throughput_that_is_worked_out_for_clients_who_come_a_step_late(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    # Slow steps, so that what the machine adds is small; short replies, so that a step more or less shows.
    chosen = SimulatorSettings(step_overhead_ms=30)
    with running_simulator("--step-overhead-ms=30", "--truth", str(truth)) as simulator:

        def user(number: int) -> None:
            for n in range(15):
                stream(simulator, f"{number}-{n}", input_tokens=16, output_tokens=6)

        users = [threading.Thread(target=user, args=(number,)) for number in range(3)]
        for one in users:
            one.start()
        for one in users:
            one.join()
        assert simulator.stop() == 0
    ends_ns = sorted(line["finished_ns"] for line in truth_of(truth).values())[6:-6]
    rate = (len(ends_ns) - 1) / ((ends_ns[-1] - ends_ns[0]) / 1e9)
    late, prompt = (
        steady_state(chosen, LoadShape(16, 6, late_steps=steps), 3).request_throughput for steps in (1.0, 0.0)
    )
    assert rate == pytest.approx(late, rel=0.08)
    assert late < 0.9 * prompt
