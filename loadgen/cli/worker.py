"""`loadgen worker`: a Locust worker for a controller on this host or another. Locust's names for its options."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer


def worker(
    master_host: Annotated[str, typer.Option(help="Host of the controller (`loadgen run`).")] = "127.0.0.1",
    master_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the controller.")] = 5557,
    die_with_parent: Annotated[int | None, typer.Option(hidden=True, metavar="PID")] = None,
) -> None:
    """Makes load for a controller: start it on any host, then `loadgen run --expect-workers N` where N have started.

    The API key, if the target wants one, is read from this process's own environment, never sent over the network.
    """
    if die_with_parent is not None:  # before anything slow: until then the parent could die unnoticed
        from server.parent import tie_to_parent

        tie_to_parent(die_with_parent)
    # Locust would patch the standard library for gevent; our event loop's thread needs the originals.
    os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
    import locust  # noqa: F401  (before aiohttp: it warns otherwise)

    from loadgen.worker.process import connect

    signal.signal(signal.SIGINT, _leave)  # until the controller is found; then the run decides
    raise typer.Exit(connect(master_host, master_port).run())


def _leave(*_: object) -> None:
    # Not an exception: it would surface in Locust's hub, which prints it.
    print("interrupted before a controller was found", file=sys.stderr, flush=True)
    os._exit(130)
