"""A /metrics page under our names: vLLM's of today and of yesterday, SGLang's, llama.cpp's, and what is none of them."""

import math
from pathlib import Path

import pytest

from loadgen.server_metrics.parse import read_metrics
from loadgen.server_metrics.sample import COUNTERS, GAUGES, HISTOGRAMS, Buckets, GpuSample, ServerSample

VLLM = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1200.0
vllm:generation_tokens_total{engine="0",model_name="m"} 640.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 8.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 6.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.25",model_name="m"} 9.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.5
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 6.0
"""


def test_vllm_page_is_read_whole() -> None:
    read = read_metrics(VLLM)
    assert (read["kind"], read["started_s"]) == ("vllm", 1.7e9)
    assert read["gauges"] == {"running": 4.0, "waiting": 3.0, "kv_usage": 0.5, "engines": 1.0}
    assert read["counters"] == {
        "preemptions": 7.0,
        "prefix_queries": 1000.0,
        "prefix_hits": 250.0,
        "prompt_tokens": 1200.0,
        "generation_tokens": 640.0,
        "requests": 10.0,
    }
    assert read["waiting_by_reason"] == {"capacity": 2.0, "deferred": 1.0}
    assert read["requests_by_reason"] == {"stop": 2.0, "length": 8.0}
    assert read["histograms"] == {"ttft": Buckets((0.1, 0.25, math.inf), (6.0, 9.0, 10.0), 1.5)}


def test_engines_of_one_server_are_added_up_and_the_fullest_cache_counts() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{engine}"}} {running}\nvllm:kv_cache_usage_perc{{engine="{engine}"}} {usage}\n'
        f'vllm:time_to_first_token_seconds_bucket{{engine="{engine}",le="+Inf"}} 3\n'
        for engine, running, usage in ((0, 4, 0.2), (1, 6, 0.9))
    )
    read = read_metrics(text)
    assert read["gauges"] == {"running": 10.0, "kv_usage": 0.9, "engines": 2.0}
    assert read["histograms"]["ttft"].counts == (6.0,)


def test_names_of_older_vllm_mean_what_the_newer_ones_mean() -> None:
    read = read_metrics(
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\nvllm:gpu_prefix_cache_queries_total 100\n'
        'vllm:gpu_prefix_cache_hits_total 10\nvllm:time_per_output_token_seconds_bucket{le="0.1"} 3\n'
        'vllm:time_per_output_token_seconds_bucket{le="+Inf"} 4\nvllm:time_per_output_token_seconds_sum 0.5\n'
    )
    assert read["gauges"] == {"kv_usage": 0.25}
    assert read["counters"] == {"prefix_queries": 100.0, "prefix_hits": 10.0}
    assert read["histograms"] == {"itl": Buckets((0.1, math.inf), (3.0, 4.0), 0.5)}


def test_a_server_that_has_both_names_is_read_by_the_new_one() -> None:
    read = read_metrics("vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.3\n")
    assert read["gauges"] == {"kv_usage": 0.3}


def test_sglang_and_llama_cpp_are_read_by_their_own_names() -> None:
    sglang = read_metrics(
        'sglang:num_running_reqs{model_name="m"} 162.0\nsglang:num_queue_reqs{model_name="m"} 2826.0\n'
        'sglang:token_usage{model_name="m"} 0.28\nsglang:prompt_tokens_total{model_name="m"} 8.1e+06\n'
        'sglang:cached_tokens_total{cache_source="device",model_name="m"} 100\nsglang:generation_tokens_total 7\n'
        "sglang:num_requests_total 5\n"
    )
    assert sglang["kind"] == "sglang"
    assert (sglang["gauges"]["running"], sglang["gauges"]["waiting"], sglang["gauges"]["kv_usage"]) == (162, 2826, 0.28)
    assert (sglang["counters"]["prefix_hits"], sglang["counters"]["prefix_queries"]) == (100, 8.1e6)
    assert (sglang["counters"]["requests"], sglang["requests_by_reason"]) == (5, {})
    llama = read_metrics(
        "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 512\n"
        "llamacpp:tokens_predicted_total 39080\nllamacpp:requests_processing 4\nllamacpp:requests_deferred 46\n"
        "llamacpp:predicted_tokens_seconds nan\n"
    )
    assert llama["kind"] == "llamacpp"
    assert (llama["gauges"]["running"], llama["gauges"]["waiting"]) == (4, 46)
    assert llama["counters"] == {"prompt_tokens": 512, "generation_tokens": 39080}


def test_a_page_with_nobodys_names_has_no_kind() -> None:
    assert read_metrics("# HELP up x\n# TYPE up gauge\nup 1\n")["kind"] == ""


@pytest.mark.parametrize("text", ["<html>not found</html>", '{"error": "no"}', '"# HELP llamacpp:x y\\n"'])
def test_what_is_no_prometheus_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not Prometheus"):
        read_metrics(text)


def test_what_is_not_a_number_is_not_told() -> None:
    assert read_metrics("vllm:num_requests_running NaN\nvllm:num_requests_waiting 1\n")["gauges"] == {"waiting": 1.0}


def test_a_sample_comes_back_from_its_file_as_it_was() -> None:
    gpu = GpuSample(0, "H100", 0.97, 70 << 30, 80 << 30, 612.5, 700.0, 71, 1410, 1980, 2619, ("sw_power_cap",))
    one = ServerSample(10, 12, gpus=(gpu, GpuSample(1, "H100")), **read_metrics(VLLM))
    assert ServerSample.from_dict(one.to_dict()) == one
    failed = ServerSample(10, 12, "the target has no /metrics")
    assert ServerSample.from_dict(failed.to_dict()) == failed
    assert failed.to_dict() == {"asked_ns": 10, "answered_ns": 12, "error": "the target has no /metrics"}


def test_a_real_page_of_vllm_is_read_with_every_histogram() -> None:
    page = (Path(__file__).parents[1] / "samples/vllm/metrics-0.32-cpu.txt").read_text()
    read = read_metrics(page)
    assert (read["kind"], read["gauges"]["engines"]) == ("vllm", 1)
    assert set(read["gauges"]) == set(GAUGES)
    assert set(read["counters"]) == set(COUNTERS)
    assert set(read["histograms"]) == set(HISTOGRAMS)
    # 24 requests of 128 prompt and 32 output tokens, and the probe of 4.
    assert (read["counters"]["prompt_tokens"], read["counters"]["generation_tokens"]) == (25 * 128, 24 * 32 + 4)
    assert read["requests_by_reason"]["length"] == read["histograms"]["ttft"].counts[-1] == 25
    assert read["histograms"]["itl"].counts[-1] == 24 * 31 + 3
