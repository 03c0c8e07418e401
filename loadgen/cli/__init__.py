"""The command line: its commands and how an expected error is told; a command's module is imported when it is used."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from loadgen import __version__
from loadgen.errors import LoadgenError

COMMANDS = {
    "run": "Run a scenario: load the target at each level, print the table, write the run folder.",
    "worker": "Start a worker for a run whose controller is on another host.",
    "serve": "Start a server to try things on.",
    "validate": "Check a scenario and print it with every default written out; starts nothing.",
    "report": "Make the reports of a run again from its records.",
    "calibrate": "Measure this tool's own error on this machine, against a server of known timing.",
    "recover": "Judge a run whose controller was killed; add spools that were left on other hosts.",
}
"""Each command is the function of its name in the module of its name; its help is here so that none is imported."""

GROUPS = frozenset({"serve"})
"""Commands that have commands of their own: `app`, a `typer.Typer`, in the module of its name."""


def load_command(name: str) -> Any:
    """The real command, from its module."""
    module = importlib.import_module(f"loadgen.cli.{name}")
    if name in GROUPS:
        return typer.main.get_group(module.app)
    single = typer.Typer(add_completion=False)
    single.command(name)(getattr(module, name))
    return typer.main.get_command(single)


class CommandOnUse(TyperCommand):
    """Stands for a command in the list of commands; becomes the real one when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return load_command(self.name or "").make_context(info_name, args, parent, **extra)


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


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"loadgen {__version__}")
        raise typer.Exit


app = typer.Typer(cls=Commands, name="loadgen", no_args_is_help=True, add_completion=False)


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
