"""The command line as a whole: fast to ask for help, never a traceback for an expected error."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from loadgen import __version__, cli
from loadgen.errors import LoadgenError

HEAVY = {
    "locust",
    "gevent",
    "aiohttp",
    "uvloop",
    "transformers",
    "numpy",
    "altair",
    "pydantic",
    "yaml",
    "prometheus_client",
}


def imported_by(*arguments: str) -> set[str]:
    """Top-level packages that `python -m loadgen …` imports."""
    command = [sys.executable, "-X", "importtime", "-m", "loadgen", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 50
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    assert imported_by(*arguments) & HEAVY == set()


def test_validate_imports_neither_locust_nor_the_charts() -> None:
    assert imported_by("validate") & HEAVY <= {"pydantic", "yaml"}


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    assert [name for name in cli.COMMANDS if name not in result.stdout] == []


def test_version_is_the_packages() -> None:
    assert CliRunner().invoke(cli.app, ["--version"]).stdout == f"loadgen {__version__}\n"


def test_an_unknown_command_names_the_nearest() -> None:
    result = CliRunner().invoke(cli.app, ["valdate"])
    assert result.exit_code == 2
    assert "'validate'" in result.stderr


def test_an_expected_error_is_a_sentence_a_hint_and_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command()
    def fails() -> None:
        raise LoadgenError("The target does not answer.", hint="Start it.", exit_code=3)

    monkeypatch.setattr(cli, "load_command", lambda name: typer.main.get_command(app))
    result = CliRunner().invoke(cli.app, ["run"])
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "error: The target does not answer.\nhint: Start it.\n"


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command()
    def breaks() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "load_command", lambda name: typer.main.get_command(app))
    assert isinstance(CliRunner().invoke(cli.app, ["run"]).exception, ZeroDivisionError)
