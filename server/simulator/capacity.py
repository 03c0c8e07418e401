"""What a simulated server can do, worked out: takes settings and a load of constant lengths, gives rates and latencies.

No step is run: this is what the simulator's levels, real or virtual, are held against. A request stays for the steps of
its prompt and for those of its output; with n sequences in their places, evenly out of step, each step therefore begins
n / stay prompts, and lasts what the settings say of that. Throughput follows, and Little's law gives the rest
(J. Little, "A proof for the queuing formula L = λW", 1961). All latencies are means; noise and warm-up are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from server.roofline import prompt_pairs
from server.simulator.settings import SimulatorSettings
from server.simulator.step_time import StepWork, planned_step_ns

Limit = Literal["scheduler", "kv_cache", "prefill", "none"]

_MOST_USERS = 1 << 16


@dataclass(frozen=True, slots=True)
class LoadShape:
    """Requests that are all alike."""

    input_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    """Begin every prompt; taken from the prefix cache where there is one."""
    late_steps: float = 0.0
    """Steps between the end of a request and the first step that its user's next request can be in, a place being free
    and others running: 0 in virtual time, 1 of a real client, whose request arrives when the next step has begun."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """A closed loop of `concurrency` users that has settled."""

    concurrency: int
    running: float
    """Sequences in their places, on average."""
    limit: Limit
    """What keeps more from running: `none` when all users' requests run."""
    request_throughput: float
    output_throughput: float
    step_s: float
    ttft_s: float
    tpot_s: float | None
    """None for replies of one token."""
    e2el_s: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer for one set of settings."""

    ceiling: SteadyState
    """With as many users as can run at once: more of them only wait."""
    slo: SteadyState | None
    """The most users for whom the limits hold; None when one user alone is too much."""


def capacity(
    settings: SimulatorSettings, load: LoadShape, *, ttft_s: float | None = None, tpot_s: float | None = None
) -> Capacity:
    """Throughput ceiling, and the highest concurrency whose mean TTFT and TPOT are within the limits that are given.

    Without limits it is the ceiling. As a request rate it is `slo.request_throughput`.
    """
    top = steady_state(settings, load, running_limit(settings, load))

    def holds(state: SteadyState) -> bool:
        in_time = ttft_s is None or state.ttft_s <= ttft_s
        return in_time and (tpot_s is None or state.tpot_s is None or state.tpot_s <= tpot_s)

    if ttft_s is None and holds(top):
        return Capacity(top, top)
    # Both latencies rise with every user.
    low, high = 0, 1
    while high < _MOST_USERS and holds(steady_state(settings, load, high)):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(steady_state(settings, load, middle)) else (low, middle)
    return Capacity(top, steady_state(settings, load, low) if low else None)


def running_limit(settings: SimulatorSettings, load: LoadShape) -> int:
    """Most sequences that run at once: `max_num_seqs`, or as many as the KV cache holds at their mean length.

    Where the cache is the limit a little more run for a while, some are preempted, and computing them again costs time:
    then this is the upper bound.
    """
    return max(1, min(settings.max_num_seqs, int(_kv_limit(settings, load))))


def steady_state(settings: SimulatorSettings, load: LoadShape, concurrency: int) -> SteadyState:
    """The settled closed loop; ValueError for a load without users or tokens."""
    if concurrency < 1 or load.input_tokens < 1 or load.output_tokens < 1:
        raise ValueError(f"a load needs users and tokens: concurrency={concurrency}, {load}")
    most = running_limit(settings, load)
    places = min(concurrency, most)
    steps = _decode_steps(settings, load.output_tokens - 1)
    prompt = load.input_tokens - cached_tokens(settings, load)
    # A user alone finds the server idle; with more users than places, one who waits takes the place.
    late = load.late_steps if 1 < concurrency <= most else 0.0
    stay = 1 + steps
    running = float(places)
    # Users that think for a part of a step leave a part of their place empty: the same from n as from n less that part.
    for _ in range(20):
        per_step = min(places / (stay + late), _prompt_budget(settings, running, prompt, stay))
        running = per_step * stay
        stay = steps + max(1.0, prompt / max(1.0, _budget_left(settings, per_step * steps)))
    mean_ns, first_ns = _step_ns(settings, load, per_step, running, prompt)
    rate = per_step / mean_ns * 1e9
    in_place_s = stay * mean_ns / 1e9
    waiting_s = max(0.0, concurrency / rate - in_place_s)
    in_prefill_s = (stay - steps - 1) * mean_ns / 1e9 + first_ns / 1e9
    limit: Limit = "none"
    if running < 0.99 * (places - per_step * late):
        limit = "prefill"
    elif concurrency > most:
        limit = "scheduler" if most == settings.max_num_seqs else "kv_cache"
    after = load.output_tokens - 1
    return SteadyState(
        concurrency=concurrency,
        running=running,
        limit=limit,
        request_throughput=rate,
        output_throughput=rate * load.output_tokens,
        step_s=mean_ns / 1e9,
        ttft_s=waiting_s + in_prefill_s,
        tpot_s=(in_place_s - in_prefill_s) / after if after else None,
        e2el_s=waiting_s + in_place_s,
    )


def cached_tokens(settings: SimulatorSettings, load: LoadShape) -> int:
    """Tokens of a prompt that come from the prefix cache: full blocks, never the prompt's last token."""
    if not settings.enable_prefix_caching:
        return 0
    return min(load.shared_prefix_tokens, load.input_tokens - 1) // settings.block_size * settings.block_size


