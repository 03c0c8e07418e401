"""What controller and workers say to each other over Locust's connection, beside Locust's own messages.

    worker                            controller
      HELLO (who I am)          ─►
                                ◄─    PING … PONG, several times: the clock offset
                                ◄─    CONFIGURE (target, workload, my share, my clock)
      READY                     ─►
                                ◄─    LEVEL (before its users are spawned)
      PROGRESS                  ─►    … until the window is told
                                ◄─    WINDOW (two instants of my clock, ahead of time)
      BLOCK (spool, if remote)  ─►
      LEVEL_DONE                ─►                                         … once a level
                                ◄─    ACK (what I have)
      PROBLEM                   ─►    (the spool cannot be written)
                                ◄─    FINISH (drain for so long)
      FINISHED                  ─►

Every payload is a plain dictionary made by `encode` and read by `decode`, which refuses another version.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from loadgen.errors import LoadgenError

VERSION = 1


class IncompatibleWorkerError(LoadgenError):
    """Controller and worker are not the same version."""


@dataclass(frozen=True, slots=True)
class Message:
    """Something said; `type` of the subclass is its name on the wire."""

    def encode(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def decode(cls, data: dict[str, Any]) -> Self:
        """Raises IncompatibleWorkerError when the other side speaks another version."""
        if data.get("version") != VERSION:
            raise IncompatibleWorkerError(
                f"the other side speaks version {data.get('version')} of the worker protocol, this one speaks {VERSION}",
                hint="install the same version of llm-loadgen on every host",
            )
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """A worker's first word."""

    host: str
    pid: int
    cores: int
    program_version: str
    boot_id: str
    """Names the running kernel: equal on both sides means one monotonic clock."""
    descriptors: int
    """How many files and connections the process may have open."""
    ephemeral_ports: int | None = None
    """How many connections to one address the host has ports for; None where the system does not tell."""
    reads: str | None = None
    """How it reads its sockets: `io_uring` or `epoll`; None where the event loop does it itself."""


@dataclass(frozen=True, slots=True)
class Configure(Message):
    """Everything a worker needs to make load; no secret: the key is read from the worker's own environment."""

    worker: int
    workers: int
    base_url: str
    endpoint: str
    route: dict[str, Any]
    """`loadgen.route.Route`."""
    reuse: dict[str, Any]
    """`loadgen.wire.pool.Reuse`, with this worker's share of the connections."""
    api_key_env: str
    workload: dict[str, Any]
    """What to send, as `loadgen.workload.carried` reads it."""
    limits_ns: dict[str, int | None]
    run_folder: str
    """Where the controller keeps the run; a worker that sees `nonce` there writes its spool into it."""
    nonce: str
    clock_offset_ns: int
    clock_error_ns: int
    audit_addresses: list[str] | None = None
    """Of an audited run: the target's addresses, in the order in which the capture knows them."""
    guarded: bool = False
    """Whether the live reports tell what the guards of `safety` look at: it costs a look at every open request a second."""
    long_ttft_ns: int | None = None
    """Requests that wait longer for their first token are told of there."""


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """A worker is configured; `problem` says why it is not."""

    worker: int
    shares_folder: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Level(Message):
    """The level that begins now; of a closed loop, users that Locust spawns from here on belong to it."""

    level: int
    ramp_ns: int
    depth: int
    """Prompts a worker keeps built ahead."""
    tell_progress: bool
    """Whether the controller wants to see the level settle."""
    think_time: dict[str, Any] | None = None
    """Of a closed loop: `loadgen.arrivals.think_time.ThinkTime`."""
    arrivals: dict[str, Any] | None = None
    """Of an open loop: the whole level's `loadgen.arrivals.schedule.Schedule`."""
    start_ns: int = 0
    """The instant that its offsets count from, in the worker's own clock."""
    position: int = 0
    of: int = 1
    """The worker sends the arrivals position, position + of, …"""
    max_in_flight: int | None = None
    """This worker's share of the requests that may be in flight."""
    drops: bool = False
    """Whether an arrival beyond that is dropped, not queued."""


@dataclass(frozen=True, slots=True)
class Window(Message):
    """When the level is measured, in the worker's own clock."""

    level: int
    start_ns: int
    end_ns: int
    drain_deadline_ns: int


@dataclass(frozen=True, slots=True)
class Block(Message):
    """One block of a remote worker's spool, in order."""

    worker: int
    number: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class LevelDone(Message):
    """Every request of the window has ended or was given up, and is in the spool."""

    worker: int
    level: int
    records: int
    """Records written since the run began."""
    blocks: int
    """Blocks written since the run began; the controller waits until it has them all."""


@dataclass(frozen=True, slots=True)
class Ack(Message):
    """What the controller has; the worker sends again what is missing."""

    blocks: int
    """Blocks of a remote worker's spool, written."""
    level: int
    """The latest level whose LEVEL_DONE has come; -1 before the first."""


@dataclass(frozen=True, slots=True)
class Problem(Message):
    """Why a worker can no longer keep what it measures."""

    worker: int
    problem: str


@dataclass(frozen=True, slots=True)
class Finish(Message):
    """The run ends: no further request. Said again with a shorter drain, it overrides the first."""

    drain_s: float
    """How long requests under way may take; then they are cancelled."""


@dataclass(frozen=True, slots=True)
class Finished(Message):
    """The worker has stopped its users and closed its spool."""

    worker: int
    records: int
    blocks: int


HELLO = "loadgen_hello"
PING = "loadgen_ping"
PONG = "loadgen_pong"
CONFIGURE = "loadgen_configure"
READY = "loadgen_ready"
LEVEL = "loadgen_level"
PROGRESS = "loadgen_progress"
"""Carries `loadgen.stats.progress.Progress`."""
WINDOW = "loadgen_window"
BLOCK = "loadgen_block"
ACK = "loadgen_ack"
LEVEL_DONE = "loadgen_level_done"
PROBLEM = "loadgen_problem"
FINISH = "loadgen_finish"
FINISHED = "loadgen_finished"
LIVE = "loadgen_live"
"""Key of the live snapshot inside Locust's periodic report."""
