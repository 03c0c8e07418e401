"""Before anything else: our own processes never run monkey-patched, so the tests do not either."""

import os

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
# Tests start hundreds of programs of ours: where bytecode is not to be written, each would compile all of it again,
# which is a third of what a short run costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import locust  # noqa: F401  (before aiohttp: see CONTRIBUTING)
import pytest

from loadgen.wire import wire_loop
from loadgen.wire.epoll_reads import EpollReads
from loadgen.wire.uring_reads import UringReads


@pytest.fixture(params=[UringReads, EpollReads], ids=lambda way: way.name)
def each_way_of_reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test once with every way of reading that this machine has; gives its name."""
    way = request.param
    loop = wire_loop.WireLoop()
    has_ring = loop.reads is not None and loop.reads.name == UringReads.name
    loop.close()
    if way is UringReads and not has_ring:
        pytest.skip("this kernel has no io_uring for us")
    monkeypatch.setattr(wire_loop, "best_reads", way)
    return str(way.name)
