"""The scheduler when memory is short, when prompts are known, and when tokens are guessed: as vLLM v1 does it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from server.roofline import accepted_tokens
from server.simulator.engine import Engine, Request, Step
from server.simulator.kv_cache import block_hashes
from server.simulator.settings import SimulatorSettings


def all_steps(engine: Engine) -> list[Step]:
    steps = []
    while step := engine.step():
        steps.append(step)
        assert len(steps) < 100_000
    return steps


def small(**changes: object) -> SimulatorSettings:
    chosen = {"max_model_len": 64, "num_gpu_blocks_override": 9, "max_num_seqs": 8, **changes}
    return SimulatorSettings.model_validate(chosen)


def test_without_a_limit_there_are_blocks_for_every_sequence() -> None:
    chosen = SimulatorSettings(max_num_seqs=3, max_model_len=100)
    assert chosen.kv_blocks == 3 * 7
    engine = Engine(chosen)
    for i in range(3):
        engine.add(Request(i, 50, 50))
    steps = all_steps(engine)
    assert not any(step.preempted for step in steps)


def test_a_prompt_waits_until_all_of_it_has_blocks() -> None:
    engine = Engine(small())
    engine.add(Request(1, 64 + 1, 1))  # 5 of 8 blocks
    engine.add(Request(2, 49, 1))  # 4 blocks: they are not there
    engine.add(Request(3, 1, 1))  # 1 block would be there, but it is not its turn
    first, second = all_steps(engine)
    assert [request.id for request in first.admitted] == [1]
    assert [request.id for request in second.admitted] == [2, 3]


def test_the_one_admitted_last_gives_way_and_computes_prompt_and_output_again() -> None:
    engine = Engine(small())
    old, young = Request(1, 60, 40), Request(2, 60, 40)  # 4 blocks each, 7 at their end
    engine.add(old)
    engine.add(young)
    steps = all_steps(engine)
    (preempting,) = [step for step in steps if step.preempted]
    assert preempting.preempted == [young]
    # Their 65th token needs a fifth block; the first five tokens came with the prompt and four decoding steps.
    assert steps.index(preempting) == 5
    # It came back when the old one had gone, and computed its prompt and the five tokens that it had.
    back = next(step for step in steps[6:] if young in step.admitted)
    assert back.prefill_tokens == 60 + 5
    assert steps.index(back) == 40
    got: Counter[int] = Counter()
    for step in steps:
        for request, tokens, _ in step.emissions:
            got[request.id] += tokens
    assert got == {1: 40, 2: 40}
    assert (young.preemptions, engine.counts.preemptions) == (1, 1)
    assert engine.kv_usage == 0


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    engine = Engine(small())
    for i in (1, 2, 3):
        engine.add(Request(i, 40, 40))
    steps = all_steps(engine)
    assert any(step.preempted for step in steps)
    assert not any(step.preempted and step.admitted for step in steps)


def test_a_preempted_request_goes_to_the_front_of_the_queue() -> None:
    engine = Engine(small())
    engine.add(Request(1, 60, 40))
    engine.add(Request(2, 60, 40))
    for _ in range(3):
        engine.step()
    engine.add(Request(3, 1, 1))
    steps = all_steps(engine)
    admitted = [request.id for step in steps for request in step.admitted]
    assert admitted.index(2) < admitted.index(3)


def test_blocks_of_a_finished_request_are_free_only_after_its_last_step() -> None:
    engine = Engine(small())
    engine.add(Request(1, 16, 2))
    engine.step()
    engine.step()
    assert engine.running == 0
    assert engine.kv_usage == 2 / 8
    assert engine.step() is None
    assert engine.kv_usage == 0


def test_a_request_that_the_cache_could_never_hold_is_refused() -> None:
    engine = Engine(small())
    with pytest.raises(ValueError, match="longer than the KV cache"):
        engine.add(Request(1, 100, 29))
    engine.add(Request(1, 100, 28))


def test_a_cache_too_small_for_the_longest_request_is_refused_in_vllms_words() -> None:
    with pytest.raises(ValidationError, match=r"at least one request .* decreasing `max_model_len`"):
        small(max_model_len=129)
    with pytest.raises(ValidationError, match="max seq len"):
        SimulatorSettings(simulated_model="llama-3.1-70b", gpu="H100")


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_takes_all_of_it() -> None:
    chosen = small(max_num_batched_tokens=64, enable_chunked_prefill=False)
    engine = Engine(chosen)
    engine.add(Request(1, 40, 1))
    engine.add(Request(2, 30, 1))
    assert [step.prefill_tokens for step in all_steps(engine)] == [40, 30]
    with pytest.raises(ValidationError, match="reject longer sequences"):
        small(max_num_batched_tokens=63, enable_chunked_prefill=False)


# --- prefix cache


def known(id: int, tokens: list[int], output_tokens: int) -> Request:
    reply = [1000 + id] * output_tokens
    return Request(id, len(tokens), output_tokens, block_hashes(tokens + reply, 16))


def test_a_shared_prefix_is_computed_once_and_counted_in_tokens() -> None:
    engine = Engine(SimulatorSettings(enable_prefix_caching=True))
    prefix = list(range(100))
    engine.add(known(1, [*prefix, 1], 5))
    engine.add(known(2, [*prefix, 2], 5))
    first = engine.step()
    assert first is not None
    # The second is admitted to the same step and finds the six full blocks of the first.
    assert first.prefill_tokens == 101 + 101 - 96
    counts = engine.counts
    assert (counts.prefix_queries, counts.prefix_hits) == (202, 96)


def test_the_reply_is_found_when_the_conversation_goes_on() -> None:
    engine = Engine(SimulatorSettings(enable_prefix_caching=True))
    prompt = list(range(32))
    engine.add(known(1, prompt, 33))
    all_steps(engine)
    engine.add(known(2, [*prompt, *[1001] * 33, *range(500, 530)], 1))
    step = engine.step()
    assert step is not None
    # The last token of the reply was never computed, so 64 of its 65 tokens are there.
    assert step.prefill_tokens == 95 - 64


def test_a_preempted_request_finds_its_own_blocks_and_is_not_counted_again() -> None:
    engine = Engine(small(enable_prefix_caching=True))
    engine.add(known(1, list(range(60)), 40))
    engine.add(known(2, list(range(100, 160)), 40))
    steps = all_steps(engine)
    assert sum(len(step.preempted) for step in steps) == 1
    back = next(step for step in steps[6:] if step.admitted)
    # Of its 65 tokens, the blocks that the old one did not take in the meantime.
    assert back.prefill_tokens in (65 - 16, 65 - 32, 65 - 48, 65 - 64)
    assert engine.counts.prefix_queries == 120


def test_hashes_without_a_prefix_cache_change_nothing() -> None:
    engine = Engine(SimulatorSettings())
    engine.add(known(1, list(range(100)), 5))
    engine.add(known(2, list(range(100)), 5))
    step = engine.step()
    assert step is not None and step.prefill_tokens == 200
    assert (engine.counts.prefix_queries, engine.counts.prefix_hits) == (0, 0)


# --- speculative decoding


def test_drafts_give_as_many_tokens_a_step_as_the_acceptance_rate_says() -> None:
    engine = Engine(SimulatorSettings(num_speculative_tokens=4, speculative_acceptance_rate=0.8, max_num_seqs=1))
    engine.add(Request(1, 1, 8000))
    steps = all_steps(engine)
    assert sum(tokens for step in steps for _, tokens, _ in step.emissions) == 8000
    assert 8000 / len(steps) == pytest.approx(accepted_tokens(4, 0.8), rel=0.03)
    counts = engine.counts
    assert counts.drafts == len(steps) - 1
    assert counts.draft_tokens == 4 * counts.drafts
    shares = [accepted / counts.drafts for accepted in counts.accepted_at]
    assert shares == pytest.approx([0.8, 0.64, 0.512, 0.4096], abs=0.03)


@pytest.mark.parametrize(("rate", "steps"), [(0.0, 12), (1.0, 4)])
def test_no_draft_is_right_or_every_one_is(rate: float, steps: int) -> None:
    engine = Engine(SimulatorSettings(num_speculative_tokens=3, speculative_acceptance_rate=rate))
    engine.add(Request(1, 1, 12))
    made = all_steps(engine)
    assert len(made) == steps
    assert sum(tokens for step in made for _, tokens, _ in step.emissions) == 12


def test_drafts_count_against_the_tokens_of_a_step() -> None:
    chosen = SimulatorSettings(num_speculative_tokens=3, max_num_seqs=2, max_num_batched_tokens=10)
    engine = Engine(chosen)
    engine.add(Request(1, 1, 50))
    engine.step()
    engine.add(Request(2, 30, 1))
    step = engine.step()
    assert step is not None and step.prefill_tokens == 10 - 4
    with pytest.raises(ValidationError, match="3 drafted tokens each"):
        SimulatorSettings(num_speculative_tokens=3, max_num_seqs=3, max_num_batched_tokens=10)


# --- all together

operations = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 60), st.integers(1, 40)),
    st.tuples(st.just("step"), st.just(0), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
)


@given(
    script=st.lists(operations, max_size=80),
    blocks=st.integers(8, 20),
    drafted=st.integers(0, 3),
    caching=st.booleans(),
    chunked=st.booleans(),
    batched=st.integers(0, 40),
)
def test_every_request_gets_exactly_its_tokens_whatever_memory_there_is(
    script: list[tuple[str, int, int]], blocks: int, drafted: int, caching: bool, chunked: bool, batched: int
) -> None:
    chosen = SimulatorSettings(
        max_num_seqs=5,
        max_model_len=100,
        max_num_batched_tokens=(5 * (1 + drafted) + batched) if chunked else 100 + batched,
        enable_chunked_prefill=chunked,
        num_gpu_blocks_override=blocks,
        enable_prefix_caching=caching,
        num_speculative_tokens=drafted,
    )
    engine = Engine(chosen)
    requests: list[Request] = []
    cancelled: set[int] = set()
    finished: set[int] = set()
    got: Counter[int] = Counter()
    first_admissions: list[int] = []

    def take(step: Step | None) -> bool:
        if step is None:
            return False
        assert step.duration_ns > 0
        assert 1 <= step.running <= 5 and engine.running <= 5
        assert 0 <= engine.kv_usage <= 1
        assert step.decoding * (1 + drafted) + step.prefill_tokens <= chosen.max_num_batched_tokens
        assert not (step.preempted and step.admitted)
        first_admissions.extend(request.id for request in step.admitted if not request.preemptions)
        for request, tokens, last in step.emissions:
            assert request.id not in cancelled | finished and 1 <= tokens <= 1 + drafted
            got[request.id] += tokens
            if last:
                finished.add(request.id)
        return True

    for name, a, b in script:
        if name == "add":
            # Prompts of few kinds, so that prefixes are shared.
            requests.append(known(len(requests), [a % 3] * a, b))
            engine.add(requests[-1])
        elif name == "step":
            take(engine.step())
        elif engine.cancel(a):
            cancelled.add(a)
    for _ in range(20_000):
        if not take(engine.step()):
            break
    assert finished | cancelled == {request.id for request in requests}
    assert all(got[request.id] == request.output_tokens for request in requests if request.id in finished)
    assert first_admissions == sorted(first_admissions), "first come, first served"
    assert (engine.running, engine.waiting, engine.held_tokens, engine.kv_usage) == (0, 0, 0, 0)
