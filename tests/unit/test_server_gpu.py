"""GPUs by NVML's own structures: a library in its place fills what the real one would, through the same bindings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from loadgen.server_metrics.gpu import Gpus

GIB = 1 << 30


class Library:
    """The C functions of libnvidia-ml that are called, on two GPUs; the second tells next to nothing."""

    def __init__(self) -> None:
        self.reasons = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonHwThermalSlowdown
        self.shut_down = 0
        self.old_driver = False

    def nvmlInitWithFlags(self, flags: Any) -> int:  # noqa: N802
        return int(pynvml.NVML_SUCCESS)

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.shut_down += 1
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        self._handles = getattr(self, "_handles", {})
        self._handles[id(handle._obj)] = index.value
        self._kept = [*getattr(self, "_kept", []), handle._obj]  # so that no id is given twice
        return int(pynvml.NVML_SUCCESS)

    def _second(self, handle: Any) -> bool:
        return bool(self._handles[id(handle)] == 1)

    def nvmlDeviceGetName(self, handle: Any, name: Any, length: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA H100 80GB HBM3"
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        if self._second(handle):
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        assert isinstance(rates._obj, pynvml.c_nvmlUtilization_t)
        rates._obj.gpu, rates._obj.memory = 97, 61
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        assert isinstance(memory._obj, pynvml.c_nvmlMemory_t)
        memory._obj.total, memory._obj.used, memory._obj.free = 80 * GIB, 72 * GIB, 8 * GIB
        return int(pynvml.NVML_SUCCESS)

    def _number(self, handle: Any, out: Any, value: int) -> int:
        if self._second(handle):
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        out._obj.value = value
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> int:  # noqa: N802
        return self._number(handle, out, 612_500)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, out: Any) -> int:  # noqa: N802
        return self._number(handle, out, 700_000)

    def nvmlDeviceGetTemperatureV(self, handle: Any, out: Any) -> int:  # noqa: N802
        if self.old_driver:
            raise AttributeError
        if self._second(handle):
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        out._obj.temperature = 71
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, out: Any) -> int:  # noqa: N802
        return self._number(handle, out, 70)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, out: Any) -> int:  # noqa: N802
        return self._number(handle, out, 1410 if kind.value == pynvml.NVML_CLOCK_SM else 2619)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, out: Any) -> int:  # noqa: N802
        return self._number(handle, out, 1980)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, out: Any) -> int:  # noqa: N802
        return int(pynvml.NVML_ERROR_NOT_SUPPORTED) if self.old_driver else self._number(handle, out, self.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, out: Any) -> int:  # noqa: N802
        return self._number(handle, out, pynvml.nvmlClocksThrottleReasonHwSlowdown)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    made = Library()
    monkeypatch.setattr(pynvml, "nvmlLib", made)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    yield made


def test_a_gpu_tells_its_load_memory_power_heat_clocks_and_why_they_are_low(library: Library) -> None:
    gpus = Gpus.open()
    assert gpus is not None
    first, second = gpus.read()
    assert (first.index, first.name, first.utilisation) == (0, "NVIDIA H100 80GB HBM3", 0.97)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (72 * GIB, 80 * GIB)
    assert (first.power_w, first.power_limit_w, first.temperature_c) == (612.5, 700.0, 71)
    assert (first.sm_clock_mhz, first.max_sm_clock_mhz, first.memory_clock_mhz) == (1410, 1980, 2619)
    assert first.throttle == ("sw_power_cap", "hw_thermal_slowdown")
    # What the second one does not support is not there, and not 0.
    assert (second.index, second.memory_used_bytes) == (1, 72 * GIB)
    assert (second.utilisation, second.power_w, second.temperature_c, second.sm_clock_mhz) == (None,) * 4
    assert second.throttle == ()
    gpus.close()
    assert library.shut_down == 1


def test_an_idle_gpu_and_clocks_that_somebody_set_are_no_throttling(library: Library) -> None:
    library.reasons = pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonApplicationsClocksSetting
    gpus = Gpus.open()
    assert gpus is not None
    assert gpus.read()[0].throttle == ()


def test_a_driver_that_lacks_the_newer_functions_is_asked_by_the_older_ones(library: Library) -> None:
    library.old_driver = True
    gpus = Gpus.open()
    assert gpus is not None
    first = gpus.read()[0]
    assert (first.temperature_c, first.throttle) == (70, ("hw_slowdown",))


def test_a_host_without_a_driver_has_no_gpus_and_makes_no_noise(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def not_found() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", not_found)
    assert Gpus.open() is None
    assert capfd.readouterr() == ("", "")


def test_a_driver_without_a_gpu_is_let_go_of(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 0)
    assert Gpus.open() is None
    assert library.shut_down == 1
