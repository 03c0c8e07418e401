"""Distributions of a number of tokens: each turns a number in [0, 1) into a length; they draw nothing themselves.

All are inverse distribution functions, so a length is as pure as the number that it is made from. A bounded normal or
lognormal is the distribution *given* that it lies within its bounds, as if drawn again until it does: nothing piles up
at the bounds. The mean then moves, which `expected` tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Protocol, Self

UNBOUNDED_STDDEVS = 6
"""Without a max, lengths end so many standard deviations above the mean."""

_STANDARD = NormalDist()
_EXPECTED_STEPS = 2_000


class Distribution(Protocol):
    """A number of tokens, by chance."""

    @property
    def longest(self) -> int:
        """No length is longer."""

    def at_least(self, tokens: int) -> Self:
        """The same, beginning at `tokens` (at its mean, if that is less) where it has no lower bound of its own."""

    @property
    def shortest(self) -> int:
        """No length is shorter."""

    def at(self, u: float) -> int:
        """The length below which a share `u` of all lengths lies; 0 ≤ u < 1."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as a scenario writes it; `distribution` reads it back."""

    def __str__(self) -> str:
        """In words, such as `lognormal, mean 512, stddev 128, 16 to 4096`."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    tokens: int

    @property
    def shortest(self) -> int:
        return self.tokens

    @property
    def longest(self) -> int:
        return self.tokens

    def at_least(self, tokens: int) -> Self:
        return self

    def at(self, u: float) -> int:
        return self.tokens

    def to_dict(self) -> dict[str, Any]:
        return {"distribution": "fixed", "tokens": self.tokens}

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `min` to `max` as often as every other."""

    min: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise ValueError(f"min is {self.min} and max {self.max}: it needs 1 ≤ min ≤ max.")

    @property
    def shortest(self) -> int:
        return self.min

    @property
    def longest(self) -> int:
        return self.max

    def at_least(self, tokens: int) -> Self:
        return self

    def at(self, u: float) -> int:
        return self.min + int(u * (self.max - self.min + 1))

    def to_dict(self) -> dict[str, Any]:
        return {"distribution": "uniform", "min": self.min, "max": self.max}

    def __str__(self) -> str:
        return f"uniform, {self.min} to {self.max}"


@dataclass(frozen=True, slots=True)
class Normal:
    """The normal distribution with this mean and standard deviation of the tokens, within its bounds."""

    mean: float
    stddev: float
    min: int | None = None
    """None is as short as may be."""
    max: int | None = None
    """None is `UNBOUNDED_STDDEVS` above the mean."""

    def __post_init__(self) -> None:
        if self.mean < 1 or self.stddev < 0:
            raise ValueError(f"mean is {self.mean:g} and stddev {self.stddev:g}: it needs mean ≥ 1 and stddev ≥ 0.")
        if self.min is not None and self.min < 1:
            raise ValueError(f"min is {self.min}: no length is below 1.")
        if not self.shortest <= self.mean <= self.longest:
            raise ValueError(f"mean is {self.mean:g}, which does not lie between min and max ({self._span}).")

    @property
    def shortest(self) -> int:
        return 1 if self.min is None else self.min

    @property
    def longest(self) -> int:
        return math.ceil(self.mean + UNBOUNDED_STDDEVS * self.stddev) if self.max is None else self.max

    def at_least(self, tokens: int) -> Self:
        return replace(self, min=min(tokens, math.floor(self.mean))) if self.min is None else self

    def at(self, u: float) -> int:
        # Half a token beyond both bounds, so that the shortest and the longest length are as wide as any other.
        low, high = self._share_below(self.shortest - 0.5), self._share_below(self.longest + 0.5)
        if high - low < 1e-12:  # without a spread
            return round(self.mean)
        length = math.floor(self._length_at(low + u * (high - low)) + 0.5)
        return min(max(length, self.shortest), self.longest)  # of rounding errors

    def _share_below(self, tokens: float) -> float:
        return _STANDARD.cdf((tokens - self.mean) / self.stddev) if self.stddev else float(tokens >= self.mean)

    def _length_at(self, share: float) -> float:
        return self.mean + self.stddev * _z(share) if self.stddev else self.mean

    @property
    def _span(self) -> str:
        return f"{self.shortest} to {self.longest}"

    def to_dict(self) -> dict[str, Any]:
        bounds = {"min": self.min, "max": self.max}
        given = {name: bound for name, bound in bounds.items() if bound is not None}
        return {"distribution": type(self).__name__.lower(), "mean": self.mean, "stddev": self.stddev} | given

    def __str__(self) -> str:
        name = type(self).__name__.lower()
        mean = expected(self)
        moved = f" ({mean:.0f} within its bounds)" if abs(mean - self.mean) > 0.01 * self.mean else ""
        return f"{name}, mean {self.mean:g}{moved}, stddev {self.stddev:g}, {self._span}"


