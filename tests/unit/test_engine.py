"""The simulator's scheduler: what may run, in which order, for how long; no clock and no socket."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from server.simulator.engine import Engine, Request, Step
from server.simulator.settings import SimulatorSettings

MS = 1_000_000


def settings(**changes: float) -> SimulatorSettings:
    return SimulatorSettings(**changes)


def all_steps(engine: Engine) -> list[Step]:
    steps = []
    while step := engine.step():
        steps.append(step)
    return steps


def test_an_idle_engine_has_no_step() -> None:
    assert Engine(settings()).step() is None


def test_first_token_comes_with_the_step_that_completes_the_prompt() -> None:
    engine = Engine(settings())
    request = Request(1, 128, 3)
    engine.add(request)
    steps = all_steps(engine)
    assert [step.emissions for step in steps] == [
        [(request, 1, False)],
        [(request, 1, False)],
        [(request, 1, True)],
    ]
    assert [step.duration_ns for step in steps] == [round(33.6 * MS), 10 * MS, 10 * MS]
    assert [step.prefill_tokens for step in steps] == [128, 0, 0]


def test_a_step_costs_its_overhead_its_prompt_tokens_and_its_decoding_sequences() -> None:
    chosen = settings(step_overhead_ms=3, prefill_time_per_token_ms=0.5, decode_base_ms=7, decode_time_per_seq_ms=0.25)
    assert chosen.step_ns(prefill_tokens=10, decoding=0) == 8 * MS
    assert chosen.step_ns(prefill_tokens=0, decoding=4) == 11 * MS
    assert chosen.step_ns(prefill_tokens=10, decoding=4) == 16 * MS


def test_a_long_prompt_goes_on_in_the_next_step_while_others_decode() -> None:
    engine = Engine(settings(max_num_seqs=2, max_num_batched_tokens=10))
    short, long = Request(1, 4, 5), Request(2, 20, 1)
    engine.add(short)
    engine.add(long)
    steps = all_steps(engine)
    # 4 + 6 of the long one, then 1 decoding + 9, then 1 decoding + the last 5.
    assert [step.prefill_tokens for step in steps[:3]] == [10, 9, 5]
    assert [request for step in steps for request, _, _ in step.emissions].count(short) == 5
    assert [(request, finished) for request, _, finished in steps[2].emissions] == [(short, False), (long, True)]


def test_no_more_than_max_num_seqs_run_and_the_rest_wait_their_turn() -> None:
    engine = Engine(settings(max_num_seqs=2))
    requests = [Request(i, 1, 4) for i in range(3)]
    for request in requests:
        engine.add(request)
    first = engine.step()
    assert first is not None
    assert (first.running, first.admitted, engine.running, engine.waiting) == (2, requests[:2], 2, 1)
    rest = all_steps(engine)
    assert [step.admitted for step in rest] == [[], [], [], [requests[2]], [], [], []]


def test_a_cancelled_request_gives_its_place_to_the_next() -> None:
    engine = Engine(settings(max_num_seqs=1))
    first, second = Request(1, 1, 100), Request(2, 1, 1)
    engine.add(first)
    engine.add(second)
    engine.step()
    assert engine.cancel(1)
    step = engine.step()
    assert step is not None and step.emissions == [(second, 1, True)]
    assert not engine.cancel(1)
    assert not engine.cancel(2), "a finished request is not there any more"
    assert engine.step() is None


def test_a_waiting_and_a_half_prefilled_request_can_be_cancelled() -> None:
    engine = Engine(settings(max_num_seqs=1, max_num_batched_tokens=8))
    engine.add(Request(1, 20, 1))
    engine.add(Request(2, 20, 1))
    engine.step()
    assert engine.held_tokens == 8
    assert engine.cancel(1) and engine.cancel(2)
    assert (engine.running, engine.waiting, engine.held_tokens) == (0, 0, 0)


def test_ids_in_use_and_empty_requests_are_refused() -> None:
    engine = Engine(settings())
    engine.add(Request(1, 1, 1))
    for request in (Request(1, 1, 1), Request(2, 0, 1), Request(3, 1, 0)):
        with pytest.raises(ValueError, match=f"request {request.id} "):
            engine.add(request)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 63}, "max_num_batched_tokens"),
        ({"step_overhead_ms": -1}, "step_overhead_ms"),
        ({"step_overhead_ms": 0, "prefill_time_per_token_ms": 0}, "step_overhead_ms"),
        ({"max_num_sequences": 4}, "max_num_sequences"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(changes: dict[str, float], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        settings(**changes)


operations = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 60), st.integers(1, 12)),
    st.tuples(st.just("step"), st.just(0), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
)


@given(
    max_num_seqs=st.integers(1, 6),
    more_batched_tokens=st.integers(0, 40),
    script=st.lists(operations, max_size=80),
)
def test_every_request_gets_exactly_its_tokens_in_order_within_the_limits(
    max_num_seqs: int, more_batched_tokens: int, script: list[tuple[str, int, int]]
) -> None:
    chosen = settings(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + more_batched_tokens)
    engine = Engine(chosen)
    requests: list[Request] = []
    cancelled: set[int] = set()
    finished: set[int] = set()
    admitted: list[int] = []
    got: Counter[int] = Counter()
    prefilled = 0

    def take(step: Step | None) -> bool:
        nonlocal prefilled
        if step is None:
            return False
        prefilled += step.prefill_tokens
        assert 1 <= step.running <= max_num_seqs
        assert engine.running <= max_num_seqs
        assert 1 <= step.decoding + step.prefill_tokens <= chosen.max_num_batched_tokens
        assert step.duration_ns == chosen.step_ns(prefill_tokens=step.prefill_tokens, decoding=step.decoding) > 0
        admitted.extend(request.id for request in step.admitted)
        assert len({request.id for request, _, _ in step.emissions}) == len(step.emissions)
        for request, tokens, last in step.emissions:
            assert request.id not in cancelled | finished
            got[request.id] += tokens
            if last:
                finished.add(request.id)
        return True

    for name, a, b in script:
        if name == "add":
            requests.append(Request(len(requests), a, b))
            engine.add(requests[-1])
        elif name == "step":
            take(engine.step())
        elif engine.cancel(a):
            cancelled.add(a)
    while take(engine.step()):
        pass

    assert finished | cancelled == {request.id for request in requests}
    assert not finished & cancelled
    assert all(got[request.id] == request.output_tokens for request in requests if request.id in finished)
    assert all(got[request.id] < request.output_tokens for request in requests if request.id in cancelled)
    assert admitted == sorted(admitted), "first come, first served"
    assert prefilled == sum(request.prefilled for request in requests)
    assert (engine.running, engine.waiting, engine.held_tokens) == (0, 0, 0)
