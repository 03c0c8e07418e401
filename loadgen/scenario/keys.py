"""The flat list of a scenario's keys, read off the model: options, variables and documents are made from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args

from pydantic.fields import FieldInfo

from loadgen.scenario.model import Scenario
from loadgen.scenario.quantities import Kind
from loadgen.scenario.section import Section
from loadgen.scenario.server import ServerSection, ServerSettings

ENV_PREFIX = "LOADGEN_"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a scenario."""

    path: str
    """`load.concurrency`, `workload.dataset.path`, or `seed` at the top."""
    metavar: str
    """How its value is written, e.g. `DURATION`; empty for a flag."""
    repeatable: bool
    """Whether its option may be given several times."""
    nullable: bool
    default: str
    """The default as people write it in YAML."""
    description: str

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return ENV_PREFIX + self.path.upper().replace(".", "_")


def section_models() -> dict[str, type[Section]]:
    """The sections by path, in the order of the model; a section in a section comes after it."""
    return _sections_in(Scenario, "")


def _sections_in(model: type[Section], prefix: str) -> dict[str, type[Section]]:
    found: dict[str, type[Section]] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            # Of the two kinds of server, the one whose settings have names of their own.
            section = ServerSettings if field.annotation is ServerSection else field.annotation
            found[prefix + name] = section
            found |= _sections_in(section, f"{prefix}{name}.")
    return found


@cache
def scenario_keys() -> Mapping[str, Key]:
    """Every key by its path, in the order of the model."""
    sections = section_models()
    keys: dict[str, Key] = {}
    plain = {name: field for name, field in Scenario.model_fields.items() if name not in sections}
    keys.update({name: _key(name, field, _written(Scenario(), name)) for name, field in plain.items()})
    for section, model in sections.items():
        for name, field in model.model_fields.items():
            path = f"{section}.{name}"
            if path not in sections:
                keys[path] = _key(path, field, _written(model(), name))
    return keys


def _key(path: str, field: FieldInfo, default: str) -> Key:
    kinds = [mark for mark in (*field.metadata, *_marks(field.annotation)) if isinstance(mark, Kind)]
    if not kinds and field.annotation is not bool:
        raise TypeError(f"{path} has no Kind, so nothing says how it is written")
    return Key(
        path=path,
        # The outermost mark is the nearest to what people write: a sweep of counts, not one count.
        metavar=kinds[0].metavar if kinds else "",
        repeatable=bool(kinds) and kinds[0].repeatable,
        nullable=NoneType in get_args(field.annotation),
        default=default,
        description=field.description or "",
    )


def _marks(annotation: Any) -> Iterator[Any]:
    """Everything inside `Annotated[…]`, however deep."""
    yield from getattr(annotation, "__metadata__", ())
    for argument in get_args(annotation):
        yield from _marks(argument)


def _written(section: Section, name: str) -> str:
    value = section.model_dump(mode="json", include={name})[name]
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
