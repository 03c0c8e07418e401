"""The worker's own samples stay bounded in a soak of days, and their percentiles are those of the whole time."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.worker import samples
from loadgen.worker.samples import Samples


def test_all_are_kept_as_long_as_there_is_room() -> None:
    few = Samples()
    assert (list(few.kept), few.max) == ([], None)
    for value in (3, 1, 2):
        few.append(value)
    assert (list(few.kept), few.max) == ([3, 1, 2], 3)


@pytest.mark.parametrize("factor", [1.5, 2, 3, 7.3, 100])
def test_a_long_stream_keeps_the_same_share_of_every_stretch(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    monkeypatch.setattr(samples, "MOST", 1000)
    stream = Samples()
    count = int(1000 * factor)
    for instant in range(count):
        stream.append(instant)
    gaps = np.diff(np.array(stream.kept))
    assert 500 <= len(stream.kept) <= 1000
    assert stream.kept[0] == 0 and set(gaps) == {gaps[0]}  # evenly, from the beginning …
    assert count - stream.kept[-1] <= gaps[0]  # … to the end
    assert stream.max == count - 1


def test_percentiles_are_those_of_all_samples_and_the_maximum_is_exact() -> None:
    rng = np.random.default_rng(7)
    values = rng.lognormal(12, 1, 300_000).astype(np.int64)
    values[123_457] = 10**12
    stream = Samples()
    for value in values.tolist():
        stream.append(value)
    for percent in (50, 99):
        assert np.percentile(stream.kept, percent) == pytest.approx(np.percentile(values, percent), rel=0.05)
    assert stream.max == 10**12
