"""The words of errors: equal for equal errors, and without any address."""

from __future__ import annotations

import errno
import ssl

import aiohttp
import pytest

from loadgen import record
from loadgen.wire.failures import failure, words


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionResetError(errno.ECONNRESET, "by 10.0.0.1:80"), "ConnectionResetError: Connection reset by peer"),
        (ConnectionResetError(), "ConnectionResetError"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "no local port was free"),
        (ssl.SSLCertVerificationError("x"), "the server's certificate was refused"),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert"), "TLS failed: SSLError"),
    ],
)
def test_an_error_is_said_without_its_address(error: OSError, said: str) -> None:
    assert words(error).startswith(said)


def test_an_error_before_the_connection_stands_is_a_connect_failure() -> None:
    reset = ConnectionResetError(errno.ECONNRESET, "reset")
    assert failure(reset, connected=False)[0] == record.CONNECT
    assert failure(reset, connected=True)[0] == record.TRANSPORT
    hung_up = aiohttp.ServerDisconnectedError()
    assert failure(hung_up, connected=False) == (
        record.CONNECT,
        "the proxy closed the connection before it answered",
    )
    assert failure(hung_up, connected=True)[0] == record.TRANSPORT


def test_whatever_is_not_of_the_network_is_a_protocol_failure_by_its_type() -> None:
    assert failure(ValueError("secret"), connected=True) == (record.PROTOCOL, "ValueError")
