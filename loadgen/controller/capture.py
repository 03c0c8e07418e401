"""The capture of an audited run as the controller sees it: whether it may be, its process, and how far it has come."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from loadgen.audit_trail import SegmentsReader
from loadgen.errors import LoadgenError, UsageError
from loadgen.run_folder import RunFolder
from loadgen.wire.packet_ring import may_capture

MOST_BYTES = 512 * 1024 * 1024
"""Of the file of segments: 25 million segments. What comes later is counted, not kept."""
_START_S = 20.0
_COVER_S = 2.0
_POLL_S = 0.02


def check_capture() -> None:
    """Raises UsageError when this process may not capture packets."""
    if sys.platform != "linux":
        raise UsageError(
            "An audit captures packets with a packet socket, which only Linux has.", hint="leave --audit out"
        )
    if not may_capture():
        raise UsageError(
            "An audit captures packets, and this process may not: it lacks the capability CAP_NET_RAW.",
            hint=f"give it to the interpreter (sudo setcap cap_net_raw+ep {os.path.realpath(sys.executable)}), start the "
            "container with --cap-add NET_RAW, or run as root; or leave --audit out",
        )


def target_addresses(base_url: str) -> tuple[int, list[str]]:
    """(port, addresses as numbers) of the target. Raises LoadgenError when its name is not known."""
    url = urlsplit(base_url)
    port = url.port or 80
    try:
        found = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LoadgenError(
            f"The name {url.hostname} of the target has no address: {error.strerror or error}.",
            hint="check target.base_url",
        ) from None
    return port, list(dict.fromkeys(str(address[4][0]).partition("%")[0] for address in found))


class Capture:
    """A process that captures what the target sends to this host, from its making until `close`."""

    def __init__(self, folder: RunFolder, base_url: str, log: Any, pause: Callable[[float], object]) -> None:
        """Starts it and waits until it captures. Raises LoadgenError when it does not."""
        self._pause = pause
        port, self.addresses = target_addresses(base_url)
        command = [sys.executable, "-m", "loadgen.wire.packet_capture", str(folder.segments), str(MOST_BYTES)]
        self._process = subprocess.Popen(
            [*command, str(port), str(os.getpid()), *self.addresses],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._reader = SegmentsReader(folder.segments)
        try:
            covered = self.await_covered(time.monotonic_ns(), most_s=_START_S)
        except BaseException:
            self.close()
            raise
        if not covered:
            self.close()
            raise LoadgenError(
                "The capture of packets did not begin.", hint="its output is in run.log in the run folder"
            )

    def await_covered(self, instant_ns: int, most_s: float = _COVER_S) -> bool:
        """Waits until everything that arrived before `instant_ns` is in the file; False when that does not come.

        What is missing shows as events without a packet.
        """
        deadline = time.monotonic() + most_s
        while True:
            for _ in self._reader.blocks():
                pass
            if self._reader.capture is not None and self._reader.capture.covered_ns >= instant_ns:
                return True
            if self._process.poll() is not None or time.monotonic() > deadline:
                return False
            self._pause(_POLL_S)

    def close(self) -> None:
        """Ends the process, which writes what it has."""
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
