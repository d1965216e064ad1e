"""Sample the executions of memory operations: those on the same bytes, and those of programs on the same SM."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilescope.evaluate.sectors import SECTOR_BYTES

# Maximum number of executions of a launch that are kept.
_MOST = 1 << 18
# Memory is kept or dropped in pieces of this many bytes.
_PIECE_BYTES = 1 << 11
# Multiples of 2 ** 64 / the golden ratio are spread evenly, whatever the stride between blocks.
_MULTIPLIER = np.int64(0x9E3779B97F4A7C15 - (1 << 64))
# In launches with more programs, the executions of a program have no order.
_MOST_PROGRAMS = 1 << 22


@dataclass
class Touches:
    """A sample of the executions of an operation.

    Attributes:
        executed: (programs,) int32, number of all executions of each program; (0,) in a very large launch.
        bytes: that all executions move.
        low, high: the first and the last byte of all executions.
        scale: one in `scale` pieces of memory is sampled.
        parts: (program, first byte, last byte, bytes moved, number of earlier executions by the program) of the
            sampled executions, (executions,) each.
    """

    executed: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    bytes: float = 0.0
    low: int = 1 << 62
    high: int = 0
    scale: int = 1
    parts: list[tuple[np.ndarray, ...]] = field(default_factory=list)


class Sampler:
    """Samples the executions of all operations of a launch.

    Args:
        programs: of the launch.
    """

    def __init__(self, programs: int) -> None:
        self._programs = programs if programs <= _MOST_PROGRAMS else 0
        self._scale = 1
        self._kept = 0
        self._touches: list[Touches] = []

    def add(
        self,
        touches: Touches,
        program: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        size: np.ndarray,
    ) -> None:
        """Add executions of an operation.

        Args:
            touches: of the operation.
            program: (executions,) their programs. Those of a program are adjacent, and in order.
            low, high: (executions,) the first and the last byte of each.
            size: (executions,) the bytes moved.
        """
        if not touches.parts:
            touches.executed = np.zeros(self._programs, np.int32)
            touches.scale = self._scale
            self._touches.append(touches)
        touches.low = min(touches.low, int(low.min()))
        touches.high = max(touches.high, int(high.max()))
        touches.bytes += float(size.sum())
        number = self._count(touches, program)
        chosen = _choose(low, self._scale)
        touches.parts.append(tuple(each[chosen] for each in (program, low, high, size, number)))
        self._kept += len(chosen)
        while self._kept > _MOST:
            self._scale *= 2
            for each in self._touches:
                each.scale = self._scale
                each.parts = [_thin(part, self._scale) for part in each.parts]
            self._kept = sum(len(part[0]) for each in self._touches for part in each.parts)

    def _count(self, touches: Touches, program: np.ndarray) -> np.ndarray:
        """Count executions, and return how many earlier ones each program has."""
        if not self._programs:
            return np.zeros(len(program), np.int32)
        executed = touches.executed
        number = executed[program]
        is_same = program[1:] == program[:-1]
        if not is_same.any():
            executed[program] += 1
            return number
        first = np.flatnonzero(np.append(True, ~is_same))
        times = np.diff(first, append=len(program))
        executed[program[first]] += times.astype(np.int32)
        return number + np.arange(len(program)) - np.repeat(first, times)


def _choose(low: np.ndarray, scale: int) -> np.ndarray:
    """Return the numbers of the executions on one in `scale` pieces of memory. `scale` is a power of two."""
    if scale == 1:
        return np.arange(len(low))
    # The product's highest bits are 0 for one in `scale` pieces.
    bits = scale.bit_length() - 1
    return np.flatnonzero((low // _PIECE_BYTES * _MULTIPLIER).view(np.uint64) >> 64 - bits == 0)


def _thin(part: tuple[np.ndarray, ...], scale: int) -> tuple[np.ndarray, ...]:
    chosen = _choose(part[1], scale)
    return tuple(each[chosen] for each in part)


# Maximum number of programs, and of their sectors, that are recorded.
MOST_PROGRAMS = 8
_MOST_SECTORS = 1 << 19


class Probe:
    """Records the loads of a few programs that run on the same SM.

    Args:
        programs: number of programs in the launch.
        sms: number of SMs of the GPU.
    """

    def __init__(self, programs: int, sms: int) -> None:
        self.programs = np.arange(min(programs, sms) // 2, programs, sms)[:MOST_PROGRAMS]
        self._time = 0
        self._sectors = 0

    def find_members(self, programs: np.ndarray, running: np.ndarray) -> np.ndarray:
        """Return the indices of recorded programs among `running`, which are indices of `programs`, both ascending."""
        if self._sectors > _MOST_SECTORS:
            return running[:0]
        place = np.searchsorted(programs[running], self.programs)
        place = place[place < len(running)]
        members = running[place]
        return members[np.isin(programs[members], self.programs)]

    def record(
        self, loads: list[Loads], programs: np.ndarray, address: np.ndarray, on: np.ndarray
    ) -> None:
        """Add an execution of an operation by some programs to its `loads`.

        Args:
            programs: (programs,) their numbers.
            address, on: the lanes' addresses, and which are active; (programs, requests, lanes).
        """
        self._time += 1
        sectors = np.sort(np.where(on, address // SECTOR_BYTES, -1), axis=2)
        is_new = sectors >= 0
        is_new[..., 1:] &= sectors[..., 1:] != sectors[..., :-1]
        for program, touched, each in zip(programs.tolist(), sectors, is_new, strict=True):
            loads.append((program, self._time, touched[each]))
        self._sectors += int(np.count_nonzero(is_new))


# A program, the time of an execution, and the sectors of its requests, (sectors,).
Loads = tuple[int, int, np.ndarray]
