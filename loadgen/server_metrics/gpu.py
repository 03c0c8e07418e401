"""Samples the GPUs of this host by NVML, the library of NVIDIA's driver; where there is none, says so without noise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pynvml

from loadgen.server_metrics.sample import GpuSample

# nvml.h's bits of why clocks are not at their highest; that the GPU is idle, and that somebody set them, is no throttling.
_THROTTLE = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
}


class Gpus:
    """All GPUs that the driver shows to this process."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles
        self._names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]

    @classmethod
    def open(cls) -> Gpus | None:
        """None where there is no driver or no GPU."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        try:
            gpus = cls([pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())])
        except pynvml.NVMLError:
            gpus = cls([])
        if gpus._handles:
            return gpus
        gpus.close()
        return None

    def read(self) -> tuple[GpuSample, ...]:
        """One sample a GPU; what one does not tell (a MIG slice has no power) is None."""
        return tuple(self._read(index, handle) for index, handle in enumerate(self._handles))

    def _read(self, index: int, handle: Any) -> GpuSample:
        rates = _told(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        memory = _told(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        return GpuSample(
            index=index,
            name=self._names[index],
            utilisation=None if rates is None else rates.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=_thousandth(_told(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))),
            power_limit_w=_thousandth(_told(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))),
            temperature_c=_told(
                lambda: pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU),
                lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            ),
            sm_clock_mhz=_told(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            max_sm_clock_mhz=_told(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            memory_clock_mhz=_told(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            throttle=_reasons(
                _told(
                    lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
                    lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
                )
                or 0
            ),
        )

    def close(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _told(*ways: Callable[[], Any]) -> Any:
    """What the first way that this driver and GPU know gives: drivers before 535 lack the newer ones."""
    for ask in ways:
        with contextlib.suppress(pynvml.NVMLError, AttributeError):
            return ask()
    return None


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _reasons(bits: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _THROTTLE.items() if bits & bit)
