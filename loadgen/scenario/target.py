"""The target section of a scenario: what is measured, how it is reached, and what becomes of its connections."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from loadgen.headers import parse_headers, with_references
from loadgen.scenario.quantities import BaseUrl, Count, Kind, PositiveDuration, ProxyUrl, Text, parse_base_url
from loadgen.scenario.section import Section


def parse_server_metrics(value: object) -> str:
    """`off` (False in YAML), or a URL as it is."""
    if value is False or value == "off":
        return "off"
    parse_base_url(value)  # for its refusals
    return str(value).strip()


_ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "openai-chat": "chat",
    "openai": "completions",
    "vllm": "completions",
}
"""Paths of the API, and what vLLM's own benchmark calls its two kinds."""


def parse_endpoint(value: object) -> object:
    """`chat` or `completions` for another name of it; anything else as it is."""
    return _ENDPOINTS.get(value, value) if isinstance(value, str) else value


class Target(Section):
    """What is measured: a server that the run starts (`server`), or one that is there already (`base_url`)."""

    server: Annotated[Literal["sim", "vllm"], Kind("sim|vllm")] | None = Field(
        "sim",
        description="Server to start for the run; null where base_url is given. `sim` is the built-in simulator, `vllm` a "
        "real vLLM, see [vllm.md](vllm.md).",
    )
    base_url: BaseUrl | None = Field(
        None, description="Root of an OpenAI-compatible server that is there already, such as http://127.0.0.1:8000."
    )
    model: Text | None = Field(None, description="Name of the model; null asks the server's /v1/models.")
    endpoint: Annotated[Literal["chat", "completions"], BeforeValidator(parse_endpoint), Kind("chat|completions")] = (
        Field("chat", description="API to load: /v1/chat/completions or /v1/completions.")
    )
    api_key_env: Annotated[str, Kind("NAME")] = Field(
        "OPENAI_API_KEY",
        description="Name of the environment variable that holds the API key; no key is sent where it is not set.",
    )
    insecure: bool = Field(False, description="Accept any TLS certificate.")
    ca_file: Annotated[Text, Kind("FILE")] | None = Field(
        None,
        description="PEM file with the authority that signed the server's certificate; null trusts the system's, or "
        "those of SSL_CERT_FILE.",
    )
    proxy: ProxyUrl | None = Field(
        None,
        repr=False,
        description="HTTP proxy to go through, such as http://127.0.0.1:3128 (HTTPS by CONNECT); those of the environment "
        "are not taken. User and password stand before the host, or in LOADGEN_PROXY_AUTH.",
    )
    headers: Annotated[
        dict[str, str],
        BeforeValidator(parse_headers),
        PlainSerializer(with_references),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
                    {"type": "array", "items": {"type": "string"}},
                    {"type": "string"},
                ]
            }
        ),
        Kind("'NAME: VALUE'", repeatable=True),
    ] = Field(
        default_factory=dict,
        repr=False,
        description="Further headers of every request, such as {X-Tenant: blue}. A secret is given as a reference to an "
        "environment variable, ${NAME}; one that is written out is kept out of the run folder.",
    )
    stream: bool = Field(
        True,
        description="Ask for answers as streams. Without, they come whole: there is no first token then, and no time between "
        "tokens, only end-to-end latency and throughput.",
    )
    connections: Annotated[Literal["keep-alive", "per-request"], Kind("keep-alive|per-request")] = Field(
        "keep-alive", description="Whether a connection is used again, or each request opens its own."
    )
    recycle_requests: Count | None = Field(None, description="Close a connection after so many requests.")
    recycle_age: PositiveDuration | None = Field(
        None, description="Close a connection after the first request that ends when it has been open so long."
    )
    max_connections: Count | None = Field(
        None,
        description="Connections open at once, over all workers; a request that finds none free waits. Null is no limit.",
    )
    server_metrics: Annotated[str, BeforeValidator(parse_server_metrics), Kind("URL|off")] | None = Field(
        None,
        description="Page with the server's own metrics, which is sampled while a level is measured; null is /metrics of "
        "base_url. `off` leaves them alone.",
    )
    shared: bool = Field(
        False,
        description="Others use the server while it is measured, and are meant to: their traffic leaves a level valid, with a "
        "doubt, and its figures are those beside it. See [soak.md](soak.md#a-server-in-use).",
    )
    ready_timeout: PositiveDuration = Field(
        60.0, description="How long to wait until the server answers; 600s for a vLLM that is started."
    )

    @model_validator(mode="before")
    @classmethod
    def _base_url_replaces_the_default_server(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("base_url") is not None and "server" not in data:
            return {**data, "server": None}
        return data

    @model_validator(mode="before")
    @classmethod
    def _a_vllm_takes_its_time(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("server") == "vllm" and "ready_timeout" not in data:
            return {**data, "ready_timeout": 600.0}
        return data

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if self.server is None and self.base_url is None:
            raise ValueError("No target is given: set target.server, or target.base_url.")
        if self.server is not None and self.base_url is not None:
            raise ValueError(
                "Both target.server and target.base_url are given: a run starts a server or uses one that is there."
            )
        return self

    @field_validator("ca_file")
    @classmethod
    def _is_of_use(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("insecure"):
            raise ValueError("Any certificate is accepted with target.insecure, so the file has no effect: keep one.")
        return value

    @field_validator("recycle_requests", "recycle_age")
    @classmethod
    def _there_is_something_to_recycle(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("connections") == "per-request":
            raise ValueError(
                "A connection serves one request with target.connections: per-request, so it has no effect."
            )
        return value

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        # Keys of the well-known kinds (sk-…, hf_…) are not in capitals, so a key pasted here is caught.
        if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
            raise ValueError(
                "This key takes the name of an environment variable in capitals, never the API key itself."
            )
        return value
