"""`loadgen serve …`: starts a server to measure against; its options are made from the settings of the simulator."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from loadgen.cli.serve_vllm import OPTIONS_OF_VLLM, vllm
from loadgen.errors import UsageError
from server.simulator.settings import SimulatorSettings

app = typer.Typer(no_args_is_help=True, help="Start a server to measure against.")


@app.callback()
def _serve() -> None:
    """Keeps `sim` a command of its own while it is the only one."""


def sim(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer folder; the simulator's own by default.")] = None,
    truth: Annotated[Path | None, typer.Option(help="File for the true instants of every token.")] = None,
    die_with_parent: Annotated[int | None, typer.Option(hidden=True, metavar="PID")] = None,
    **chosen: Any,
) -> None:
    """Simulate a vLLM server: its API, its batching and its /metrics, with step times that you set.

    SIM_API_KEY in the environment, if set, is the key that clients must present.
    """
    if die_with_parent is not None:
        _tie_to_parent(die_with_parent)
    from server.simulator.serve import StartError, run
    from server.simulator.tokenizer import folder

    try:
        settings = SimulatorSettings(**chosen)
    except ValidationError as error:
        raise UsageError(_mistakes(error.errors()), hint="loadgen serve sim --help shows every default.") from None
    try:
        run(
            settings,
            host=host,
            port=port,
            tokenizer=tokenizer or folder(),
            truth=truth,
            api_key=os.environ.get("SIM_API_KEY") or None,
            restart_command=[sys.executable, *sys.orig_argv[1:]],
        )
    except StartError as error:
        raise UsageError(str(error), hint=error.hint) from error


def _setting(name: str, field: FieldInfo) -> inspect.Parameter:
    """The option of a setting: its name with dashes, its description, its default."""
    kind: Any = get_type_hints(SimulatorSettings)[name]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=Annotated[kind, typer.Option(help=field.description)],
    )


def _with_settings(command: Any) -> Any:
    """`command` with an option for each setting in the place of its `**chosen`."""
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    settings = [_setting(name, field) for name, field in SimulatorSettings.model_fields.items()]

    def with_settings(**values: Any) -> None:
        command(**values)

    with_settings.__name__, with_settings.__doc__, with_settings.__annotations__ = command.__name__, command.__doc__, {}
    # typer reads the parameters from here.
    with_settings.__dict__["__signature__"] = inspect.Signature([*own[:2], *settings, *own[2:]])
    return with_settings


sim = app.command()(_with_settings(sim))
app.command(context_settings=OPTIONS_OF_VLLM)(vllm)


def _tie_to_parent(parent: int) -> None:
    from server.parent import tie_to_parent

    try:
        tie_to_parent(parent)
    except OSError as error:
        raise UsageError(f"--die-with-parent failed: {error.strerror}.", hint="Leave it out.") from error


def _mistakes(errors: Sequence[Any]) -> str:
    """`--option is VALUE: what is wrong`, one a line."""
    lines = []
    for error in errors:
        option = "".join(f"--{str(name).replace('_', '-')} is {error['input']}: " for name in error["loc"])
        lines.append(option + error["msg"].removeprefix("Value error, "))
    return "\n".join(lines)
