"""`loadgen serve …`: starts a server to measure against; nothing heavy is imported before a command runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Start a server to measure against.")


@app.callback()
def _serve() -> None:
    """Keeps `sim` a command of its own while it is the only one."""


@app.command()
def sim(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    served_model_name: Annotated[str, typer.Option(help="Name of the model.")] = "sim",
    max_num_seqs: Annotated[int, typer.Option(help="Sequences in one step; the others wait.")] = 16,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens in one step, prompts included.")] = 2048,
    max_model_len: Annotated[int, typer.Option(help="Prompt and output tokens of one request together.")] = 8192,
    step_overhead_ms: Annotated[float, typer.Option(help="Time of every step.")] = 8.0,
    prefill_time_per_token_ms: Annotated[float, typer.Option(help="Added for each prompt token of a step.")] = 0.2,
    decode_base_ms: Annotated[float, typer.Option(help="Added when any sequence decodes in a step.")] = 1.6,
    decode_time_per_seq_ms: Annotated[float, typer.Option(help="Added for each sequence that decodes.")] = 0.4,
    seed: Annotated[int, typer.Option(help="Changes the replies' words and natural lengths, not their timing.")] = 0,
    stream: Annotated[bool, typer.Option(help="--no-stream answers stream requests with plain JSON.")] = True,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer folder; the simulator's own by default.")] = None,
    truth: Annotated[Path | None, typer.Option(help="File for the true instants of every token.")] = None,
    die_with_parent: Annotated[int | None, typer.Option(hidden=True, metavar="PID")] = None,
) -> None:
    """Simulate a vLLM server: its API, its batching and its /metrics, with step times that you set.

    SIM_API_KEY in the environment, if set, is the key that clients must present.
    """
    if die_with_parent is not None:
        _tie_to_parent(die_with_parent)
    from pydantic import ValidationError

    from server.simulator.serve import StartError, run
    from server.simulator.settings import SimulatorSettings
    from server.simulator.tokenizer import folder

    try:
        settings = SimulatorSettings(
            served_model_name=served_model_name,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            seed=seed,
            step_overhead_ms=step_overhead_ms,
            prefill_time_per_token_ms=prefill_time_per_token_ms,
            decode_base_ms=decode_base_ms,
            decode_time_per_seq_ms=decode_time_per_seq_ms,
            stream=stream,
        )
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
        )
    except StartError as error:
        raise UsageError(str(error), hint=error.hint) from error


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
