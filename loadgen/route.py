"""How the target is reached: certificates, proxy and further headers; the same for the load and for questions.

A proxy's credentials and the secrets of headers are kept out of everything that is written or sent: a worker reads them
from its own environment.
"""

from __future__ import annotations

import base64
import os
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from loadgen.errors import UsageError
from loadgen.headers import resolved, secret_environment, secrets_of, with_references, without_secrets

PROXY_AUTH = "LOADGEN_PROXY_AUTH"
"""The environment variable with a proxy's `user:password`, written as in a URL."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way to a target. The proxies of the environment (HTTPS_PROXY and such) are never taken."""

    insecure: bool = False
    """Whether any certificate is accepted."""
    ca_pem: str | None = None
    """Certificates (PEM) of the authorities that count instead of the system's; the text, so that every host has it."""
    proxy: str | None = None
    """`http://host:port`, without credentials."""
    proxy_auth: str | None = field(default=None, repr=False)
    """`user:password`, percent-encoded."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers of every request, with references in place of secrets."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What those references stand for, by environment variable, where a scenario wrote the secret out."""

    @classmethod
    def of(
        cls, *, insecure: bool, ca_file: str | None, proxy: str | None, headers: Mapping[str, str] | None = None
    ) -> Self:
        """The route that a scenario's target asks for. `proxy` may carry credentials, else those of `PROXY_AUTH` are
        taken. Raises UsageError when `ca_file` is of no use, or a header names a variable that is not set."""
        url, auth = _without_credentials(proxy) if proxy is not None else (None, None)
        given = headers or {}
        route = cls(
            insecure,
            _read_certificates(ca_file),
            url,
            auth or _environment_auth(url),
            with_references(given),
            secret_environment(given),
        )
        route.sent_headers()
        return route

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` gave on another host; credentials and secrets come from this process's environment. Raises
        UsageError when a header's secret is not there."""
        route = cls(**values, proxy_auth=_environment_auth(values["proxy"]))
        route.sent_headers()
        return route

    def to_dict(self) -> dict[str, Any]:
        """All of it but credentials and secrets."""
        values = asdict(replace(self, proxy_auth=None, secrets={}))
        del values["proxy_auth"], values["secrets"]
        return values

    def environment(self) -> dict[str, str]:
        """What the processes that this one starts need to know credentials and secrets."""
        return {**self.secrets, **({PROXY_AUTH: self.proxy_auth} if self.proxy_auth else {})}

    def sent_headers(self) -> dict[str, str]:
        """The further headers of every request, secrets filled in."""
        return resolved(self.headers, {**os.environ, **self.secrets})

    @property
    def authorizes(self) -> bool:
        """Whether they say who asks, in place of an API key."""
        return any(name.lower() == "authorization" for name in self.headers)

    def without_secrets(self, text: str) -> str:
        """`text` with the secrets of headers cut out."""
        return without_secrets(text, secrets_of(self.headers, {**os.environ, **self.secrets}) if self.headers else ())

    def proxy_headers(self) -> dict[str, str]:
        """The header with the credentials for the proxy (RFC 7617, in UTF-8); empty where there are none."""
        if self.proxy is None or self.proxy_auth is None:
            return {}
        return {"Proxy-Authorization": f"Basic {base64.b64encode(unquote(self.proxy_auth).encode()).decode()}"}

    def ssl_context(self) -> ssl.SSLContext:
        """For one client. Without `ca_pem` the system's authorities count, or those of SSL_CERT_FILE and SSL_CERT_DIR."""
        context = ssl.create_default_context(cadata=self.ca_pem)
        context.set_alpn_protocols(["http/1.1"])
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def opener(self) -> urllib.request.OpenerDirector:
        """Asks the target as the load will; follows no redirect, since the key is for the target alone."""
        through = [_ThroughProxy(self.proxy, self.proxy_headers())] if self.proxy is not None else []
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            *through,
            urllib.request.HTTPSHandler(context=self.ssl_context()),
            _NoRedirect(),
        )
        opener.addheaders = [("User-Agent", "llm-loadgen"), *self.sent_headers().items()]
        return opener


def unused_proxy_variable(base_url: str) -> str | None:
    """The environment variable of a proxy that other programs would use for `base_url`; None when there is none."""
    url = urlsplit(base_url)
    names = (f"{url.scheme}_proxy", f"{url.scheme.upper()}_PROXY")
    found = next((name for name in names if os.environ.get(name)), None)
    return None if found is None or urllib.request.proxy_bypass(url.hostname or "") else found


class _ThroughProxy(urllib.request.BaseHandler):
    # urllib's own handler would go past it for the hosts of NO_PROXY, which the load does not know.
    handler_order = 100

    def __init__(self, proxy: str, headers: dict[str, str]) -> None:
        self._host = proxy.removeprefix("http://")
        self._headers = headers

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        for name, value in self._headers.items():
            request.add_header(name, value)  # urllib gives it to the proxy alone where there is a tunnel
        request.set_proxy(self._host, "http")
        return request

    https_request = http_request


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _without_credentials(proxy: str) -> tuple[str, str | None]:
    credentials, at, host = proxy.removeprefix("http://").rpartition("@")
    return f"http://{host}", credentials if at else None


def _environment_auth(proxy: str | None) -> str | None:
    return os.environ.get(PROXY_AUTH) or None if proxy is not None else None


def _read_certificates(ca_file: str | None) -> str | None:
    if ca_file is None:
        return None
    try:
        text = Path(ca_file).expanduser().read_text(encoding="utf-8")
        ssl.create_default_context(cadata=text)
    except OSError as error:  # ssl.SSLError too
        problem = "holds no certificate that can be read" if isinstance(error, ssl.SSLError) else error.strerror
    except ValueError:
        problem = "holds no certificate that can be read"
    else:
        return text
    raise UsageError(
        f"target.ca_file is {ca_file!r}, and that file cannot be used: {problem}.",
        hint="give a PEM file with the certificate of the authority that signed the server's",
    )
