"""TLS above a stamping transport: the standard library's protocol, which decrypts each read at once.

So plaintext comes to the protocol above inside the read that completed its record, and that read's stamp is its own.
What is no plaintext (a handshake, a session ticket) never reaches the protocol above.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from typing import Any

# How long a close may wait for the peer's own; after it the connection is dropped.
_SHUTDOWN_S = 1.0
# No limit of ours: the client's own for a connection ends a handshake too.
_HANDSHAKE_S = 86_400


class TlsProtocol(sslproto.SSLProtocol):
    """One TLS client connection. `secured` is done when its handshake is, or has the error that it ended with."""

    # One record's plaintext. asyncio's 256 KiB are allocated for every connection, and again for every read.
    max_size = 16_384

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol,
        context: ssl.SSLContext | None,
        secured: asyncio.Future[None],
        *,
        server_hostname: str | None,
        call_connection_made: bool,
        handshake_timeout_s: float | None = None,
        shutdown_timeout_s: float | None = None,
    ) -> None:
        """`context`: None is the default one, which checks certificates. `call_connection_made`: False where the caller
        tells `protocol` itself."""
        super().__init__(
            loop,
            protocol,
            context,  # type: ignore[arg-type]
            secured,
            server_side=False,
            server_hostname=server_hostname,
            call_connection_made=call_connection_made,
            ssl_handshake_timeout=_HANDSHAKE_S if handshake_timeout_s is None else handshake_timeout_s,  # type: ignore[arg-type]
            ssl_shutdown_timeout=_SHUTDOWN_S if shutdown_timeout_s is None else shutdown_timeout_s,
        )

    def plaintext_transport(self) -> Any:
        """What the protocol above writes to. Not kept here: a lost connection lets go of it."""
        return self._get_app_transport()  # type: ignore[attr-defined]
