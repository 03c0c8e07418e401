"""Options of a locustfile's run, beside Locust's own: adds them to its parser, and makes the run's scenario of them.

Each sets one key of a scenario, as the environment variable of that key does (`LOADGEN_SLO`); any other key that has a meaning
here is set with `--loadgen-set` or its variable. `--host`, `--users` and `--run-time` are Locust's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.scenario.model import Scenario

OPTIONS: Mapping[str, tuple[str, str, bool]] = {
    "--loadgen-model": ("target.model", "Name of the model; without it the server is asked.", True),
    "--loadgen-endpoint": ("target.endpoint", "API to load: chat or completions.", False),
    "--loadgen-tokenizer": (
        "workload.tokenizer",
        "Name or folder of a Hugging Face tokenizer; without it the server's /tokenize counts.",
        False,
    ),
    "--loadgen-slo": ("slo", "Limits, such as 'ttft_p95<500ms,error_rate<1%%'.", True),
    "--loadgen-warmup": ("load.warmup", "Time left out after all users were spawned; 0s without it.", True),
    "--loadgen-drain-timeout": (
        "load.drain_timeout",
        "How long the last requests may take to end when the test is stopped.",
        False,
    ),
    "--loadgen-metrics-port": ("metrics.port", "Port of /metrics, or off.", False),
    "--loadgen-seed": ("seed", "Seed of the prompts and of open-loop arrivals.", False),
}
"""Each option with its key, its help, and whether the web UI shows it."""

OUTPUT_DIR = "--loadgen-output-dir"
SET = "--loadgen-set"

_HAVE_A_MEANING = re.compile(
    r"name|seed|slo(\..*)?|timeouts\..*|metrics\..*|target\.(?!server$|base_url$).*|workload\.(tokenizer|prompt_set)"
    r"|load\.(warmup|drain_timeout)"
)


def add_options(parser: Any) -> None:
    """Adds them to Locust's parser."""
    for option, (path, text, shown) in OPTIONS.items():
        variable = f"LOADGEN_{path.upper().replace('.', '_')}"
        parser.add_argument(option, default=None, help=f"{text} (or {variable})", include_in_web_ui=shown)
    parser.add_argument(
        OUTPUT_DIR,
        default=None,
        metavar="DIR",
        help="Folder of the run; without it runs/NAME/TIME. Must be empty.",
        include_in_web_ui=False,
    )
    parser.add_argument(
        SET,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Set any other key of a scenario that has a meaning here, such as timeouts.total=30s; may be repeated.",
        include_in_web_ui=False,
    )


def scenario_of(
    options: Any, *, host: str | None, locustfile: str, concurrency: int | None, request_rate: float | None
) -> Scenario:
    """What a run with these options of Locust asks for, with a seed. Raises UsageError or ScenarioError.

    One of `concurrency` and `request_rate` says how much load there is.
    """
    from loadgen.scenario.load import load_scenario  # workers add the options too, and never come here

    if not host:
        raise UsageError(
            "No target is given.", hint="name it with --host, such as http://127.0.0.1:8000, or as the class's host"
        )
    given: dict[str, Any] = {"target.base_url": host}
    names = {"target.base_url": "--host"}
    for option, (path, _, _) in OPTIONS.items():
        value = getattr(options, _attribute(option), None)
        if value not in (None, ""):  # the web UI sends an empty text for what was left out
            given[path], names[path] = value, option
    if concurrency is not None:
        given["load.concurrency"], names["load.concurrency"] = concurrency, "--users"
    else:
        given["load.request_rate"], names["load.request_rate"] = request_rate, "request_rate"
    sets = list(getattr(options, _attribute(SET), None) or [])
    for text in sets:
        key = text.partition("=")[0].strip()
        if not _HAVE_A_MEANING.fullmatch(key):
            raise UsageError(
                f"{SET} {text}: {key} has no effect on a locustfile, whose tasks and options say that.",
                hint="what is sent stands in the tasks, and how many users there are in --users or a shape",
            )
    scenario = load_scenario(sets=sets, options=given, option_names=names, env=_environment())
    changed: dict[str, Any] = {}
    if "name" not in scenario.model_fields_set:
        changed["name"] = _name_of(locustfile)
    if scenario.load.warmup is None:  # Locust goes by the clock, whether the load is steady or not
        changed["load"] = scenario.load.model_copy(update={"warmup": 0.0})
    return scenario.model_copy(update=changed).with_seed()


def output_dir_of(options: Any) -> Path | None:
    """Where the run is to be kept; None for a folder of its own under `runs`."""
    value = getattr(options, _attribute(OUTPUT_DIR), None)
    return Path(value) if value else None


def _environment() -> dict[str, str]:
    """The variables, without those whose keys a locustfile says itself."""
    load = re.compile(
        r"LOADGEN_(LOAD_(?!WARMUP$|DRAIN_TIMEOUT$).*|WORKLOAD_(?!TOKENIZER$|PROMPT_SET$).*|TARGET_SERVER)"
    )
    return {name: value for name, value in os.environ.items() if not load.fullmatch(name)}


def _attribute(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _name_of(locustfile: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", Path(locustfile).stem).lstrip("._-")
    return name[:100] or "locustfile"
