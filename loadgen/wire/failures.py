"""Turns what aiohttp, TLS and the sockets raise into a status and a reason; equal errors have equal words.

No address, port, host name or object id is in them: reasons are counted, and a proxy's URL can hold credentials.
"""

from __future__ import annotations

import errno
import os
import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from loadgen import record

# OpenSSL's X509_V_ERR_…; a certificate of another host has one of the last three.
_CERTIFICATES = {
    9: "is not valid yet",
    10: "has expired",
    18: "is self-signed",
    19: "is issued by an authority that is not trusted here",
    20: "is issued by an authority that is not trusted here",
    21: "is issued by an authority that is not trusted here",
    23: "is revoked",
    62: "is for another host name",
    63: "is for another host name",
    64: "is for another address",
}
_HANDSHAKES = {
    "WRONG_VERSION_NUMBER": "the server does not speak TLS",
    "RECORD_LAYER_FAILURE": "the server does not speak TLS",
    "UNEXPECTED_EOF_WHILE_READING": "the server closed the connection in the handshake",
}


def failure(error: Exception, *, connected: bool) -> tuple[str, str]:
    """(status, reason) of an exception that ended a request. `connected`: whether a connection was at hand already."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return record.CONNECT, f"the proxy answered {error.status}" + (
            ": it wants other credentials" if error.status == 407 else ""
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return record.CONNECT, words(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        proxy = "the proxy: " if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
        return record.CONNECT, proxy + words(error.os_error)
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL | HttpProcessingError):
        return record.PROTOCOL, f"the answer is not HTTP: {type(error).__name__}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        if not connected:
            return record.CONNECT, "the proxy closed the connection before it answered"
        return record.TRANSPORT, "the server closed the connection before it answered"
    if isinstance(error, OSError):
        return record.TRANSPORT if connected else record.CONNECT, words(error)
    return record.PROTOCOL, type(error).__name__


def words(error: BaseException) -> str:
    """An error of a socket or of TLS, in words that are equal for equal errors."""
    # Errors of OpenSSL carry these; those that Python raises itself may not.
    code, reason = getattr(error, "verify_code", None), getattr(error, "reason", None)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate {_CERTIFICATES.get(code or 0, f'was refused: code {code}')}"
    if isinstance(error, ssl.SSLError):
        known = _HANDSHAKES.get(reason or "")
        return known or f"TLS failed: {reason.lower().replace('_', ' ') if reason else type(error).__name__}"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRNOTAVAIL:
        return (
            "no local port was free: a closed connection keeps its own for a minute, so reuse them, or use more hosts"
        )
    return f"{type(error).__name__}: {os.strerror(number)}" if number else type(error).__name__


def forget_frames(error: BaseException) -> None:
    """Drops the tracebacks of an error and of those behind it: frames hold their error, and an error its frames, and no
    garbage is collected while a level is measured."""
    behind: BaseException | None = error
    seen: set[int] = set()
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        behind.__traceback__ = None
        behind = behind.__cause__ or behind.__context__
