"""Refuses to load a target on the public internet without consent: takes a scenario, asks the resolver, sends nothing."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from loadgen.errors import UsageError
from loadgen.scenario.model import Scenario


def check_consent(scenario: Scenario, addresses_of: Callable[[str], list[str]] | None = None) -> None:
    """Raises UsageError where the target's address is public, or behind a proxy unknown, and nobody said that it may be loaded.

    `addresses_of` gives the addresses of a host, none where it has none: then connecting will say what is wrong.
    """
    url = scenario.target.base_url
    if url is None or scenario.safety.own_target:
        return
    host = urlsplit(url).hostname or ""
    addresses = (addresses_of or _addresses_of)(host)
    public = next((one for one in addresses if ipaddress.ip_address(one.partition("%")[0]).is_global), None)
    if public is not None:
        where = host if host == public else f"{host} ({public})"
        why = f"{where} is neither this host nor on a private network"
    elif not addresses and scenario.target.proxy is not None:
        why = f"only the proxy knows where {host} is"
    else:
        return
    raise UsageError(
        f"The target {url} is not loaded without consent: {why}, so other people may use it.",
        hint="if you may load it, say so with --i-own-this-target, or safety.own_target: true in the scenario",
    )


def _addresses_of(host: str) -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []
