"""A real Prometheus as a process, and what it has stored; for tests of any folder."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fleet.test_run import free_port


def get(url: str, **parameters: str) -> bytes:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
        return answer.read()  # type: ignore[no-any-return]


def until(look: Callable[[], Any], *, within_s: float, every_s: float = 0.1) -> Any:
    """What `look` gives once it gives something."""
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError):
            if found := look():
                return found
        assert time.monotonic() < deadline, f"it has not come within {within_s:g} s"
        time.sleep(every_s)


class Prometheus:
    """What a running Prometheus has stored."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def _ask(self, query: str, at: float | None) -> list[dict[str, Any]]:
        parameters = {"query": query, **({} if at is None else {"time": str(at)})}
        return json.loads(get(f"{self.url}/api/v1/query", **parameters))["data"]["result"]  # type: ignore[no-any-return]

    def now(self, query: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series, now or at an instant of the wall clock."""
        return [(found["metric"], float(found["value"][1])) for found in self._ask(query, at)]

    def samples(self, selector: str) -> list[list[tuple[float, float]]]:
        """Every sample stored, one list a series."""
        return [[(at, float(value)) for at, value in found["values"]] for found in self._ask(f"{selector}[5m]", None)]


@contextlib.contextmanager
def running_prometheus(folder: Path) -> Iterator[Prometheus]:
    """Runs with `folder/prometheus.yml`, and keeps everything else in the folder too."""
    port = free_port()
    options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    options += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *options], stdout=log, stderr=log)
        try:
            found = Prometheus(port)
            until(lambda: get(f"{found.url}/-/ready"), within_s=15)
            yield found
        finally:
            process.terminate()
            process.wait(20)
