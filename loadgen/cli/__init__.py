"""The command line: its commands and how an expected error is told; a command's module is imported when it is used."""

from __future__ import annotations

import errno
import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from loadgen import __version__
from loadgen.cli.foreign_check import refuse_foreign
from loadgen.errors import LoadgenError

COMMANDS = {
    "run": "Run a scenario: load the target at each level, print the table, write the run folder.",
    "worker": "Start a worker for a run whose controller is on another host.",
    "serve": "Start a server to try things on.",
    "validate": "Check a scenario and print it with every default written out; starts nothing.",
    "report": "Make the reports of a run again from its records.",
    "calibrate": "Measure this tool's own error on this machine, against a server of known timing.",
    "plan": "Plan replicas, cost and settings for a request rate, from a run.",
    "compare": "Compare a run with a baseline: what changed, with intervals, and an exit code for CI.",
    "export": "Write a run as vLLM's benchmark results, as a CSV of its requests, or as a baseline.",
    "check-claim": "Check a claimed number of tokens per second against what a GPU's memory can deliver.",
    "kv-cache": "Work out the bytes of a KV cache, and how many sequences fit.",
    "baseline": "Measure a model without a server: one request by transformers, a batch by vLLM offline.",
    "recover": "Judge a run whose controller was killed; add spools that were left on other hosts.",
}
"""Each command is the function of its name (`-` as `_`) in the module of its name; its help is here so that none is imported."""

GROUPS = frozenset({"baseline", "serve"})
"""Commands that have commands of their own: `app`, a `typer.Typer`, in the module of its name."""


def load_command(name: str) -> Any:
    """The real command, from its module."""
    module_name = name.replace("-", "_")
    module = importlib.import_module(f"loadgen.cli.{module_name}")
    if name in GROUPS:
        return typer.main.get_group(module.app)
    single = typer.Typer(add_completion=False)
    single.command(name)(getattr(module, module_name))
    return typer.main.get_command(single)


class CommandOnUse(TyperCommand):
    """Stands for a command in the list of commands; becomes the real one when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        command = load_command(self.name or "")
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        if "--set" in known:  # it takes a scenario
            refuse_foreign(args, known)
        return command.make_context(info_name, args, parent, **extra)


class Commands(TyperGroup):
    """The `loadgen` command itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, text in COMMANDS.items():
            self.add_command(CommandOnUse(name=name, help=text))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LoadgenError as error:
            typer.echo(error.report(), err=True)
            raise typer.Exit(error.exit_code) from None
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            few = LoadgenError(
                f"There are too few file descriptors: {error.strerror}.",
                hint="allow more, for example with `ulimit -n 4096`",
            )
            typer.echo(few.report(), err=True)
            raise typer.Exit(few.exit_code) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"loadgen {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    name="loadgen",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def loadgen(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Load OpenAI-compatible LLM servers and measure every token."""


def main() -> None:
    """The `loadgen` program. Exit codes: docs/reference-cli.md."""
    # Not app(): that would install typer's own traceback printer for the whole process.
    typer.main.get_command(app)(prog_name="loadgen")
