"""The capturing process of an audited run: takes port and addresses of the target, writes the file of segments.

A process of its own, so that it costs the workers nothing but the kernel's work for each packet. It looks into its ring
some times a second, however many packets there are, and ends with SIGTERM or with the process that started it.

Usage: `python -m loadgen.wire.packet_capture FILE MOST_BYTES PORT PARENT ADDRESS…` (started by the controller).
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from loadgen.audit_trail import SegmentsWriter
from loadgen.wire.packet_ring import PacketRing

READ_S = 0.05


def capture(file: Path, most_bytes: int, port: int, addresses: list[str], stop: list[int]) -> None:
    """Captures until `stop` holds a signal's number. Raises OSError when it may not, or the disk is full."""
    ring = PacketRing(port, addresses)
    writer = SegmentsWriter(file, most_bytes)
    stopping = False
    while not stopping:
        stopping = bool(stop)
        if not stopping:
            time.sleep(READ_S)
        covered_ns = time.monotonic_ns()
        segments = ring.read()
        writer.append(segments, covered_ns=covered_ns, ring_drops=ring.drops, refused_stamps=ring.refused_stamps)
    writer.close()
    ring.close()


def main(arguments: list[str]) -> int:
    """Gives the exit code."""
    file, most_bytes, port, parent, *addresses = arguments
    from server.parent import tie_to_parent

    tie_to_parent(int(parent))
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        capture(Path(file), int(most_bytes), int(port), addresses, stop)
    except OSError as error:
        print(f"packets cannot be captured: {error.strerror or error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