def _decode_steps(settings: SimulatorSettings, tokens: int) -> float:
    """Steps that `tokens` tokens after the first take: drafts make them fewer, the last draft may be cut short."""
    drafted, rate = settings.num_speculative_tokens, settings.speculative_acceptance_rate
    if not drafted:
        return float(tokens)
    chances = [rate**n * (1 - rate) for n in range(drafted)] + [rate**drafted]
    steps = [0.0]
    for left in range(1, tokens + 1):
        steps.append(1 + sum(chance * steps[max(0, left - 1 - n)] for n, chance in enumerate(chances)))
    return steps[tokens]


def _step_ns(
    settings: SimulatorSettings, load: LoadShape, per_step: float, running: float, prompt: int
) -> tuple[float, float]:
    """Mean length of a step, and of the steps that end a prompt; prompts come one by one, as evenly as they can."""
    planned_ns = planned_step_ns(settings)
    context = load.input_tokens + load.output_tokens / 2
    cached = load.input_tokens - prompt

    def step_ns(prompts: float) -> float:
        decoding = max(0, round(running - prompts))
        tokens = prompts * prompt
        work = StepWork(
            decoding=decoding,
            drafted=decoding * settings.num_speculative_tokens,
            context_tokens=round(decoding * context),
            prefill_tokens=round(tokens),
            prefill_context=round(prompts * cached),
            prefill_pairs=prompts * prompt_pairs(prompt, cached),
            prompts_done=round(prompts),
        )
        return planned_ns(work)

    if prompt > _budget_left(settings, running):
        # Every step has a part of a prompt in it.
        return (of_all := step_ns(per_step)), of_all
    fewer = math.floor(per_step)
    share = per_step - fewer
    few_ns, many_ns = step_ns(fewer), step_ns(fewer + 1)
    of_prompts = share * (fewer + 1) * many_ns + (1 - share) * fewer * few_ns
    return share * many_ns + (1 - share) * few_ns, of_prompts / per_step


def _budget_left(settings: SimulatorSettings, decoding: float) -> float:
    """Prompt tokens that a step takes beside so many decoding sequences."""
    return settings.max_num_batched_tokens - decoding * (1 + settings.num_speculative_tokens)


def _prompt_budget(settings: SimulatorSettings, running: float, prompt: int, stay: float) -> float:
    """Prompts that a step can take on average."""
    decoding = running * (stay - 1) / stay
    return max(1.0, _budget_left(settings, decoding)) / prompt


def _kv_limit(settings: SimulatorSettings, load: LoadShape) -> float:
    """Sequences whose blocks fill the KV cache, each at its mean length; shared blocks are there once."""
    size, drafted = settings.block_size, settings.num_speculative_tokens
    shared = cached_tokens(settings, load) // size
    longest = load.input_tokens + load.output_tokens - 1 + drafted
    first = min(load.input_tokens + drafted, longest)
    blocks = sum(-(-length // size) for length in range(first, longest + 1)) / (longest - first + 1)
    own = blocks - shared
    return (settings.kv_blocks - shared) / own if own > 0 else math.inf