@dataclass(frozen=True, slots=True)
class LogNormal(Normal):
    """The lognormal distribution whose *lengths* (not their logarithms) have this mean and standard deviation."""

    def _share_below(self, tokens: float) -> float:
        mu, sigma = self._of_the_logarithm()
        return _STANDARD.cdf((math.log(tokens) - mu) / sigma) if sigma else float(tokens >= self.mean)

    def _length_at(self, share: float) -> float:
        mu, sigma = self._of_the_logarithm()
        return math.exp(mu + sigma * _z(share)) if sigma else self.mean

    def _of_the_logarithm(self) -> tuple[float, float]:
        """(mean, standard deviation) of the logarithm of a length."""
        variance = math.log1p((self.stddev / self.mean) ** 2)
        return math.log(self.mean) - variance / 2, math.sqrt(variance)


def _z(share: float) -> float:
    return _STANDARD.inv_cdf(min(max(share, 1e-15), 1 - 1e-15))


def expected(lengths: Distribution) -> float:
    """The mean of all lengths, bounds and rounding included (to about a thousandth)."""
    return sum(lengths.at((i + 0.5) / _EXPECTED_STEPS) for i in range(_EXPECTED_STEPS)) / _EXPECTED_STEPS


_KINDS: Mapping[str, tuple[type[Distribution], tuple[str, ...], tuple[str, ...]]] = {
    "fixed": (Fixed, ("tokens",), ()),
    "uniform": (Uniform, ("min", "max"), ()),
    "normal": (Normal, ("mean", "stddev"), ("min", "max")),
    "lognormal": (LogNormal, ("mean", "stddev"), ("min", "max")),
}
"""Each distribution with the keys that it needs and those that it may have."""

_WHOLE = ("min", "max", "tokens")
"""Keys that are whole numbers of tokens."""


def json_schemas() -> list[dict[str, Any]]:
    """JSON Schema of a mapping that `distribution` takes, one for each kind."""
    schemas = []
    for name, (_, needed, optional) in _KINDS.items():
        whole = {"type": "integer", "minimum": 1}
        keys = {key: whole if key in _WHOLE else {"type": "number", "minimum": 0} for key in (*needed, *optional)}
        schemas.append(
            {
                "type": "object",
                "properties": {"distribution": {"const": name}, **keys},
                "required": ["distribution", *needed],
                "additionalProperties": False,
            }
        )
    return schemas


def distribution(data: Mapping[str, Any]) -> Distribution:
    """The distribution that a mapping such as `{distribution: normal, mean: 512, stddev: 128}` describes.

    Raises ValueError with a sentence that names the key and what it should be.
    """
    name = data.get("distribution")
    if not isinstance(name, str) or name not in _KINDS:
        raise ValueError(f"distribution is {name!r}; it must be {', '.join(list(_KINDS)[:-1])} or {list(_KINDS)[-1]}.")
    kind, needed, optional = _KINDS[name]
    given = {key: value for key, value in data.items() if key != "distribution" and value is not None}
    for key in given:
        if key not in needed + optional:
            raise ValueError(
                f"{key} is not a key of a {name} distribution; its keys are {', '.join(needed + optional)}."
            )
    for key in needed:
        if key not in given:
            raise ValueError(f"A {name} distribution needs {key}.")
    for key, value in given.items():
        whole = key in _WHOLE
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not math.isfinite(value):
            raise ValueError(f"{key} is {value!r}; it must be a {'whole ' * whole}number.")
    return kind(**given)
