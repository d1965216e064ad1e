"""Prepare a launch for execution: its arguments in the constant bank, and known values in global memory."""

import functools
import re
import struct
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from tilescope.captures.listings import UnsupportedOperation
from tilescope.captures.reader import BaseCapture, Build, CapturedLaunch
from tilescope.evaluate.captured import read_argument, read_storages
from tilescope.evaluate.global_memory import STORAGE_STEP, Descriptor, Storage, storage_number
from tilescope.evaluate.sectors import LANES
from tilescope.inside.execution import LaunchInputs
from tilescope.sass.listing import read_table

# Offsets in the constant bank, from a compute capability on: the numbers of threads and of programs along x, y and z,
# the size of local memory, and the arguments.
_LAUNCH_AT = (
    (100, 0x360, 0x370, 0x37C, 0x380),
    (90, 0, 12, 0x28, 0x210),
    (70, 0, 12, 0x28, 0x160),
)

_TARGET = re.compile(r"^\.target sm_(\d+)", re.MULTILINE)
_PARAMETER = re.compile(r"^\s*\.param\s+(?:\.align (\d+) )?\.(\w)(\d+).*?(?:\[(\d+)\])?,?$")


def make_launch(
    capture: BaseCapture, launch: CapturedLaunch, build: Build | None = None
) -> LaunchInputs:
    """Return a launch for `execute`.

    Args:
        build: the compiled kernel, if it is not the captured one.
    """
    kernel, codes = build or capture.build(launch.kernel)
    (target,) = _TARGET.findall(codes["ptx"])
    threads_at, programs_at, local_at, start = next(
        places for capability, *places in _LAUNCH_AT if int(target) >= capability
    )
    arguments = [read_argument(capture, argument) for argument in launch.arguments]
    words = _place_arguments(codes["ptx"], start, arguments)
    threads = LANES * kernel.num_warps
    for at, numbers in ((threads_at, (threads, 1, 1)), (programs_at, launch.grid)):
        words |= {at + 4 * axis: number for axis, number in enumerate(numbers)}
    words[local_at] = 0
    memory = _Memory(read_storages(capture, launch))
    return LaunchInputs(launch.grid, threads, words.get, memory.load, read_table(codes["sass"]))


class _Memory:
    """The known values in global memory."""

    def __init__(self, storages: Sequence[Storage]) -> None:
        self._storages = storages
        self._read = functools.cache(self._read_bytes)

    def load(self, address: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the elements of `width` bytes at addresses, and where they are known."""
        values = np.zeros(address.shape, np.int64)
        known = np.zeros(address.shape, bool)
        numbers = storage_number(address)
        for number in np.unique(numbers).tolist():
            if not 0 <= number < len(self._storages):
                continue
            contents = self._read(number)
            start = (number + 1) * STORAGE_STEP + self._storages[number].start_bytes
            place = address - start
            inside = (numbers == number) & (place >= 0) & (place + width <= len(contents))
            for byte in range(width):
                values[inside] |= contents[place[inside] + byte].astype(np.int64) << 8 * byte
            known |= inside
        return values, known

    def _read_bytes(self, number: int) -> np.ndarray:
        for element_bytes, read in self._storages[number].contents.items():
            with suppress(UnsupportedOperation):  # there is no copy of the values
                contents = read()
                if contents.itemsize == element_bytes:  # a copy of bfloat16 is wider
                    return contents.view(np.uint8)
        return np.zeros(0, np.uint8)


def _place_arguments(
    ptx: str, start: int, values: Sequence[int | float | bool | Descriptor]
) -> dict[int, int]:
    """Return the words of the arguments by their offset in the constant bank."""
    declaration = ptx.split(".entry", 1)[1].split("{", 1)[0]
    parameters = filter(None, map(_PARAMETER.match, declaration.splitlines()))
    words = {}
    at = start
    for match, value in zip(parameters, values, strict=False):  # Triton adds scratch memory
        align, kind, bits, count = match.groups()
        size = int(bits) // 8 * int(count or 1)
        step = int(align) if align else size
        at = -(-at // step) * step
        if not isinstance(value, Descriptor):
            if kind == "f":
                data = struct.pack("<d" if size == 8 else "<f", value)
            else:
                data = (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
            for place in range(0, size, 4):
                words[at + place] = int.from_bytes(data[place : place + 4], "little")
        at += size
    return words
