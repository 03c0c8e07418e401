"""Takes a registry, puts it on a Pushgateway once, in place of what the last run of the scenario left there."""

from __future__ import annotations

import http.client
from urllib.error import HTTPError, URLError

from prometheus_client import CollectorRegistry, push_to_gateway

from loadgen.errors import LoadgenError

JOB = "loadgen"
_TIMEOUT_S = 10.0


def push(registry: CollectorRegistry, url: str, scenario: str) -> None:
    """Replace the group `job="loadgen", instance=scenario` of the gateway at `url`. Raises LoadgenError when that failed."""
    try:
        push_to_gateway(url, JOB, registry, grouping_key={"instance": scenario}, timeout=_TIMEOUT_S)
    except (OSError, http.client.HTTPException) as error:
        raise LoadgenError(
            f"The metrics could not be pushed to the Pushgateway at {url}: {_reason(error)}.",
            hint="the run is complete; metrics.prom in its folder holds the same series and can be pushed later",
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        with error:
            said = error.read(300).decode(errors="replace").strip().partition("\n")[0]
        return f"it answered {error.code} {error.reason}" + (f" ({said})" if said else "")
    cause = error.reason if isinstance(error, URLError) else error
    told = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return str(told).rstrip(".")
