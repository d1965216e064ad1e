"""Record integers that overflow their type while a launch is evaluated."""

import math
from dataclasses import replace

import numpy as np

from tilescope.evaluate.arithmetic import bits_of
from tilescope.evaluate.counts import Overflow
from tilescope.evaluate.global_memory import CHUNK
from tilescope.evaluate.values import Value
from tilescope.ttgir.parser import Op, shape_of


class Overflows:
    """The operations of a launch whose results overflow their type.

    Attributes:
        by_line: the overflows by line in the TTGIR.
    """

    def __init__(self, programs: int) -> None:
        self.by_line: dict[int, Overflow] = {}
        self._programs = programs
        self._wrapping: dict[int, np.ndarray] = {}

    def note(self, op: Op, value: Value, programs: np.ndarray, active: np.ndarray) -> None:
        """Record the first program in which an operation's result overflows its type, and the smallest such result.

        Args:
            value: the mathematical results.
            programs: (programs,) the numbers of the programs.
            active: (programs,) whether each executes the operation.
        """
        bits = bits_of(op.type)
        half = 1 << bits - 1
        low, high = value.bounds_by_program()
        wraps = np.flatnonzero(active & ((low < -half) | (high >= half)))
        if not op.source or not wraps.size:
            return
        are_wrapping = self._wrapping.setdefault(op.line, np.zeros(self._programs, bool))
        are_wrapping[programs[wraps]] = True
        least = np.broadcast_to(np.minimum(abs(low), abs(high)), len(active))[wraps]
        most = max(1, CHUNK // math.prod(shape_of(op.type)))
        closest = wraps[np.argsort(least, kind="stable")[:most]]
        members = np.union1d(wraps[:most], closest)
        blocks = value.blocks(members)
        is_wrong = (blocks < -half) | (blocks >= half)
        rows = np.nonzero(is_wrong)[0]
        if not rows.size:
            return
        wrong = blocks[is_wrong]
        new = Overflow(
            source=op.source,
            line=op.line,
            program=int(programs[members[rows[0]]]),
            value=int(wrong[0]),
            smallest=int(wrong[np.abs(wrong).argmin()]),
            programs=int(np.count_nonzero(are_wrapping)),
            bits=bits,
        )
        known = self.by_line.get(op.line, new)
        first = min(known, new, key=lambda each: each.program)
        smallest = min(known.smallest, new.smallest, key=abs)
        self.by_line[op.line] = replace(first, smallest=smallest, programs=new.programs)
