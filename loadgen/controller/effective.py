"""What the target says of its own settings, asked over the same route as everything else; never fails, never loads it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from loadgen.api_key import read_api_key
from loadgen.route import Route
from loadgen.scenario.model import Scenario
from server.effective import getter, read_effective

_THIS_HOST = ("127.0.0.1", "localhost", "::1")


def effective_of(scenario: Scenario, base_url: str, route: Route) -> dict[str, Any]:
    """The settings of a server whose log is not ours to read, as `server.effective.read_effective` gives them."""
    key = None if route.authorizes else read_api_key(scenario.target.api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    get = getter(base_url, opener=route.opener(), headers={**headers, **route.sent_headers()})
    return read_effective(get, local=urlsplit(base_url).hostname in _THIS_HOST)
