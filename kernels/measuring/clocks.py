"""The SM clock while launches run, as cycles over global time, and what the driver says holds it down.

The counter of cycles runs on from launch to launch. So one small launch before and one after those that are timed give
the average clock between them, on each SM that both ran on. Torch; runs in the worker.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from kernels.compiling.instrumented import CLOCK_FIELDS, read_clocks

# No GPU's clock is slower or faster, in MHz: what is beyond was no clock.
_CAN_BE = (50.0, 5000.0)

# Shorter than this, a step of a slow GPU's timer (1 µs) would show in the second digit.
_LEAST_NS = 50_000

# Programs of a probe per SM: one of several lands on each SM, however they are dealt out.
_PER_SM = 4

# By its name since driver 535, and before.
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

# Its bits (nvml.h) that hold the clock down; idle and a chosen clock do not.
LIMITS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature, by the driver",
    0x40: "temperature, by the hardware",
    0x80: "external power brake",
}


def megahertz(before: np.ndarray, after: np.ndarray) -> float | None:
    """The clock between two probes: the median over the SMs that both ran on; None where they give none that can be.

    Args:
        before, after: (programs, 4) int64, CLOCK_FIELDS of each program.
    """
    first, last = (_by_sm(rows) for rows in (before, after))
    both = sorted(first.keys() & last.keys())
    spans = np.array([np.subtract(last[sm], first[sm]) for sm in both]).reshape(-1, 2)
    spans = spans[spans[:, 1] >= _LEAST_NS]
    if not len(spans):
        return None
    clock = float(np.median(spans[:, 0] / spans[:, 1])) * 1000
    return clock if _CAN_BE[0] <= clock <= _CAN_BE[1] else None


def _by_sm(rows: np.ndarray) -> dict[int, tuple[int, int]]:
    """Cycles and time of one program on each SM."""
    return {int(sm): (int(cycles), int(time)) for sm, cycles, time, written in rows if written == 1}


class Probe:
    """Launched before and after what is timed; then asked for the clock in between."""

    def __init__(self) -> None:
        import torch

        self._programs = _PER_SM * torch.cuda.get_device_properties(0).multi_processor_count
        self._records = [
            torch.zeros((self._programs, len(CLOCK_FIELDS)), dtype=torch.int64, device="cuda") for _ in range(2)
        ]

    def launch(self, place: int) -> None:
        """Read all SMs' clocks: 0 before what is timed, 1 after it."""
        read_clocks[(self._programs,)](self._records[place], num_warps=1)

    def megahertz(self) -> float | None:
        """The clock between the last two launches, which must have ended."""
        before, after = (record.cpu().numpy() for record in self._records)
        return megahertz(before, after)


def compile_probe() -> None:
    """Launch the probe once, so that no run waits for it to be compiled."""
    import torch

    Probe().launch(0)
    torch.cuda.synchronize()


@functools.cache
def nvml() -> Nvml | str:
    """The driver's management library for torch's device; where it can't be asked, why not."""
    import torch

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return Nvml(library, f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    except (OSError, AttributeError, RuntimeError) as reason:
        return f"NVML could not be asked: {reason}"


class Nvml:
    """NVML of one device.

    Args:
        library: libnvidia-ml, as ctypes loads it.
        uuid: of the device, as NVML writes it.

    Raises:
        RuntimeError: where it does not know the device.
    """

    _SM = 1  # nvmlClockType_t: NVML_CLOCK_SM

    def __init__(self, library: Any, uuid: str) -> None:
        self._library = library
        self._device = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._device))

    def clock_mhz(self) -> float | None:
        """The SM clock over the past tenths of a second; None where it may not be read."""
        value = ctypes.c_uint()
        try:
            self._call("nvmlDeviceGetClockInfo", self._device, self._SM, ctypes.byref(value))
        except RuntimeError:
            return None
        return float(value.value)

    def limits(self) -> tuple[str, ...]:
        """What holds the clock down now, in words; () where that may not be read."""
        value = ctypes.c_ulonglong()
        for name in _REASONS:
            try:
                self._call(name, self._device, ctypes.byref(value))
            except (RuntimeError, AttributeError):
                continue
            return named_limits(value.value)
        return ()

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise RuntimeError(f"{name} gave {status}")


def named_limits(reasons: int) -> tuple[str, ...]:
    """The bits of NVML's reasons in words.

    >>> named_limits(0x24)
    ('power limit', 'temperature, by the driver')
    """
    return tuple(name for bit, name in LIMITS.items() if reasons & bit)
