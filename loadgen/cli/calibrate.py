"""`loadgen calibrate`: what this tool adds to a server's latencies on this machine, measured against the truth."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.errors import LoadgenError, UsageError

if TYPE_CHECKING:
    from loadgen.calibrate.step import Conditions

_MOST_STREAMS = 20_000
_MOST_RATE = 1_000.0
_MOST_WINDOW_S = 600.0


def calibrate(
    streams: Annotated[
        str, typer.Option(metavar="INT[,INT…]", help="Streams at once, one step each, from few to many.")
    ] = "1,64,256,512,1000",
    rate: Annotated[float, typer.Option(metavar="TOKENS/S", help="Tokens per second of each stream.")] = 100.0,
    duration: Annotated[str, typer.Option(metavar="DURATION", help="Measuring window of each step.")] = "5s",
    ttft: Annotated[str, typer.Option(metavar="DURATION", help="True time to first token.")] = "50ms",
    output_tokens: Annotated[int, typer.Option(metavar="INT", help="Tokens of each answer.")] = 128,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Measure every load, also above the first that is too much.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON too; - is standard output.")
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            metavar="DIR",
            help="Keep each step's run folder and the server's log of true instants. Must be empty.",
        ),
    ] = None,
) -> None:
    """Measure this tool's own error: TTFT and token gaps as reported against those of a server of known timing.

    A server whose every send is logged runs on one core, `loadgen run` with one worker on another, at rising load until
    a step is marked client-bound or its figures are of no use. The default takes about a minute. Exit codes: 0 measured; 1 a step could not be run;
    2 the command line is wrong; 130 interrupted, with what was measured.
    """
    if sys.platform != "linux":
        raise LoadgenError("Calibration needs Linux: the server of known timing is paced with epoll.")
    from loadgen.calibrate.ladder import climb
    from loadgen.calibrate.step import run_step

    loads = _loads(streams)
    conditions = _conditions(rate, _seconds("--duration", duration), _seconds("--ttft", ttft), output_tokens)
    _check_writable(json_file)
    # SIGTERM as Ctrl-C: the step under way ends in order, and what was measured is told.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        folder = _folder(output_dir, stack)
        typer.echo(f"about {round(sum(conditions.for_streams(load).step_s() for load in loads))} s", err=True)
        report, failure = climb(
            loads,
            conditions,
            folder,
            measure=run_step,
            tell=lambda text: typer.echo(text, err=True),
            keep_going=keep_going,
        )
        _show(report, json_file, output_dir)
    if failure is not None:
        raise failure


def _show(report: dict[str, object], json_file: Path | None, output_dir: Path | None) -> None:
    import orjson
    from rich.console import Console

    from loadgen.calibrate.text import render
    from loadgen.report.files import write_whole

    content = orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if output_dir is not None:
        write_whole(output_dir / "calibration.json", content)
    if json_file == Path("-"):
        sys.stdout.write(content.decode())
        Console(stderr=True).print(render(report), highlight=False)
        return
    if json_file is not None:
        write_whole(json_file, content)
    Console().print(render(report), highlight=False)


def _loads(text: str) -> list[int]:
    try:
        loads = sorted({int(part) for part in text.split(",")})
    except ValueError:
        loads = []
    if not loads or loads[0] < 1 or loads[-1] > _MOST_STREAMS:
        raise UsageError(
            f"--streams is {text!r}; it takes whole numbers from 1 to {_MOST_STREAMS}.",
            hint="write for example --streams 1,64,256",
        )
    return loads


def _seconds(option: str, text: str) -> float:
    from loadgen.scenario.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option} is {text!r}. {error}", hint=f"write for example {option} 50ms") from None


def _conditions(rate: float, window_s: float, ttft_s: float, output_tokens: int) -> Conditions:
    from loadgen.calibrate.cores import choose, known_siblings
    from loadgen.calibrate.step import Conditions

    if not 1 <= rate <= _MOST_RATE:
        raise UsageError(
            f"--rate is {rate:g}; it takes 1 to {_MOST_RATE:g} tokens/s.", hint="the default is --rate 100"
        )
    if not 1 <= window_s <= _MOST_WINDOW_S:
        raise UsageError(
            f"--duration is {window_s:g} s; it takes 1s to {_MOST_WINDOW_S:g}s.", hint="the default is --duration 5s"
        )
    if not 2 <= output_tokens <= 100_000:
        raise UsageError(
            f"--output-tokens is {output_tokens}; it takes 2 to 100000, since one token has no gap.",
            hint="the default is --output-tokens 128",
        )
    if ttft_s > 60:
        raise UsageError(f"--ttft is {ttft_s:g} s; it takes at most 60s.", hint="the default is --ttft 50ms")
    allowed = os.sched_getaffinity(0)
    cores = choose(allowed, known_siblings(allowed))
    return Conditions(ttft_ms=ttft_s * 1e3, rate=rate, output_tokens=output_tokens, window_s=window_s, cores=cores)


def _check_writable(json_file: Path | None) -> None:
    """Before anything is measured."""
    if json_file is None or json_file == Path("-"):
        return
    if json_file.is_dir() or not json_file.absolute().parent.is_dir():
        raise UsageError(f"--json {json_file} cannot be written.", hint="name a file in a folder that exists")


def _folder(output_dir: Path | None, stack: contextlib.ExitStack) -> Path:
    if output_dir is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadgen-calibrate-")))
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        if any(output_dir.iterdir()):
            raise UsageError(
                f"The output folder {output_dir} is not empty.", hint="name another with -o, or remove what is in it"
            )
    except OSError as error:
        raise UsageError(
            f"The output folder {output_dir} cannot be made: {error.strerror}.", hint="name another with -o"
        ) from None
    return output_dir
