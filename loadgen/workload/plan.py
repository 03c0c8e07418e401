"""From the workload section of a scenario to the workload itself: reads its files, refuses what cannot be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.prompts.pool import check_exact, make_recipe
from loadgen.prompts.recipe import PromptRecipe
from loadgen.prompts.tokenizers import TokenCounter
from loadgen.scenario.model import Scenario
from loadgen.scenario.request_rules import forces, streams
from loadgen.scenario.requests_section import Requests
from loadgen.scenario.turns_section import RequestsInTurns
from loadgen.scenario.workload import RequestClass as AskedClass
from loadgen.scenario.workload import path_of
from loadgen.workload.lengths_file import read_lengths
from loadgen.workload.plan_turns import in_turns, refuse_long_conversation
from loadgen.workload.request_class import Independent, LengthPairs, Prefixes, RequestClass
from loadgen.workload.synthetic import SyntheticWorkload

SAMPLES = 8
"""Finished prompts of each class that are counted whole before a workload is handed out."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model beside the first one."""

    counter: TokenCounter
    """Who counts its prompts."""
    max_model_len: int | None


def plan_workload(
    scenario: Scenario,
    counter: TokenCounter,
    *,
    model: str,
    max_model_len: int | None,
    base_url: str,
    others: Mapping[str, ServedModel] | None = None,
) -> SyntheticWorkload:
    """The workload of a scenario, its prompts counted by `counter`; the server takes `continuous_usage`. `others` are the
    models beside `model` that its classes name.

    Raises UsageError when a file of lengths is wrong, and when a request would be longer than `max_model_len`;
    `PromptError` when a prompt cannot be made exact.
    """
    assert scenario.seed is not None, "the seed is drawn before the workload is planned"
    asked = scenario.workload
    kinds = [(one, _lengths_of(one)) for one in asked.kinds()]
    first, named = ServedModel(counter, max_model_len), others or {}
    served = [named.get(_model_of(one) or model, first) for one, _ in kinds]
    for (one, lengths), by in zip(kinds, served, strict=True):
        who = f"{base_url} serves {_model_of(one) or model!r}"
        _refuse_too_long(path_of(one), lengths, by.max_model_len, who)
        refuse_long_conversation(one, by.max_model_len, who)
    endpoint = scenario.target.endpoint
    counters = dict.fromkeys([counter, *(by.counter for by in served)])
    recipes = {
        one: make_recipe(one, endpoint=endpoint, seed=scenario.seed, prompt_set=asked.prompt_set) for one in counters
    }
    recipe = recipes[counter]
    workload = SyntheticWorkload(
        recipe=recipe,
        classes=tuple(
            _class_of(scenario, one, lengths, recipes[by.counter], recipe)
            for (one, lengths), by in zip(kinds, served, strict=True)
        ),
        model=model,
        ignore_eos=asked.ignore_eos,
        continuous_usage=True,
    )
    for kind, prompts in _samples(workload).items():
        check_exact(served[kind].counter, endpoint=endpoint, prompts=prompts)
    return in_turns(workload, asked.kinds(), [by.counter for by in served], scenario.load.think_time)


def _model_of(one: Requests) -> str | None:
    return one.model if isinstance(one, AskedClass) else None


def _lengths_of(one: Requests) -> LengthPairs:
    lengths = one.lengths()
    if lengths is not None:
        return Independent(*lengths)
    assert one.lengths_file is not None
    return read_lengths(Path(one.lengths_file))


def _refuse_too_long(path: str, lengths: LengthPairs, max_model_len: int | None, who: str) -> None:
    input_tokens, output_tokens = lengths.longest
    needed = input_tokens + output_tokens
    if max_model_len is None or needed <= max_model_len:
        return
    raise UsageError(
        f"{path}input_tokens + {path}output_tokens is up to {input_tokens} + {output_tokens} = {needed}, more than the "
        f"{max_model_len} tokens of max_model_len that {who} with.",
        hint=f"shorten one of them by {needed - max_model_len} tokens, or give its distribution a max; without one it ends "
        "six standard deviations above the mean",
    )


def _class_of(
    scenario: Scenario, one: RequestsInTurns, lengths: LengthPairs, recipe: PromptRecipe, first: PromptRecipe
) -> RequestClass:
    """`recipe`: of the class's model; `first`: of the workload's."""
    prefixes = Prefixes(one.shared_prefix_tokens)
    if one.prefixes is not None:
        prefixes = Prefixes(one.prefixes.tokens, one.prefixes.count, one.prefixes.zipf)
    least = recipe.least_tokens(prefixes.tokens)
    if isinstance(lengths, Independent):
        # Without a bound of its own a distribution begins where prompts can be told apart.
        lengths = Independent(lengths.input_tokens.at_least(least), lengths.output_tokens)
    recipe.check_length(lengths.shortest_input, prefix_tokens=prefixes.tokens, key=f"{path_of(one)}input_tokens")
    name, share = (one.name, one.share) if isinstance(one, AskedClass) else ("all", 1.0)
    return RequestClass(
        name,
        share,
        lengths,
        prefixes,
        {**scenario.workload.extra_body, **one.extra_body},
        model=_model_of(one),
        stream=streams(scenario.target, one),
        ignore_eos=forces(scenario.workload, one),
        recipe=None if recipe == first else recipe,
    )


def _samples(workload: SyntheticWorkload) -> dict[int, list[tuple[str, int]]]:
    """Prompts of every class, each with its tokens, from levels and numbers of all sizes."""
    found: dict[int, list[tuple[str, int]]] = {}
    for number in range(64 * SAMPLES * len(workload.classes)):
        kind, text, input_tokens = workload.prompt(number % 4095, number * 997)
        if len(of_kind := found.setdefault(kind, [])) < SAMPLES:
            of_kind.append((text, input_tokens))
        if len(found) == len(workload.classes) and all(len(one) == SAMPLES for one in found.values()):
            break
    return found
