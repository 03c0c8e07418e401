"""Takes a registry, serves it as `/metrics` on a thread of its own until it is closed; never touches the registry's state."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from loadgen.errors import LoadgenError


class MetricsServer:
    """A running endpoint: `port` is the one it listens on."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
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
            hint="choose another port with --metrics-port, or another address with --metrics-host",
            exit_code=2,
        ) from error
    return MetricsServer(server, thread)
