"""A workload on its way to the workers: plain data with the name of its kind, there and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from loadgen.datasets.workload import DatasetWorkload
from loadgen.locustfile.workload import TaskWorkload
from loadgen.workload.planned import PlannedRequest
from loadgen.workload.sessions import SessionWorkload
from loadgen.workload.synthetic import SyntheticWorkload


class CarriedWorkload(Protocol):
    """A workload that can travel."""

    def build(self, level: int, k: int) -> PlannedRequest:
        """As `loadgen.workload.planned.Workload`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON and msgpack carry."""


_KINDS: Mapping[str, Any] = {
    "synthetic": SyntheticWorkload,
    "sessions": SessionWorkload,
    "dataset": DatasetWorkload,
    "tasks": TaskWorkload,
}


def to_carry(workload: CarriedWorkload | TaskWorkload) -> dict[str, Any]:
    """What `carried` makes the workload of again."""
    name = next(name for name, kind in _KINDS.items() if type(workload) is kind)
    return {"kind": name, **workload.to_dict()}


def carried(data: Mapping[str, Any]) -> CarriedWorkload:
    """The workload that `to_carry` described."""
    workload: CarriedWorkload = _KINDS[data["kind"]].from_dict(data)
    return workload
