"""Settings of a server that we start, each a value or a sweep; which ones there are depends on the server. Starts nothing."""

from __future__ import annotations

import abc
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

import yaml
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)

from loadgen.scenario.quantities import Kind, Text, format_sweep, not_a_flag, parse_sweep
from loadgen.scenario.section import Section
from server.simulator.settings import SimulatorSettings

VLLM_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
"""What a flag of vLLM is called as a key; dashes stand for underscores."""


def _parsed(value: object) -> object:
    """Text from the command line as the YAML that it is."""
    if isinstance(value, str):
        try:
            return yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError("That is not YAML.") from None
    return value


def _texts(value: object) -> object:
    value = _parsed(value)
    if isinstance(value, Mapping):
        return {str(key): "1" if one is True else "0" if one is False else str(one) for key, one in value.items()}
    return value


Environment = Annotated[dict[str, str], BeforeValidator(_texts), Kind("{NAME: VALUE}")]
KeyGroups = Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_parsed), Kind("[[KEY,KEY…],…]")]
Combinations = Annotated[tuple[dict[str, Any], ...], BeforeValidator(_parsed), Kind("[{KEY: VALUE},…]")]


class ServerSection(Section):
    """Settings of a server that we start. A list is swept, outside of the sweep of the load.

    The named ones are the simulator's. With `target.server: vllm` any flag of vLLM is a key, see [vllm.md](vllm.md).
    """

    linked: KeyGroups = Field(
        (), description="Groups of settings that are swept together, such as [[max_num_seqs, max_num_batched_tokens]]."
    )
    exclude: Combinations = Field(
        (), description="Combinations that are left out of the sweep, such as [{max_num_seqs: 256, dtype: float32}]."
    )
    command: Text | None = Field(
        None,
        description="vLLM: how you start it, such as `docker run … {args}`; null is vLLM's own command.",
    )
    stop_command: Text | None = Field(
        None, description="vLLM: what ends it where signals do not reach it, such as `docker stop loadgen-{port}`."
    )
    python: Text | None = Field(
        None, description="vLLM: python of the environment that has it; null takes the vllm of the PATH."
    )
    url: Text | None = Field(
        None, description="vLLM: where it answers, such as http://gpu-box:{port}; null is its port on this host."
    )
    env: Environment = Field(
        default_factory=dict, description="vLLM: variables set for it, such as {CUDA_VISIBLE_DEVICES: '0'}."
    )

    @abc.abstractmethod
    def sweeps(self) -> dict[str, tuple[Any, ...]]:
        """The values of every setting of the server, by key, in the order of the sweep."""

    def combinations(self) -> list[dict[str, Any]]:
        """One dictionary of settings for each step of the sweep; the key that comes first varies slowest."""
        sweeps = self.sweeps()
        groups: list[list[dict[str, Any]]] = []
        done: set[str] = set()
        for key in sweeps:
            if key in done:
                continue
            together = next((group for group in self.linked if key in group), (key,))
            done.update(together)
            steps = max(len(sweeps[one]) for one in together)
            groups.append(
                [{one: sweeps[one][step if len(sweeps[one]) > 1 else 0] for one in together} for step in range(steps)]
            )
        every = [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*groups)]
        kept = [one for one in every if not any(_matches(one, left_out) for left_out in self.exclude)]
        return [{key: one[key] for key in sweeps} for one in kept]

    @model_validator(mode="after")
    def _links_and_exclusions_name_settings(self) -> Self:
        sweeps = self.sweeps()
        named = [key for group in self.linked for key in group]
        for key in [*named, *(key for left_out in self.exclude for key in left_out)]:
            if key not in sweeps:
                raise ValueError(f"server.linked or server.exclude names {key}, which is no setting of this server.")
        if len(named) != len(set(named)):
            raise ValueError("server.linked names a setting twice.")
        for group in self.linked:
            lengths = {len(sweeps[key]) for key in group} - {1}
            if len(lengths) > 1:
                told = ", ".join(f"{key} has {len(sweeps[key])}" for key in group)
                raise ValueError(f"server.linked needs lists of one length: {told}.")
        if not self.combinations():
            raise ValueError("server.exclude leaves out every combination.")
        return self


def _matches(settings: Mapping[str, Any], left_out: Mapping[str, Any]) -> bool:
    return bool(left_out) and all(
        settings[key] in (value if isinstance(value, list | tuple) else [value]) for key, value in left_out.items()
    )


_SECRET_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
_SECRET_WORD = re.compile(r"\b(hf|sk)[-_][A-Za-z0-9]{8,}|(KEY|TOKEN|SECRET|PASSWORD)=\S")
_LAUNCHER = ("command", "stop_command", "python", "url", "env")


class _OfSimulator(ServerSection):
    def sweeps(self) -> dict[str, tuple[Any, ...]]:
        return {name: value if isinstance(value := getattr(self, name), tuple) else (value,) for name in SIMULATOR_KEYS}

    @model_validator(mode="after")
    def _simulator_takes_them(self) -> Self:
        if extra := [key for key in _LAUNCHER if key in self.model_fields_set and getattr(self, key)]:
            raise ValueError(
                f"The simulator is started by loadgen itself, so server.{extra[0]} has no effect without target.server: vllm."
            )
        for settings in self.combinations():
            try:
                SimulatorSettings(**settings)
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"The simulator cannot run so: {reason}.") from None
        return self


