"""The simulator's alarm, and its command's defaults."""

import asyncio
import inspect
import statistics
import sys
import time

import pytest
import uvloop

from loadgen.cli.serve import sim
from server.simulator.alarm import Alarm
from server.simulator.settings import SimulatorSettings

MS = 1_000_000


async def rings_ns(offsets_ns: list[int]) -> list[int]:
    """How late the alarm rang for each offset, one after the other."""
    late_ns = []
    rung = asyncio.Event()
    alarm = Alarm(asyncio.get_running_loop(), rung.set)
    for offset_ns in offsets_ns:
        at_ns = time.monotonic_ns() + offset_ns
        alarm.set(at_ns)
        await asyncio.wait_for(rung.wait(), 5)
        late_ns.append(time.monotonic_ns() - at_ns)
        rung.clear()
    alarm.close()
    return late_ns


def run(main: object) -> object:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the kernel timer")
def test_the_alarm_is_finer_than_the_loops_milliseconds() -> None:
    late_ns = run(rings_ns([4_300_000] * 50))
    assert min(late_ns) >= 0
    assert statistics.median(late_ns) < 0.5 * MS, "measured 0.07 ms on an idle core"


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_an_instant_that_is_past_rings_at_once(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    (late_ns,) = run(rings_ns([-5 * MS]))
    assert late_ns < 1000 * MS


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_setting_the_alarm_again_replaces_the_instant(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)

    async def rings() -> int:
        count = 0

        def ring() -> None:
            nonlocal count
            count += 1

        alarm = Alarm(asyncio.get_running_loop(), ring)
        alarm.set(time.monotonic_ns() + 5 * MS)
        alarm.set(time.monotonic_ns() + 60 * MS)
        await asyncio.sleep(0.03)
        assert count == 0
        await asyncio.sleep(0.1)
        alarm.close()
        return count

    assert run(rings()) == 1


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_closed_alarm_does_not_ring(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)

    async def rings() -> list[int]:
        rung: list[int] = []
        alarm = Alarm(asyncio.get_running_loop(), lambda: rung.append(1))
        alarm.set(time.monotonic_ns() + 5 * MS)
        alarm.close()
        await asyncio.sleep(0.05)
        return rung

    assert run(rings()) == []


def test_the_command_has_every_setting_with_the_same_default() -> None:
    options = inspect.signature(sim).parameters
    for name, field in SimulatorSettings.model_fields.items():
        assert options[name].default == field.default, name
