"""Types of a scenario's values: text or numbers in; seconds, shares and sweeps out; refusals are sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

_NS_PER_UNIT = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_LONGEST = 10**9  # of whatever unit; also keeps 1e999999999 from being computed
_DURATION = re.compile(r"([+-]?[\d.]+(?:e[+-]?\d+)?)\s*(ms|s|m|h)?", re.IGNORECASE)
_IN_PARTS = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.IGNORECASE)
_ENDPOINT_PATH = re.compile(r"(/v1(/chat/completions|/completions)?)?/*$")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is written, for option help and documents: the metavar of an option, e.g. `DURATION`."""

    metavar: str
    repeatable: bool = False
    """Whether its option may be given several times, each time with a part of the value."""


def parse_duration(value: object) -> float:
    """Seconds, exact to the nanosecond. `value`: "500ms", "5s", "2m", "1h", "1h30m", or a number of seconds (also as text).

    Raises ValueError for anything else, and for a negative time.
    """
    parts = _IN_PARTS.fullmatch(value.strip()) if isinstance(value, str) else None
    if parts is not None and any(parts.groups()):
        hours, minutes, seconds = (int(part or 0) for part in parts.groups())
        value = hours * 3600 + minutes * 60 + seconds
    match = _DURATION.fullmatch(str(value).strip()) if isinstance(value, str | int | float) else None
    try:
        if match is None or isinstance(value, bool):
            raise ValueError
        number = Decimal(match[1])
    except (ValueError, InvalidOperation):
        raise ValueError(
            "That is not a duration: write a number with ms, s, m or h, such as 500ms, 20s or 5m30s."
        ) from None
    if number < 0:
        raise ValueError("A duration cannot be negative.")
    if number > _LONGEST:
        raise ValueError("That is longer than any run.")
    return int(number * _NS_PER_UNIT[(match[2] or "s").lower()]) / 1e9


def format_duration(seconds: float) -> str:
    """Shortest text that `parse_duration` reads back as the same number of nanoseconds."""
    ns = round(seconds * 1e9)
    if ns >= _NS_PER_UNIT["s"] or ns == 0:
        return f"{_decimal(ns, _NS_PER_UNIT['s'])}s"
    return f"{_decimal(ns, _NS_PER_UNIT['ms'])}ms"


def _decimal(ns: int, unit_ns: int) -> str:
    return f"{(Decimal(ns) / unit_ns).normalize():f}"


def _above_zero(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("It must be longer than zero.")
    return seconds


def _with_unit(value: object) -> object:
    # A bare 500 is 500 ms to one tool's SLOs and 500 s to another's.
    if not isinstance(value, str) or value.strip()[-1:].isdigit():
        raise ValueError("A limit needs its unit, since tools disagree about it: write 500ms or 0.5s.")
    return value


def parse_share(value: object) -> float:
    """A share between 0 and 1. `value`: "1%", or a number below 1 such as 0.01.

    A bare 1 is refused: in the field it means 1 % to some tools and 100 % to others.
    """
    text = str(value).strip()
    try:
        number = Decimal(text.removesuffix("%").strip())
        if not number.is_finite():
            raise InvalidOperation
    except InvalidOperation:
        raise ValueError("That is not a percentage: write it such as 1% or 0.01.") from None
    if text.endswith("%"):
        number /= 100
    elif number >= 1:
        raise ValueError(f"{text} could mean {text} % or {number * 100:f} %: write it with a % sign.")
    if not 0 <= number <= 1:
        raise ValueError("A percentage lies between 0% and 100%.")
    return float(number)


def format_share(share: float) -> str:
    return f"{(Decimal(repr(share)) * 100).normalize():f}%"


def parse_sweep(value: object) -> Sequence[Any]:
    """A sequence of at least one value. `value`: one value, a list, or text such as "1,2,4" or "[1, 2, 4]"."""
    if isinstance(value, str):
        text = value.strip().removeprefix("[").removesuffix("]").strip()
        value = [part.strip() for part in text.split(",")] if text else []
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("It is an empty list and needs at least one value.")
        return value
    return [value]


def format_sweep(values: Sequence[Any]) -> Any:
    """One value as itself, several as a list: the way people write them."""
    return values[0] if len(values) == 1 else list(values)


def parse_base_url(value: object) -> str:
    """The server's root without `/v1`: the program adds the API's paths itself. A path of a gateway is kept."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("That is not a URL.")
    text = value.strip()
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"That is not a URL: {str(error).rstrip('.')}.") from None
    if "://" not in text:
        raise ValueError("The URL has no scheme: it begins with http:// or https://.")
    if url.scheme not in ("http", "https"):
        raise ValueError(f"The URL begins with {url.scheme}://, and the API is spoken over http:// or https://.")
    if url.username is not None or url.password is not None:
        raise ValueError("The URL carries a user name or password, which would be written to the run folder.")
    if not url.hostname or port == 0:
        raise ValueError("The URL names no host to connect to.")
    if url.query or url.fragment:
        raise ValueError("The URL carries a query or fragment, which the API's paths cannot follow.")
    return _ENDPOINT_PATH.sub("", text)


def parse_proxy_url(value: object) -> str:
    """`http://host:port`, with `user:password@` before the host where the proxy wants it."""
    text = str(value).strip()
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise ValueError("That is not the URL of a proxy.") from None
    if url.scheme != "http" or "://" not in text:
        raise ValueError(
            "A proxy's URL begins with http://; a proxy that is itself reached by TLS or SOCKS is not known."
        )
    if not url.hostname or not port:
        raise ValueError("The proxy's URL needs a host and a port.")
    if url.path not in ("", "/") or url.query or url.fragment:
        raise ValueError("A proxy's URL ends with its port; in a password, / ? # and @ are written %2F %3F %23 %40.")
    return text.rstrip("/")


def without_credentials(url: str) -> str:
    """A proxy's URL as it may be shown."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def not_a_flag(value: object) -> object:
    """The value itself. Raises ValueError for true and false."""
    # `yes` and `on` are True in YAML, and True is the integer 1 in Python: a typing error, never a count.
    if isinstance(value, bool):
        raise ValueError("That is true or false, not a number.")
    return value


def _off_is_none(value: object) -> object:
    # `port: off` is False in YAML.
    return None if value is False or value == "off" else value


Natural = Annotated[int, Field(ge=0), BeforeValidator(not_a_flag), Kind("INT")]
Count = Annotated[int, Field(ge=1), BeforeValidator(not_a_flag), Kind("INT")]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(not_a_flag), Kind("NUMBER")]

