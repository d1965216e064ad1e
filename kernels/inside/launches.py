"""What the execution of a captured launch needs: its arguments in constant memory, and values in global memory."""

import re
import struct

import numpy as np

from kernels.capture.reader import Argument, BaseCapture, CapturedLaunch
from kernels.evaluate.global_memory import STORAGE_STEP, storage_number
from kernels.inside.execution import Launch
from kernels.sectors import SECTOR_BYTES  # noqa: F401

# The first byte of the arguments in the constant bank, by the architecture's first compute capability.
_ARGUMENTS_AT = ((100, 0x380), (90, 0x210), (80, 0x160))
_PARAMETER = re.compile(r"^\s*\.param\s+(?:\.align (\d+) )?\.(\w)(\d+).*?(?:\[(\d+)\])?,?$")


def make_launch(capture: BaseCapture, launch: CapturedLaunch) -> Launch:
    kernel, codes = capture.build(launch.kernel)
    major = int(re.search(r"\.target sm_(\d+)", codes["ptx"])[1])
    start = next(at for least, at in _ARGUMENTS_AT if major >= least)
    words = _constants(codes["ptx"], start, [_value(capture, each) for each in launch.arguments])
    dimensions = {0: 32 * kernel.num_warps, 4: 1, 8: 1}
    dimensions |= {12: launch.grid[0], 16: launch.grid[1], 20: launch.grid[2]}
    dimensions |= {0x28: 0}

    def read_constant(offset: int) -> int | None:
        return words.get(offset) if offset >= start else dimensions.get(offset)

    tensors = {}
    for argument in launch.arguments:
        if (tensor := argument.own_tensor) and tensor.is_known and tensor.array is not None:
            tensors[tensor.storage] = tensor.array
    storages = capture.content.storages
    cache: dict[int, np.ndarray] = {}

    def load(address: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        result = np.zeros(address.shape, np.int64)
        known = np.zeros(address.shape, bool)
        number = storage_number(address)
        for each in np.unique(number).tolist():
            if each not in tensors:
                continue
            if each not in cache:
                try:
                    cache[each] = capture.read_array(tensors[each]).view(np.uint8)
                except Exception:
                    cache[each] = np.zeros(0, np.uint8)
            data = cache[each]
            place = address - (each + 1) * STORAGE_STEP - storages[each].address_bytes
            inside = (number == each) & (place >= 0) & (place + width <= len(data))
            at = place[inside]
            result[inside] = sum(
                data[at + byte].astype(np.int64) << 8 * byte for byte in range(width)
            )
            known |= inside
        return result, known

    return Launch(launch.grid, 32 * kernel.num_warps, read_constant, load)


def _value(capture: BaseCapture, argument: Argument) -> int | float | bool | None:
    if argument.descriptor:
        return None
    if (tensor := argument.own_tensor) is None:
        return argument.number
    start = capture.content.storages[tensor.storage].address_bytes + tensor.offset_bytes
    return (tensor.storage + 1) * STORAGE_STEP + start


def _constants(ptx: str, start: int, values: list) -> dict[int, int]:
    """Return the words of the arguments by their offset."""
    words = {}
    at = start
    parameters = [
        m
        for m in map(_PARAMETER.match, ptx.split(".entry", 1)[1].split("{", 1)[0].splitlines())
        if m
    ]
    for match, value in zip(parameters, [*values, None, None], strict=False):
        align, kind, bits, count = match.groups()
        size = int(bits) // 8 * int(count or 1)
        step = int(align) if align else size
        at = -(-at // step) * step
        if value is not None and not count:
            if kind == "f":
                data = struct.pack("<d" if size == 8 else "<f", float(value))
            else:
                data = (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
            data = data.ljust(4, b"\0")
            for k in range(0, len(data), 4):
                words[at + k] = int.from_bytes(data[k : k + 4], "little")
        at += size
    return words
