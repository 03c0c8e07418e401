"""uvloop, but TCP connections over sockets that the caller made are `WireTransport`s, plain or below TLS."""

from __future__ import annotations

import socket
import ssl as tls
import sys
from collections.abc import Callable
from typing import Any

import uvloop

from loadgen.wire.epoll_reads import EpollReads
from loadgen.wire.kernel_clock import KernelClock, enable_kernel_stamps
from loadgen.wire.reads import Reads
from loadgen.wire.tls import TlsProtocol
from loadgen.wire.transport import WireTransport
from loadgen.wire.uring_reads import UringReads


def best_reads(loop: uvloop.Loop) -> Reads:
    """io_uring where the kernel lets us have it, since it reads while the loop is busy; else epoll. Linux."""
    try:
        return UringReads(loop)
    except OSError:
        return EpollReads(loop)


class WireLoop(uvloop.Loop):  # type: ignore[misc]
    """uvloop with a stamping transport; only Linux stamps, elsewhere it is uvloop and no more."""

    def __init__(self) -> None:
        super().__init__()
        # The kernel begins to stamp a moment after the first socket has asked for it, so one asks now, for the others.
        self._stamping = enable_kernel_stamps()
        self.kernel_clock = KernelClock()
        self._transports: set[WireTransport] = set()
        self.reads = best_reads(self) if sys.platform == "linux" else None

    def close(self) -> None:
        if self.reads is not None:
            self.reads.close()
        self._stamping.close()
        super().close()
        for transport in self._transports:  # a farewell of TLS that the peer has not answered yet
            transport.drop()

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        *args: Any,
        sock: socket.socket | None = None,
        ssl: Any = None,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """As asyncio's; a socket that is no TCP socket of the caller's gets uvloop's own transport."""
        tcp = sock is not None and sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6)
        if sock is None or not tcp or self.reads is None:
            return await super().create_connection(  # type: ignore[no-any-return]
                protocol_factory,
                *args,
                sock=sock,
                ssl=ssl,
                server_hostname=server_hostname,
                ssl_handshake_timeout=ssl_handshake_timeout,
                ssl_shutdown_timeout=ssl_shutdown_timeout,
                **options,
            )
        protocol = protocol_factory()
        if not ssl:
            return self._wire(sock, protocol, self.reads), protocol
        if server_hostname is None:
            raise ValueError("server_hostname is needed for TLS over a socket; an empty one checks no name")
        secured = self.create_future()
        secure = TlsProtocol(
            self,
            protocol,
            ssl if isinstance(ssl, tls.SSLContext) else None,
            secured,
            server_hostname=server_hostname,
            call_connection_made=True,
            handshake_timeout_s=ssl_handshake_timeout,
            shutdown_timeout_s=ssl_shutdown_timeout,
        )
        plaintext = secure.plaintext_transport()
        wire = self._wire(sock, secure, self.reads)
        try:
            await secured
        except BaseException:
            wire.abort()
            raise
        return plaintext, protocol

    async def start_tls(
        self,
        transport: Any,
        protocol: Any,
        sslcontext: tls.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> Any:
        """As asyncio's; uvloop's own takes no foreign transport."""
        if not isinstance(transport, WireTransport) or server_side:
            return await super().start_tls(
                transport,
                protocol,
                sslcontext,
                server_side=server_side,
                server_hostname=server_hostname,
                ssl_handshake_timeout=ssl_handshake_timeout,
                ssl_shutdown_timeout=ssl_shutdown_timeout,
            )
        if transport.is_closing():
            raise ConnectionResetError("the connection was closed before TLS could begin")
        secured = self.create_future()
        secure = TlsProtocol(
            self,
            protocol,
            sslcontext,
            secured,
            server_hostname=server_hostname,
            call_connection_made=False,
            handshake_timeout_s=ssl_handshake_timeout,
            shutdown_timeout_s=ssl_shutdown_timeout,
        )
        plaintext = secure.plaintext_transport()
        transport.set_protocol(secure)
        secure.connection_made(transport)
        try:
            await secured
        except BaseException:
            transport.abort()
            raise
        return plaintext

    def _wire(self, sock: socket.socket, protocol: Any, reads: Reads) -> WireTransport:
        transport = WireTransport(self, sock, protocol, self.kernel_clock, reads, self._transports.discard)
        self._transports.add(transport)
        return transport
