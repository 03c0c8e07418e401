"""Prompts, and whole requests of a mix of lengths, built per second on one core: prints one JSON object and a sentence.

Usage: `python bench/prompts.py [INPUT_TOKENS] [PROMPTS]` (default 1024 and 10000).
"""

from __future__ import annotations

import json
import sys
import time

from loadgen.prompts import LocalCounter, PromptRecipe, make_recipe
from loadgen.workload.lengths import LogNormal
from loadgen.workload.request_class import Independent, Prefixes, RequestClass
from loadgen.workload.synthetic import SyntheticWorkload
from server.simulator.tokenizer import folder


def main(argv: list[str]) -> int:
    input_tokens = int(argv[0]) if argv else 1024
    prompts = int(argv[1]) if len(argv) > 1 else 10_000

    loaded_ns = time.perf_counter_ns()
    counter = LocalCounter(folder())
    started_ns = time.perf_counter_ns()
    recipe = make_recipe(counter, endpoint="chat", seed=7)
    found_ns = time.perf_counter_ns()

    recipe.build_bytes(0, 0, input_tokens)  # the recipe's tables are made by the first prompt
    wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    for k in range(prompts):
        recipe.build_bytes(0, k, input_tokens)
    wall_s, cpu_s = (time.perf_counter_ns() - wall_ns) / 1e9, (time.process_time_ns() - cpu_ns) / 1e9

    workload = mix(recipe, input_tokens)
    workload.build(0, 0)
    mix_ns = time.process_time_ns()
    for k in range(prompts):
        workload.build(0, k)
    mix_s = (time.process_time_ns() - mix_ns) / 1e9

    figures = {
        "input_tokens": input_tokens,
        "prompts": prompts,
        "wall_s": round(wall_s, 4),
        "cpu_s": round(cpu_s, 4),
        "prompts_per_cpu_s": round(prompts / cpu_s),
        "cpu_us_per_prompt": round(cpu_s / prompts * 1e6, 1),
        "mixed_requests_per_cpu_s": round(prompts / mix_s),
        "tokenizer_load_s": round((started_ns - loaded_ns) / 1e9, 3),
        "recipe_s": round((found_ns - started_ns) / 1e9, 3),
    }
    print(json.dumps(figures))
    print(
        f"{prompts} prompts of {input_tokens} tokens in {wall_s:.2f} s: {prompts / cpu_s:,.0f} prompts per core-second, "
        f"{prompts / mix_s:,.0f} requests of mixed lengths with shared prefixes",
        file=sys.stderr,
    )
    return 0


def mix(recipe: PromptRecipe, mean: int) -> SyntheticWorkload:
    """Two classes, both lengths drawn, one of them behind shared prefixes."""
    lengths = Independent(LogNormal(mean, mean / 4, min=mean // 2), LogNormal(128, 64))
    prefixes = Prefixes(tokens=mean // 4, count=20, zipf=1.0)
    classes = (RequestClass("drawn", 0.5, lengths), RequestClass("shared", 0.5, lengths, prefixes))
    return SyntheticWorkload(recipe, classes, model="sim", ignore_eos=True, continuous_usage=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
