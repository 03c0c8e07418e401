"""Numbers as people write them of models and GPUs: `70B`, `3.35TB/s`, `80GB`, `bf16`; gives plain numbers, never guesses."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*")
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_BYTES = {
    "b": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
    "tib": 2.0**40,
}

FEWEST_PARAMETERS, MOST_PARAMETERS = 1e6, 1e14
LEAST_BANDWIDTH, MOST_BANDWIDTH = 5e9, 1e15
LEAST_MEMORY, MOST_MEMORY = 1e8, 1e14
"""What lies beyond is no language model and no GPU, but a slip of the unit."""

BYTES_OF_DTYPE = {
    "fp32": 4.0,
    "float32": 4.0,
    "fp16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "bf16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
}
"""Bytes of one value."""


def parse_count(text: str) -> float:
    """`70B` → 7e10, `8.03b`, `135M`, `405000000000`. Raises ValueError."""
    count = _parsed(text, _COUNTS, "a number such as 70B, 8.03B or 135M")
    if count < FEWEST_PARAMETERS:
        billions = f"; write {text.strip()}B for billions" if _is_number(text) else ""
        raise ValueError(f"{text!r} is {count:g} parameters, fewer than any model has{billions}")
    if count > MOST_PARAMETERS:
        raise ValueError(f"{text!r} is more parameters than any model has, which are written as 70B, 8.03B or 135M")
    return count


def parse_bytes(text: str) -> float:
    """`80GB` (10^9), `24GiB` (2^30). Raises ValueError."""
    if _is_number(text):
        raise ValueError(f"{text!r} is a size without its unit; write {text.strip()}GB if that is meant")
    size = _parsed(text, _BYTES, "a size with its unit, such as 80GB or 24GiB")
    if not LEAST_MEMORY <= size <= MOST_MEMORY:
        raise ValueError(f"{text!r} is {bytes_text(size)}, no GPU's memory")
    return size


def parse_bandwidth(text: str) -> float:
    """`3.35TB/s`, in bytes a second. Raises ValueError; without /s too, since GB alone may mean a size."""
    if _is_number(text):
        raise ValueError(f"{text!r} is a bandwidth without its unit; write {_of_a_gpu(text)} if that is meant")
    number, slash, second = text.rpartition("/")
    if not slash or second.strip().lower() not in ("s", "sec"):
        raise ValueError(f"{text!r} is not a bandwidth such as 3.35TB/s or 864GB/s")
    bandwidth = _parsed(number, _BYTES, "a bandwidth such as 3.35TB/s or 864GB/s")
    if not LEAST_BANDWIDTH <= bandwidth <= MOST_BANDWIDTH:
        raise ValueError(f"{text!r} is {bytes_text(bandwidth)}/s, no GPU's bandwidth")
    return bandwidth


def _is_number(text: str) -> bool:
    """Whether it is a number above 0 without a unit."""
    match = _NUMBER.fullmatch(text.strip())
    return match is not None and match[1] == text.strip() and float(match[1]) > 0


def _of_a_gpu(text: str) -> str:
    """The bandwidth that is most likely meant by a number: no GPU has 20 TB/s, and none 20 GB/s."""
    number = text.strip()
    return f"{number}{'TB' if float(number) < 20 else 'GB'}/s"


def _parsed(text: str, units: dict[str, float], form: str) -> float:
    match = _NUMBER.fullmatch(text)
    unit = None if match is None else units.get(match[2].lower())
    if match is None or unit is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not {form}")
    number = float(Decimal(match[1]) * Decimal(unit))
    if math.isinf(number):
        raise ValueError(f"{text!r} is more than any such number")
    return number


def dtype_bytes(name: str) -> float:
    """Bytes of one value of a type, by its usual names in any case. Raises ValueError."""
    size = BYTES_OF_DTYPE.get(name.lower().removeprefix("torch."))
    if size is None:
        raise ValueError(f"type {name!r} is none of {', '.join(BYTES_OF_DTYPE)}")
    return size


def bytes_text(count: float) -> str:
    """`140 GB`, `1.07 GB`, `328 kB`: three digits, decimal units."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g} bytes"


def count_text(count: float) -> str:
    """`70 B`, `8.03 B`, `135 M`: three digits."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g}"
