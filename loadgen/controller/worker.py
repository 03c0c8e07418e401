"""One worker as the controller knows it, and whether so many can carry a load."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from loadgen import spool
from loadgen.errors import UsageError
from loadgen.messages import Finished, Hello, LevelDone, Ready

# Files that a worker needs beside its connections to the target.
_OWN_DESCRIPTORS = 64


@dataclass(slots=True)
class Worker:
    """One worker and what it has said so far."""

    client_id: str
    index: int
    hello: Hello
    same_clock: bool
    """Whether it runs on this machine, whose monotonic clock it then shares."""
    offset_ns: int = 0
    error_ns: int = 0
    ready: Ready | None = None
    level_done: LevelDone | None = None
    finished: Finished | None = None
    live: dict[str, Any] = field(default_factory=dict)
    live_s: float = 0.0
    """When that came, by the controller's monotonic clock."""
    lost: bool = False
    """Whether it is missing, or was at some time since the level began."""
    problem: str | None = None
    block_writer: spool.SpoolWriter | None = None
    blocks: int = 0
    """Blocks of its spool that have come, in order."""

    def has_done(self, level: int) -> bool:
        """Whether it has said that the level is done and everything that it wrote has come."""
        done = self.level_done
        if done is None or done.level != level:
            return False
        return self.blocks >= done.blocks or (self.ready is not None and self.ready.shares_folder)


def check_connections(users: int, workers: Collection[Worker]) -> None:
    """Raises UsageError when so many users need more connections than a worker may open or its host has ports for."""
    share = -(-users // len(workers))
    for worker in workers:
        if share + _OWN_DESCRIPTORS > worker.hello.descriptors:
            raise UsageError(
                f"Concurrency {users} is {share} connections a worker, more than the {worker.hello.descriptors} open "
                f"files that worker {worker.index} ({worker.hello.host}) may have.",
                hint="raise the limit (ulimit -n), or use more workers",
            )
        ports = worker.hello.ephemeral_ports
        of_host = share * sum(other.hello.boot_id == worker.hello.boot_id for other in workers)
        if ports is not None and of_host > ports:
            raise UsageError(
                f"Concurrency {users} is {of_host} connections from {worker.hello.host}, more than the {ports} ports that "
                "it has for them.",
                hint="widen net.ipv4.ip_local_port_range, or use workers on more hosts",
            )
