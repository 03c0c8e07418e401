"""`loadgen baseline …`: measures a model without a server, in its own Python, or shows such measurements side by side."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.cli.serve_vllm import OPTIONS_OF_VLLM, asked_to_end, settings_of
from loadgen.errors import UsageError

app = typer.Typer(
    no_args_is_help=True, help="Measure a model without a server: one request by transformers, a batch by vLLM offline."
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Folder or name on the hub of what is loaded.")]
Python = Annotated[
    str, typer.Option("--python", metavar="PATH", help="Python of the environment that has the library.")
]
InputTokens = Annotated[int, typer.Option("--input-tokens", min=1, metavar="INT", help="Tokens of each prompt.")]
OutputTokens = Annotated[int, typer.Option("--output-tokens", min=1, metavar="INT", help="Tokens made for each.")]
Batch = Annotated[int, typer.Option("--batch", min=1, metavar="INT", help="Requests at once.")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="TYPE", help="Of the weights; auto is what the files say.")]
Repeats = Annotated[int, typer.Option("--repeats", min=1, metavar="INT", help="Passes that are measured.")]
Warmup = Annotated[int, typer.Option("--warmup", min=0, metavar="INT", help="Passes before them that do not count.")]
Seed = Annotated[int, typer.Option("--seed", metavar="INT", help="Of the prompts.")]
Timeout = Annotated[str, typer.Option("--timeout", metavar="DURATION", help="For all of it, loading included.")]
Log = Annotated[Path | None, typer.Option("--log", metavar="FILE", help="Keep what the library writes.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result as JSON.")]


@app.command("transformers")
def transformers(
    model: Model,
    python: Python = "python3",
    input_tokens: InputTokens = 128,
    output_tokens: OutputTokens = 64,
    batch: Batch = 1,
    dtype: Dtype = "auto",
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="Such as cuda:0 or cpu; auto takes a GPU if there is one.")
    ] = "auto",
    attention: Annotated[
        str | None, typer.Option("--attention", metavar="NAME", help="Such as sdpa, eager or flash_attention_2.")
    ] = None,
    repeats: Repeats = 3,
    warmup: Warmup = 1,
    seed: Seed = 0,
    timeout: Timeout = "900s",
    log: Log = None,
    output: Output = None,
) -> None:
    """Measure how fast transformers generates: one request by itself, or a batch that starts and ends together.

    Exit codes: 0 measured; 1 it failed or took too long; 2 the Python lacks a library, or the command line is wrong.
    """
    sizes = {"input_tokens": input_tokens, "output_tokens": output_tokens, "batch": batch, "seed": seed}
    asked = {"model": model, "dtype": dtype, "device": device, "attention": attention, **sizes}
    _measure("transformers", asked, python, repeats, warmup, timeout, log, output)


@app.command("vllm-offline", context_settings=OPTIONS_OF_VLLM)
def vllm_offline(
    context: typer.Context,
    model: Model,
    python: Python = "python3",
    input_tokens: InputTokens = 128,
    output_tokens: OutputTokens = 64,
    batch: Batch = 16,
    dtype: Dtype = "auto",
    repeats: Repeats = 3,
    warmup: Warmup = 1,
    seed: Seed = 0,
    timeout: Timeout = "900s",
    log: Log = None,
    output: Output = None,
) -> None:
    """Measure how fast vLLM generates a batch by `LLM.generate`, with no server between.

    Further options are keywords of vLLM's `LLM`, such as `--quantization fp8 --enforce-eager`. Exit codes: 0 measured; 1 it
    failed or took too long; 2 the Python has no vLLM, or the command line is wrong.
    """
    sizes = {"input_tokens": input_tokens, "output_tokens": output_tokens, "batch": batch, "seed": seed}
    engine: dict[str, Any] = {
        "model": model,
        "dtype": dtype,
        "seed": seed,
        "max_model_len": input_tokens + output_tokens,
        "max_num_seqs": batch,
        "enable_prefix_caching": False,
        **settings_of(context.args),
    }
    _measure("vllm-offline", {"model": model, "engine": engine, **sizes}, python, repeats, warmup, timeout, log, output)


@app.command("show")
def show(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Results that -o has written.")],
) -> None:
    """Show results side by side: what one request gets, and what all get together, in columns of their own."""
    from rich.console import Console

    from loadgen.baseline.files import read_result
    from loadgen.baseline.text import difference_lines, side_by_side

    every = [read_result(path) for path in files]
    console = Console(soft_wrap=True, highlight=False)
    console.print(side_by_side(every))
    for line in difference_lines(every):
        console.print(line, markup=False)


def _measure(
    engine: str,
    asked: dict[str, Any],
    python: str,
    repeats: int,
    warmup: int,
    timeout: str,
    log: Path | None,
    output: Path | None,
) -> None:
    from rich.console import Console

    from loadgen.baseline.figures import result
    from loadgen.baseline.files import host, write_result
    from loadgen.baseline.launch import check_python, run_script
    from loadgen.baseline.text import condition_lines, figures_table
    from loadgen.scenario.quantities import parse_duration
    from server.model_files import find_model, read_model

    try:
        timeout_s = parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout is {timeout!r}. {error}") from None
    script, libraries = {
        "transformers": ("transformers_generate", ("torch", "transformers")),
        "vllm-offline": ("vllm_generate", ("vllm",)),
    }[engine]
    check_python(python, libraries)
    passes = warmup + repeats
    with _log_file(log) as path, asked_to_end() as signals:
        told = run_script(
            script,
            {**asked, "passes": passes},
            python=python,
            log=path,
            timeout_s=timeout_s,
            watch=_progress(warmup, passes),
            pause=lambda seconds: _pause(seconds, signals),
        )
    folder = find_model(asked["model"])
    made = result(
        engine,
        {**asked, "warmup": warmup},
        told.loaded,
        told.passes,
        files=None if folder is None else read_model(folder),
        host=host(),
    )
    console = Console(soft_wrap=True, highlight=False)
    console.print(figures_table(made))
    console.print()
    for line in condition_lines(made):
        console.print(line, markup=False)
    if output is not None:
        write_result(output, made)
        console.print(f"result: {output}", markup=False)


@contextlib.contextmanager
def _log_file(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        wanted.unlink(missing_ok=True)
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="loadgen-baseline-") as folder:
        yield Path(folder) / "baseline.log"


def _pause(seconds: float, signals: list[int]) -> None:
    if signals:
        raise typer.Exit(130)
    time.sleep(seconds)


def _progress(warmup: int, passes: int) -> Callable[[str, dict[str, Any]], None]:
    """Tells on standard error how far it is: loading and a pass may take minutes."""
    done = 0

    def watch(event: str, told: dict[str, Any]) -> None:
        nonlocal done
        if event == "loaded":
            typer.echo(f"loaded in {told['load_s']:.1f} s", err=True)
        elif event == "pass":
            done += 1
            of = f"warm-up {done} of {warmup}" if done <= warmup else f"pass {done - warmup} of {passes - warmup}"
            typer.echo(f"{of}: {told['total_s']:.2f} s", err=True)

    return watch
