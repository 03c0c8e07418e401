"""`python -m server.metronome`: options in, `metronome listening on http://HOST:PORT` out, serves until SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import resource
import signal
import socket
from datetime import UTC, datetime
from pathlib import Path

from server.metronome.serve import Metronome
from server.metronome.truth import TruthLog
from server.parent import tie_to_parent

_BACKLOG = 4096


def main(argv: list[str] | None = None) -> None:
    """Serves. Exits with 2 when an option is wrong or cannot be met."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.die_with_parent is not None:
        tie_to_parent(options.die_with_parent)
    if options.ttft_ms < 0 or options.itl_ms <= 0 or options.output_tokens < 1:
        parser.error("--ttft-ms must be 0 or more, --itl-ms above 0, --output-tokens 1 or more")
    if options.cpu is not None:
        try:
            os.sched_setaffinity(0, {options.cpu})
        except (OSError, ValueError):
            allowed = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            parser.error(f"--cpu {options.cpu}: this process may not use that core; it may use {allowed}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ttft_ns, itl_ns = round(options.ttft_ms * 1e6), round(options.itl_ms * 1e6)
    truth = None
    if options.truth is not None:
        try:
            truth = TruthLog(options.truth, ttft_ns=ttft_ns, itl_ns=itl_ns)
        except OSError as error:
            parser.error(f"--truth {options.truth} cannot be written: {error.strerror}")
    listener = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        parser.error(f"nothing can listen on {options.host}:{options.port}: {reason}; --port 0 takes a free port")
    metronome = Metronome(
        listener,
        ttft_ns=ttft_ns,
        itl_ns=itl_ns,
        model=options.served_model_name,
        output_tokens=options.output_tokens,
        created_s=int(datetime.now(UTC).timestamp()),
        truth=truth,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: metronome.stop())
    # Nothing here makes cycles, and a collection would stall every stream.
    gc.collect()
    gc.freeze()
    gc.disable()
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(f"metronome listening on http://{host}:{listener.getsockname()[1]}", flush=True)
    try:
        metronome.serve()
    except OSError as error:  # of the log: what the network does is handled there
        parser.exit(1, f"the truth log cannot be written any more: {error.strerror}\n")
    finally:
        if truth is not None:
            with contextlib.suppress(OSError):
                truth.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m server.metronome", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    parser.add_argument("--ttft-ms", type=float, default=50.0, help="from a request's arrival to its first token")
    parser.add_argument("--itl-ms", type=float, default=10.0, help="from one token to the next")
    parser.add_argument("--output-tokens", type=int, default=128, help="of requests that name no max_tokens")
    parser.add_argument("--served-model-name", default="metronome", help="name of the model; any other is served too")
    parser.add_argument("--truth", type=Path, help="file for the true instants (server.metronome.truth.load_truth)")
    parser.add_argument(
        "--cpu", type=int, help="core to run on, alone if possible: it is kept busy while tokens are due"
    )
    parser.add_argument("--die-with-parent", type=int, metavar="PID", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