_NOT_OF_CAPACITY = ("served_model_name", "seed", "stream")
SIMULATOR_KEYS = tuple(name for name in SimulatorSettings.model_fields if name not in _NOT_OF_CAPACITY)
_FLAGS_TOO = frozenset(
    {
        *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_chunked_prefill", "stream_interval"),
        *("block_size", "num_gpu_blocks_override", "enable_prefix_caching", "tensor_parallel_size"),
        *("gpu_memory_utilization", "quantization", "kv_cache_dtype"),
    }
)
SIMULATOR_ONLY = frozenset(SIMULATOR_KEYS) - _FLAGS_TOO
"""Settings that say how the simulator behaves and are no flag of vLLM."""
_HOLD_COMMAS = ("faults",)
_METAVARS = {bool: "BOOL", int: "INT", float: "NUMBER", str: "TEXT"}


def _field(name: str) -> Any:
    """A field of the section for one of the simulator's: its type, or a sweep of it, and its default."""
    of_simulator = SimulatorSettings.model_fields[name]
    description = of_simulator.description
    kinds = [one for one in (get_args(of_simulator.annotation) or (of_simulator.annotation,)) if one is not type(None)]
    metavar = next((_METAVARS[kind] for kind in kinds if kind in _METAVARS), "TEXT")
    if any(kind not in _METAVARS and not isinstance(kind, str) for kind in kinds):  # no plain value: it is not swept
        whole: Any = Annotated[of_simulator.annotation, *of_simulator.metadata, BeforeValidator(_parsed), Kind("YAML")]
        return (whole, Field(of_simulator.get_default(call_default_factory=True), description=description))
    item: Any = Annotated[of_simulator.annotation, *of_simulator.metadata, Kind(metavar)]
    schema = TypeAdapter(item).json_schema()
    if bool not in kinds:
        item = Annotated[item, BeforeValidator(not_a_flag)]
    swept: Any = Annotated[
        tuple[item, ...],
        BeforeValidator(_parse_texts if name in _HOLD_COMMAS else _parse_values),
        PlainSerializer(format_sweep),
        WithJsonSchema({"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}),
        Kind(f"{metavar}[,{metavar}…]"),
    ]
    return (swept, Field((of_simulator.default,), description=description))


def _parse_texts(value: object) -> Sequence[Any]:
    """The same for texts that hold commas: only a list has several."""
    return parse_sweep([value] if isinstance(value, str) and not value.lstrip().startswith("[") else value)


def _parse_values(value: object) -> Sequence[Any]:
    """A sweep in which `none` and `null` are no value."""
    return [None if str(one).lower() in ("none", "null") else one for one in parse_sweep(value)]


if TYPE_CHECKING:

    class ServerSettings(_OfSimulator):
        """The simulator's settings, as they are declared in `server.simulator.settings`."""
else:
    # Made from the simulator's own settings, so that a new one is a key of a scenario at once.
    ServerSettings = create_model(
        "ServerSettings",
        __base__=_OfSimulator,
        __doc__=ServerSection.__doc__,
        **{name: _field(name) for name in SIMULATOR_KEYS},
    )


class VllmSettings(ServerSection):
    """Any flag of vLLM as a key; a list is swept, and a list in it is one value of several words."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _flags_can_be_given_so(cls, data: Any) -> Any:
        """With dashes as underscores."""
        if not isinstance(data, dict):
            return data
        renamed: dict[str, Any] = {}
        for key, value in data.items():
            name = str(key).replace("-", "_")
            if name in renamed:
                raise ValueError(f"server.{name} is given twice, with and without dashes.")
            if value == [] and name not in ServerSection.model_fields:
                raise ValueError(f"server.{name} is an empty list and needs at least one value.")
            if name in ("host", "port") and isinstance(value, list):
                raise ValueError(f"server.{name} is a place, not a setting, and cannot be swept.")
            renamed[name] = value
        return renamed

    @field_validator("command", "stop_command")
    @classmethod
    def _no_secret_words(cls, command: str | None) -> str | None:
        if command is not None and _SECRET_WORD.search(command):
            raise ValueError(
                "The command holds what looks like a secret, and a scenario is written to the run folder: export it before "
                "loadgen starts, which hands its environment on (docker run -e HF_TOKEN)."
            )
        return command

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if _SECRET_VARIABLE.search(name):
                raise ValueError(
                    f"server.env.{name} looks like a secret, and a scenario is written to the run folder: export {name} "
                    "before loadgen starts, which hands its environment on."
                )
        return env

    def sweeps(self) -> dict[str, tuple[Any, ...]]:
        return {
            key: tuple(value) if isinstance(value, list | tuple) else (value,)
            for key, value in (self.model_extra or {}).items()
        }


def from_command_line(text: str) -> Any:
    """The value of a vLLM flag as people write it on the command line: `2,4,8`, `true`, `{"a": 1}`, `none`.

    Commas separate the values of a sweep, except inside of brackets.
    """
    stripped = text.strip()
    if stripped.startswith(("{", "[", '"', "'")):
        try:
            return yaml.safe_load(stripped)
        except yaml.YAMLError:
            return text
    values = [_scalar(part.strip()) for part in stripped.split(",")]
    return values if len(values) > 1 else values[0]


def _scalar(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    try:
        return json.loads(text)  # numbers and true or false; YAML would take 1e5 and on for others
    except ValueError:
        return text
