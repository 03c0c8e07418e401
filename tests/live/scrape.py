"""Reads Prometheus text over HTTP: takes URLs, gives samples with the instants that bound them, judges nothing."""

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Scrape:
    """One answer of a metrics endpoint; true at some instant between `asked_ns` and `answered_ns` (monotonic)."""

    asked_ns: int
    answered_ns: int
    text: str

    @property
    def at_ns(self) -> int:
        return (self.asked_ns + self.answered_ns) // 2

    @cached_property
    def series(self) -> list[tuple[str, dict[str, str], float]]:
        families = text_string_to_metric_families(self.text)
        return [(s.name, s.labels, s.value) for family in families for s in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """Sum of the series called `name` that have these labels; KeyError when there is none: absent is not 0."""
        found = [v for n, have, v in self.series if n == name and labels.items() <= have.items()]
        if not found:
            raise KeyError(f"{name}{labels or ''} is not among the metrics")
        return sum(found)

    def buckets(self, histogram: str) -> dict[float, float]:
        """Cumulative count by upper edge (seconds, the last one infinite)."""
        return {float(have["le"]): v for n, have, v in self.series if n == f"{histogram}_bucket"}


def scrape(url: str, timeout_s: float = 10.0) -> Scrape:
    """Ask once; raises OSError (URLError) when there is no answer."""
    asked_ns = time.monotonic_ns()
    with urlopen(url, timeout=timeout_s) as answer:
        text = answer.read().decode()
    return Scrape(asked_ns, time.monotonic_ns(), text)


class Sampler:
    """Scrapes one URL every `every_s` in a thread of its own, from `with` until its end; no answer is no sample."""

    def __init__(self, url: str, every_s: float = 0.5) -> None:
        self.samples: list[Scrape] = []
        self._url = url
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name=f"sampler {url}", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.is_set():
            with suppress(OSError):  # not up yet, or gone: the tests ask for the samples that they need
                self.samples.append(scrape(self._url))
            self._stop.wait(self._every_s)


def value_at(samples: Sequence[Scrape], instant_ns: int, name: str) -> float:
    """A counter's value at `instant_ns`, on the line between the scrapes around it; IndexError outside of them."""
    after = bisect_left([s.at_ns for s in samples], instant_ns)
    if not 0 < after < len(samples):
        raise IndexError(
            f"no scrapes around {instant_ns}: the sampler ran from {samples[0].at_ns} to {samples[-1].at_ns}"
        )
    a, b = samples[after - 1], samples[after]
    share = (instant_ns - a.at_ns) / (b.at_ns - a.at_ns)
    return a.value(name) + share * (b.value(name) - a.value(name))


def median_bucket(before: Scrape, after: Scrape, histogram: str) -> tuple[int, list[float]]:
    """Index of the bucket that holds the median of what two scrapes bound, and all upper edges in seconds."""
    first, last = before.buckets(histogram), after.buckets(histogram)
    edges = sorted(last)
    risen = [last[edge] - first[edge] for edge in edges]
    if risen[-1] == 0:
        raise ValueError(f"{histogram} observed nothing between the two scrapes")
    return next(i for i, count in enumerate(risen) if count >= risen[-1] / 2), edges
