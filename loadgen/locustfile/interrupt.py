"""Ctrl-C in a process full of greenlets: Python raises it in whichever runs at that moment, and here it reaches the main one."""

from __future__ import annotations

import signal

import gevent


def interrupt_main_only() -> None:
    """From here on KeyboardInterrupt is raised where Locust waits for it, never in a greenlet that writes records.

    A handler of somebody else's is left alone, as is a process that does not listen to SIGINT.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    hub = gevent.get_hub()
    main = hub.parent  # of the hub's own thread

    def interrupt(*_: object) -> None:
        # Not here: this is called in the middle of whatever runs now.
        hub.loop.run_callback(main.throw, KeyboardInterrupt)

    signal.signal(signal.SIGINT, interrupt)
