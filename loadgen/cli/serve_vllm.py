"""`loadgen serve vllm`: starts vLLM as a run would, shows what it runs with, and ends all of it."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.errors import UsageError
from loadgen.scenario.server import from_command_line

_POLL_S = 0.2
_SHOWN = (
    *("version", "model", "device", "dtype", "quantization", "kv_cache_dtype", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "kv_cache_tokens", "kv_cache_blocks", "kv_cache_bytes", "max_concurrency"),
    *("tensor_parallel_size", "prefix_caching", "chunked_prefill", "speculative", "cuda_graphs", "attention_backend"),
)

OPTIONS_OF_VLLM = {"allow_extra_args": True, "ignore_unknown_options": True}


def vllm(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Folder or name on the hub of what it loads.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 0,
    python: Annotated[str | None, typer.Option(help="Python of the environment that has vLLM.")] = None,
    serve_cmd: Annotated[
        str | None, typer.Option(help="How you start it, such as 'docker run … {args}', in place of vLLM's command.")
    ] = None,
    stop_cmd: Annotated[str | None, typer.Option(help="What ends it where signals do not reach it.")] = None,
    log: Annotated[Path, typer.Option(help="File for its output.")] = Path("vllm.log"),
    ready_timeout: Annotated[float, typer.Option(help="Seconds until it must answer.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that it tells of itself as JSON.")] = False,
) -> None:
    """Start vLLM as a scenario with `target.server: vllm` does, show what it runs with, and end all of it at Ctrl-C.

    Further options are vLLM's own, such as `--max-num-seqs 8 --enforce-eager`. See docs/vllm.md.
    """
    from server.vllm.launch import Recipe, StartError, start_vllm

    settings = settings_of(context.args)
    if model is not None:
        settings = {"model": model, **settings}
    recipe = Recipe(command=serve_cmd, on_stop=stop_cmd, python=python)
    with asked_to_end() as asked:

        def pause(seconds: float) -> None:
            if asked:
                raise typer.Exit(130)
            time.sleep(seconds)

        try:
            server = start_vllm(recipe, settings, log=log, port=port, timeout_s=ready_timeout, pause=pause)
        except StartError as error:
            tail = f"{error.log_tail}\n\n" if error.log_tail else ""
            raise UsageError(f"{tail}{error}", hint=error.hint) from None
        try:
            typer.echo(f"vLLM listening on {server.base_url}")
            typer.echo(json.dumps(server.effective, indent=2) if as_json else _told(server.effective))
            while not asked and server.alive():
                time.sleep(_POLL_S)
            died = None if server.alive() else server.why_dead()
        finally:
            for held in server.stop():
                typer.echo(f"warning: {held}", err=True)
    if died is not None:
        raise UsageError(f"vLLM has ended. {died}", hint=died.hint)


@contextlib.contextmanager
def asked_to_end() -> Iterator[list[int]]:
    """The signals that have asked the program to end, a list that grows."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: asked.append(got)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """vLLM's options as a scenario's settings: `--max-num-seqs 8 --enforce-eager --no-async-scheduling`.

    Raises UsageError for a word that belongs to no option.
    """
    settings: dict[str, Any] = {}
    values: list[Any] = []
    key = ""

    def take() -> None:
        if not key:
            return
        if values:
            settings[key] = values[0] if len(values) == 1 else list(values)
        elif key.startswith("no_"):
            settings[key.removeprefix("no_")] = False
        else:
            settings[key] = True

    for word in words:
        if word.startswith("--"):
            take()
            name, equals, value = word.removeprefix("--").partition("=")
            key, values = name.replace("-", "_"), [_value(value)] if equals else []
        elif not key:
            raise UsageError(f"{word} belongs to no option.", hint="the model comes first, vLLM's options after it")
        else:
            values.append(_value(word))
    take()
    return settings


def _value(text: str) -> Any:
    """A list is one value here: nothing is swept."""
    return text if "," in text and not text.startswith("{") else from_command_line(text)


def _told(effective: dict[str, Any]) -> str:
    return "\n".join(f"  {name:<24}{'–' if effective[name] is None else effective[name]}" for name in _SHOWN)