_UNSIGNED = r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_UNIT = "([mM]?[sS]|[mMhH])"
_SEVERAL = r"(\d+[hH]\d+[mM](\d+[sS])?|\d+[hHmM]\d+[sS])"
_DURATION_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": rf"^ *({_UNSIGNED} *{_UNIT}?|{_SEVERAL}) *$"},
    ]
}
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(_DURATION_SCHEMA),
    Kind("DURATION"),
]
"""Seconds in code, `20s` or `500ms` in files; zero is allowed."""
PositiveDuration = Annotated[Duration, AfterValidator(_above_zero)]
Limit = Annotated[
    PositiveDuration,
    BeforeValidator(_with_unit),
    WithJsonSchema({"type": "string", "pattern": rf"^ *({_UNSIGNED} *{_UNIT}|{_SEVERAL}) *$"}),
]
"""A duration that is refused without its unit."""

Share = Annotated[
    float,
    BeforeValidator(parse_share),
    PlainSerializer(format_share, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
                {"type": "string", "pattern": rf"^ *{_UNSIGNED} *% *$"},
            ]
        }
    ),
    Kind("PERCENT"),
]
"""A share between 0 and 1 in code, `1%` in files."""


def _sweep_schema(item: dict[str, Any]) -> WithJsonSchema:
    text = {"type": "string", "pattern": rf"^ *\[? *{_UNSIGNED}( *, *{_UNSIGNED})* *\]? *$"}
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}, text]})


_SWEEP = (BeforeValidator(parse_sweep), PlainSerializer(format_sweep))
Counts = Annotated[tuple[Count, ...], *_SWEEP, _sweep_schema({"type": "integer", "minimum": 1}), Kind("INT[,INT…]")]
"""One count or several: several are a sweep. A tuple in code."""
Numbers = Annotated[
    tuple[Number, ...], *_SWEEP, _sweep_schema({"type": "number", "minimum": 0}), Kind("NUMBER[,NUMBER…]")
]

ProxyUrl = Annotated[
    str, BeforeValidator(parse_proxy_url), PlainSerializer(without_credentials, return_type=str), Kind("URL")
]
"""With its credentials in code, without them in files."""
Text = Annotated[str, Kind("TEXT"), Field(min_length=1)]


def _absolute(value: str) -> str:
    # The run's scenario.yaml lies elsewhere, and must mean the same file.
    return str(Path(value).expanduser().absolute())


FileName = Annotated[str, Field(min_length=1), AfterValidator(_absolute), Kind("FILE")]
"""A file that the run reads, and its scenario.yaml names."""
BaseUrl = Annotated[str, BeforeValidator(parse_base_url), Kind("URL")]
Port = Annotated[
    Annotated[Count, Field(le=65535)] | None,
    BeforeValidator(_off_is_none),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"enum": [None, False, "off"]}]}),
    Kind("PORT"),
]
