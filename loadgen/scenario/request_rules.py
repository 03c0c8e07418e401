"""Rules about what a scenario's requests ask for: raises ValueError for what no server can give, and says what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loadgen.scenario.slo import Slo
from loadgen.scenario.target import Target
from loadgen.scenario.workload import RequestClass, Workload, path_of
from loadgen.wire.request import structure_in

_OF_A_STREAM = ("ttft", "ttfo", "itl", "tpot")
"""Latencies that only a stream has."""


def check_requests(target: Target, workload: Workload, slo: Slo) -> None:
    """Raises ValueError, whose sentence names the keys."""
    for path, one, extra_body in _kinds(workload):
        if target.endpoint == "completions" and (tools := sorted({"tools", "tool_choice"} & set(extra_body))):
            raise ValueError(
                f"{path}extra_body has {tools[0]}, which /v1/completions does not take: set target.endpoint to chat."
            )
        if workload.dataset.path is None:  # else its rows may have the tools
            _check_choice(path, extra_body)
        structure = structure_in(extra_body)
        if structure is not None and forces(workload, one):
            raise ValueError(
                f"{path}extra_body has {structure}, so an answer ends where its form is complete, and workload.ignore_eos "
                "would force it to go on: servers then write outside of the form, or fail. Set ignore_eos to false; answers "
                "then have the length that the model gives them, output_tokens at most."
            )
    if workload.models and target.model is not None:
        raise ValueError("workload.models says which models are asked, so target.model has no effect: keep one.")
    if not any_streams(target, workload):
        unknown = [one.name for one in slo.objectives() if one.metric in _OF_A_STREAM]
        if unknown:
            raise ValueError(
                f"Without target.stream answers come whole and have no first token, so slo.{unknown[0]} cannot be judged: "
                "limit e2el instead, or ask for streams."
            )


def _check_choice(path: str, extra_body: Mapping[str, Any]) -> None:
    """Raises ValueError for a `tool_choice` that chooses none of the tools."""
    choice = extra_body.get("tool_choice")
    if choice is None or choice == "none":
        return
    names = [tool["function"]["name"] for tool in extra_body.get("tools") or ()]
    if not names:
        raise ValueError(f"{path}extra_body has tool_choice, and no tools to choose from.")
    if isinstance(choice, Mapping):
        function = choice.get("function")
        wanted = function.get("name") if isinstance(function, Mapping) else None
        if wanted not in names:
            raise ValueError(
                f"{path}extra_body: tool_choice names the function {wanted!r}, and the tools are {', '.join(names)}."
            )
    elif choice not in ("auto", "required"):
        raise ValueError(
            f"{path}extra_body: tool_choice is none, auto, required, or {{type: function, function: {{name: …}}}}."
        )


def any_streams(target: Target, workload: Workload) -> bool:
    """Whether any answer is asked for as a stream."""
    return any(streams(target, one) for one in workload.kinds())


def streams(target: Target, one: Any) -> bool:
    """Whether answers to one of `workload.kinds()` are asked for as streams: as it says itself, else as the target."""
    own = one.stream if isinstance(one, RequestClass) else None
    return target.stream if own is None else own


def forces(workload: Workload, one: Any) -> bool:
    """Whether answers to one of `workload.kinds()` are made exactly as long as asked."""
    own = one.ignore_eos if isinstance(one, RequestClass) else None
    return workload.ignore_eos if own is None else own


def _kinds(workload: Workload) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """(path of its keys, the class, the further keys of its bodies) of each class; a workload without any is its own."""
    for one in workload.kinds():
        yield path_of(one), one, {**workload.extra_body, **one.extra_body}
