"""Where Locust's events become a run of ours; importing it adds the listeners, and starts nothing.

| event | a master, or the only process | a worker |
|---|---|---|
| init | refuses what is wrong, asks the target when a test begins by itself | waits to be called |
| test_start | prepares a run, and only then lets users come | |
| test_stopping | ends the window, waits for the drain while users go on | |
| test_stop | judges and writes | |
| quitting | | when interrupted: waits until its master has ended the test |
| quit | keeps /metrics up for a last scrape | |
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import locust
from locust.runners import WorkerRunner

from loadgen.errors import LoadgenError
from loadgen.locustfile.interrupt import interrupt_main_only
from loadgen.locustfile.options import add_options
from loadgen.locustfile.users import is_open_loop, llm_users
from loadgen.locustfile.worker import LocustfileWorker

if TYPE_CHECKING:
    from loadgen.locustfile.master import Master

_REPORT_S = 1.0


_master: Master | None = None
_worker: LocustfileWorker | None = None


def _on_parser(parser: Any, **_: Any) -> None:
    add_options(parser)


def _on_init(environment: Any, runner: Any, **_: Any) -> None:
    global _master, _worker
    if not llm_users(environment):
        return
    interrupt_main_only()
    if isinstance(runner, WorkerRunner):
        locust.runners.WORKER_REPORT_INTERVAL = min(locust.runners.WORKER_REPORT_INTERVAL, _REPORT_S)
        _worker = LocustfileWorker(runner, open_loop=is_open_loop(environment))
        # Now, so that it comes before the runner's own, which takes leave of the master.
        environment.events.quitting.add_listener(_on_quitting)
        return
    # Not before: what writes reports and serves /metrics is nothing that a worker's fork should have.
    from loadgen.locustfile.master import Master

    try:
        _master = Master(environment)
        _master.init()
    except LoadgenError as error:
        print(error.report(), file=sys.stderr)
        sys.exit(error.exit_code)


def _on_test_start(**_: Any) -> None:
    if _master is not None:
        _master.start()


def _on_test_stopping(**_: Any) -> None:
    if _master is not None:
        _master.stopping()


def _on_test_stop(**_: Any) -> None:
    if _master is not None:
        _master.stopped()


def _on_worker_connect(**_: Any) -> None:
    if _master is not None:
        _master.note_joiner()


def _on_quit(**_: Any) -> None:
    if _master is not None:
        _master.quit()


def _on_quitting(**_: Any) -> None:
    if _worker is not None:
        _worker.await_end()


locust.events.init_command_line_parser.add_listener(_on_parser)
locust.events.init.add_listener(_on_init)
locust.events.test_start.add_listener(_on_test_start)
locust.events.test_stopping.add_listener(_on_test_stopping)
locust.events.test_stop.add_listener(_on_test_stop)
locust.events.worker_connect.add_listener(_on_worker_connect)
locust.events.quit.add_listener(_on_quit)
