"""Finds a free port and says who holds one that is not; starts and ends nothing."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from pathlib import Path


def free_port(host: str) -> int:
    """A port that was free a moment ago."""
    with _bound(host, 0) as probe:
        return int(probe.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Whether a server can listen there; True where the host's addresses are not ours to try."""
    try:
        _bound(host, port).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def is_this_host(host: str) -> bool:
    """Whether a name or an address is this machine's: only on one's own can one listen."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind((address[0], 0))
            return True
    return False


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe = socket.socket(family)
    try:
        # As servers do: connections of the last one that are still being buried do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)  # two sockets may be bound to a port so, but only one may listen
    except OSError:
        probe.close()
        raise
    return probe


def holder(port: int) -> tuple[int, str] | None:
    """(process id, command line) of a process of ours that listens on a port; None where that cannot be seen (Linux)."""
    if sys.platform != "linux":
        return None
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:  # 0A: listening
                    inodes.add(f"socket:[{words[9]}]")
    for link in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        with contextlib.suppress(OSError):
            if str(link.readlink()) in inodes:
                process = link.parents[1]
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                return int(process.name), command or (process / "comm").read_text().strip()
    return None
