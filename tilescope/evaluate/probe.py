"""Record the sectors that programs of one SM load: programs on an SM share its L1."""

from __future__ import annotations

import numpy as np

from tilescope.evaluate.sectors import SECTOR_BYTES

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
