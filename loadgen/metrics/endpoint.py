"""Takes a registry, serves it as `/metrics` on a thread of its own until it is closed; never touches the registry's state."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from loadgen.errors import LoadgenError
from loadgen.metrics.scrapes import Scrapes

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

# Prometheus and what is built like it send the timeout of the scrape along.
_ANNOUNCES = "HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS"


class MetricsServer:
    """A running endpoint: `port` is the one it listens on, `scrapes` has who came and when."""

    def __init__(self, server: WSGIServer, thread: threading.Thread, scrapes: Scrapes) -> None:
        self._server = server
        self._thread = thread
        self.scrapes = scrapes
        self.port: int = server.server_port

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """Serve `registry` on `host:port` (0: any free port). Raises LoadgenError (exit code 2) where that is not to be had."""
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise LoadgenError(
            f"The metrics endpoint cannot listen on {host}:{port}: {error.strerror or error}.",
            hint="choose another port with --metrics-port, or --metrics-port off, or another address with --metrics-host",
            exit_code=2,
        ) from error
    scrapes = Scrapes()
    application = server.get_app()
    assert application is not None
    server.set_app(_noting(application, scrapes))
    return MetricsServer(server, thread, scrapes)


def _noting(application: WSGIApplication, scrapes: Scrapes) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"] == "/metrics":
            scrapes.note(
                environ["REMOTE_ADDR"],
                environ.get("HTTP_USER_AGENT", ""),
                time.monotonic(),
                announced=_ANNOUNCES in environ,
            )
        return application(environ, start_response)

    return answer
