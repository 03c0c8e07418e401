"""Where a worker keeps what it measured: its spool, its table of open requests, and, if it is remote, the controller.

In the hub. Every record is in the spool before anybody is told of it. A remote worker ships the blocks of its spool and
sends again what the controller has not acknowledged.
"""

from __future__ import annotations

import collections
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loadgen import spool
from loadgen.audit_trail import AnswersWriter, HeardAnswer
from loadgen.messages import Block, Configure
from loadgen.open_table import OpenTable
from loadgen.record import RequestRecord, WorkerHealth
from loadgen.run_folder import RunFolder

_RESEND_S = 2.0


class Ledger:
    """One worker's record of a run."""

    def __init__(self, plan: Configure, send: Callable[[Block], object]) -> None:
        """Opens the files, in the controller's folder where this host sees it. Raises OSError when that cannot be."""
        folder = RunFolder(Path(plan.run_folder))
        self.ships = folder.nonce() != plan.nonce
        if self.ships:
            folder = RunFolder(Path(tempfile.mkdtemp(prefix="loadgen-worker-")))
            folder.records.mkdir()
            print(f"spool: {folder.spool(plan.worker)}", file=sys.stderr, flush=True)
        self._worker = plan.worker
        self._spool = spool.SpoolWriter(folder.spool(plan.worker))
        self.table = OpenTable(folder.open_table(plan.worker))
        self._answers = None if plan.audit_addresses is None else AnswersWriter(folder.answers(plan.worker))
        self._send = send
        self._unacknowledged: collections.deque[Block] = collections.deque()
        self._sent_s = 0.0
        self.records = 0
        """Records written so far."""
        self.blocks = 0
        """Blocks written so far."""

    def write(self, finished: Sequence[tuple[RequestRecord, int | None]]) -> None:
        """Records, each with its slot in the table. Raises OSError when the spool cannot be written."""
        self._append(spool.encode_records([request for request, _ in finished]))
        self.records += len(finished)
        for _, slot in finished:
            if slot is not None:
                self.table.end(slot)

    def write_answers(self, answers: Sequence[HeardAnswer]) -> None:
        """Of an audited run. Raises OSError when they cannot be written."""
        if self._answers is not None and answers:
            self._answers.append(answers)

    def write_health(self, health: WorkerHealth) -> None:
        """The worker's own figures of a level. Raises OSError when the spool cannot be written."""
        self._append(spool.encode_health(health))

    def _append(self, payload: bytes) -> None:
        self._spool.append(payload)
        if self.ships:
            block = Block(worker=self._worker, number=self.blocks, payload=payload)
            self._unacknowledged.append(block)
            self._sent_s = time.monotonic()
            self._send(block)
        self.blocks += 1

    def acknowledge(self, blocks: int) -> None:
        """The controller has the first `blocks` blocks."""
        while self._unacknowledged and self._unacknowledged[0].number < blocks:
            self._unacknowledged.popleft()
        self._sent_s = time.monotonic()

    def resend(self) -> None:
        """Sends again what has not been acknowledged for two seconds; called now and then."""
        if self._unacknowledged and time.monotonic() - self._sent_s > _RESEND_S:
            self._sent_s = time.monotonic()
            for block in list(self._unacknowledged):
                self._send(block)

    @property
    def acknowledged(self) -> bool:
        """Whether the controller has everything that was written."""
        return not self._unacknowledged

    def close(self) -> None:
        self._spool.close()
        if self._answers is not None:
            self._answers.close()
        self.table.close()
