"""The options that change a scenario, made from its model; gives a command its checked scenario."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.errors import UsageError
from loadgen.scenario.keys import Key, scenario_keys
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.scenario.refusals import KEY_HINT

NAMES: Mapping[str, tuple[str, ...]] = {
    "name": ("--name", "-e"),
    "target.model": ("--model", "-m"),
    "target.headers": ("--header", "-H"),
    "target.shared": ("--shared-target",),
    "workload.dataset.path": ("--dataset-path",),
    "workload.dataset.format": ("--dataset-format",),
    "workload.dataset.order": ("--dataset-order",),
    "workload.dataset.max_tokens": ("--dataset-max-tokens",),
    "workload.dataset.block_tokens": ("--dataset-block-tokens",),
    "load.duration": ("--duration", "-t"),
    "load.arrival": ("--arrival-pattern",),
    "load.search.min": ("--search-min",),
    "load.search.max": ("--search-max",),
    "load.search.precision": ("--search-precision",),
    "load.search.max_levels": ("--search-max-levels",),
    "soak.window": ("--soak-window",),
    "safety.own_target": ("--i-own-this-target",),
    "safety.max_in_flight": ("--safety-max-in-flight",),
    "safety.period": ("--safety-period",),
    "timeouts.connect": ("--connect-timeout",),
    "timeouts.first_byte": ("--first-byte-timeout",),
    "timeouts.first_token": ("--first-token-timeout",),
    "timeouts.between_tokens": ("--between-tokens-timeout",),
    "timeouts.total": ("--total-timeout",),
    "server.command": ("--serve-cmd",),
    "workers.local": ("--workers",),
    "workers.expect": ("--expect-workers",),
    "workers.bind_host": ("--master-bind-host",),
    "workers.bind_port": ("--master-bind-port",),
    "metrics.host": ("--metrics-host",),
    "metrics.port": ("--metrics-port",),
}
"""Options of the keys for which it is not just the key with dashes."""

ALIASES: Mapping[str, str] = {
    "--experiment-name": "name",
    "--random-seed": "seed",
    "--url": "target.base_url",
    "--endpoint-type": "target.endpoint",
    "--ready-check-timeout-sec": "target.ready_timeout",
    "--isl": "workload.input_tokens",
    "--prompt-input-tokens-mean": "workload.input_tokens",
    "--synthetic-input-tokens-mean": "workload.input_tokens",
    "--input-len": "workload.input_tokens",
    "--random-input-len": "workload.input_tokens",
    "--osl": "workload.output_tokens",
    "--prompt-output-tokens-mean": "workload.output_tokens",
    "--output-tokens-mean": "workload.output_tokens",
    "--output-len": "workload.output_tokens",
    "--random-output-len": "workload.output_tokens",
    "--isl-stddev": "workload.input_stddev",
    "--prompt-input-tokens-stddev": "workload.input_stddev",
    "--synthetic-input-tokens-stddev": "workload.input_stddev",
    "--osl-stddev": "workload.output_stddev",
    "--prompt-output-tokens-stddev": "workload.output_stddev",
    "--output-tokens-stddev": "workload.output_stddev",
    "--processor": "workload.tokenizer",
    "--tokenizer-path": "workload.tokenizer",
    "--random-range-ratio": "workload.range_ratio",
    "--conversation-turn-mean": "workload.turns",
    "--input-file": "workload.dataset.path",
    "--dataset-name": "workload.dataset.format",
    "--custom-dataset-type": "workload.dataset.format",
    "--max-concurrency": "load.concurrency",
    "--rate": "load.request_rate",
    "--qps": "load.request_rate",
    "--arrival": "load.arrival",
    "--replay": "load.replay_speed",
    "--replay-speedup": "load.replay_speed",
    "--arrival-smoothness": "load.burstiness",
    "--warmup-duration": "load.warmup",
    "--run-time": "load.duration",
    "--benchmark-duration": "load.duration",
    "--request-timeout-seconds": "timeouts.total",
}
"""Names that people bring from other tools, and the key that each one sets."""

SLO_OPTION = "--slo"

SERVER_OPTIONS = frozenset(
    {
        *("max_num_seqs", "max_num_batched_tokens", "max_model_len"),
        *("step_overhead_ms", "prefill_time_per_token_ms", "decode_base_ms", "decode_time_per_seq_ms"),
    }
)
"""Settings of the server that have an option of their own; `--sweep` and `--set` set any."""

_PANELS = {"": "Scenario", "slo": "Service-level objectives", "workload.dataset": "Dataset", "load.search": "Search"}


def option_names(key: Key) -> tuple[str, ...]:
    """The options that set `key`; none for a limit of `slo` and most settings of the server, which `--set` sets."""
    if key.section == "slo" or (key.section == "server" and key.leaf not in SERVER_OPTIONS and key.path not in NAMES):
        return ()
    return NAMES.get(key.path, (f"--{key.leaf.replace('_', '-')}",))


def aliases(key: Key) -> list[str]:
    """What other tools call the option of `key`."""
    return [alias for alias, path in ALIASES.items() if path == key.path]


def scenario_parameters() -> list[inspect.Parameter]:
    """The parameters of a command that takes a scenario: SCENARIO, `--config`, `--set` and an option for each key."""
    files = [
        _parameter(
            "scenario_file", Path, typer.Argument(metavar="SCENARIO", help="YAML file; without one, the defaults.")
        ),
        _parameter("config", Path, typer.Option("--config", "-c", metavar="SCENARIO", help="The same as SCENARIO.")),
        _parameter(
            "sets",
            list[str],
            typer.Option("--set", metavar="KEY=VALUE", help="Set any key, such as load.warmup=2s; may be repeated."),
        ),
        _parameter(
            "sweeps",
            list[str],
            typer.Option(
                "--sweep",
                metavar="KEY=VALUES",
                help="Sweep a setting of the server, such as max_num_seqs=2,4,8; may be repeated.",
            ),
        ),
        _parameter("api_key", str, typer.Option("--api-key", hidden=True, callback=_refuse_api_key)),
    ]
    keys = [
        _parameter(_identifier(option_names(key)[0]), _kind(key), _option(key))
        for key in scenario_keys().values()
        if option_names(key)
    ]
    slo = typer.Option(
        SLO_OPTION,
        metavar="CONDITIONS",
        help="Limits in place of the scenario's, such as 'ttft_p95<500ms,tpot_p95<50ms,error_rate<1%'.",
        rich_help_panel=_PANELS["slo"],
    )
    # An option each, so that it is known which was written; hidden, since the help of the own option names them.
    other_names = [_parameter(_identifier(alias), str, typer.Option(alias, hidden=True)) for alias in ALIASES]
    return [*files, *keys, _parameter("slo", str, slo), *other_names]


def _parameter(name: str, kind: Any, info: Any) -> inspect.Parameter:
    # Not given is None, never a default: only what was written overrides the environment and the file.
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _kind(key: Key) -> Any:
    if not key.metavar:
        return bool
    return list[str] if key.repeatable else str


def _identifier(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _option(key: Key) -> Any:
    names = option_names(key)
    if not key.metavar:
        names = (f"{names[0]}/--no-{names[0].removeprefix('--')}",)
    notes = [f"default {key.default}"] if key.default != "null" else []
    notes += ["may be repeated"] if key.repeatable else []
    notes += [f"also {', '.join(aliases(key))}"] if aliases(key) else []
    return typer.Option(
        *names,
        metavar=key.metavar or None,
        help=key.description + (f" ({'; '.join(notes)})" if notes else ""),
        rich_help_panel=_PANELS.get(key.section, key.section.capitalize()),
        show_default=False,
    )


def _refuse_api_key(value: str | None) -> None:
    if value is not None:
        raise UsageError(
            "An API key does not belong on a command line, where every user of the host can read it.", hint=KEY_HINT
        )


def scenario_from(values: Mapping[str, Any]) -> Scenario:
    """The scenario that the parameters of `scenario_parameters` ask for, over the environment's and the file's values.

    `values`: by name of the parameter, None where it was not given. Raises ScenarioError or UsageError.
    """
    path, config = values.get("scenario_file"), values.get("config")
    if path is not None and config is not None:
        raise UsageError(f"Both {path} and --config {config} are given.", hint="Give one scenario.")
    options: dict[str, Any] = {}
    names: dict[str, str] = {}
    for option, key_path in _options():
        value = values.get(_identifier(option))
        if value is None or (isinstance(value, list | tuple) and not value):
            continue
        if key_path in options:
            raise UsageError(
                f"Both {names[key_path]} and {option} are given, and they mean the same.", hint="Keep one."
            )
        options[key_path], names[key_path] = value, option
    return load_scenario(
        path or config,
        sets=[*(values.get("sets") or ()), *_sweeps(values.get("sweeps") or ())],
        options=options,
        option_names=names,
        env=os.environ,
    )


def _sweeps(texts: Sequence[str]) -> list[str]:
    """`max_num_seqs=2,4` as the `--set` that it stands for."""
    return [text if text.startswith("server.") else f"server.{text}" for text in texts]


def _options() -> list[tuple[str, str]]:
    """Every option and the path of the key that it sets."""
    own = [(option_names(key)[0], key.path) for key in scenario_keys().values() if option_names(key)]
    return [*own, (SLO_OPTION, "slo"), *ALIASES.items()]


def _scenario_of(run: Path) -> Path:
    path = run / "scenario.yaml"
    if not path.is_file():
        raise UsageError(
            f"{run} is not a run folder: it has no {path.name}.",
            hint="Give the path that `loadgen run` printed as its last line.",
        )
    return path


def scenario_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives `command(scenario, …)` the options of a scenario on the command line, beside those of its other parameters.

    The other parameters are keywords with typer's annotations. Raises ScenarioError or UsageError before `command` runs.
    """
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "scenario"
    ]

    def with_scenario(**values: Any) -> Any:
        run = values.get("resume")  # of a command that goes on with a run: without a scenario it takes the run's
        if run is not None and values.get("scenario_file") is None and values.get("config") is None:
            values["scenario_file"] = _scenario_of(run)
        return command(scenario=scenario_from(values), **{parameter.name: values[parameter.name] for parameter in own})

    shown = scenario_parameters()
    with_scenario.__name__ = command.__name__
    with_scenario.__doc__ = command.__doc__
    with_scenario.__annotations__ = {}
    # typer reads the parameters from here.
    with_scenario.__dict__["__signature__"] = inspect.Signature([*shown[:4], *own, *shown[4:]])
    return with_scenario
