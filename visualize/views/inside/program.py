"""The data of the Inside view's pictures, for one of our kernels or for a script's launch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tilescope.captures.reader import CapturedKernel
from tilescope.evaluate.instructions import CompiledFacts
from tilescope.inside.banks import BankAccess, count_wavefronts
from tilescope.inside.inspect import Inspection
from tilescope.inside.report import Inside, SharedAccess
from tilescope.reports.launch import Launches
from tilescope.results import Compiled, Counters, SharedCounts
from tilescope.sass.instructions import Instruction, parse_sass
from visualize.predict.costs import LaunchCosts
from visualize.views.prose import picture_caption
from visualize.views.state import Snapshot


@dataclass(frozen=True)
class Program:
    """The inside of a launch's programs, with additional data for the pictures.

    Attributes:
        about: the caption of a saved picture.
        accesses: one execution of each instruction that accesses shared memory, by index in the SASS.
        counted: each access's wavefronts as the hardware counted them; empty without counts.
        counted_by: the profiler and its GPU.
    """

    inside: Inside
    facts: CompiledFacts | CapturedKernel
    sass: str
    about: str
    accesses: Mapping[int, BankAccess] = field(default_factory=dict)
    counted: Mapping[SharedAccess, int] = field(default_factory=dict)
    counted_by: str = ""

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return parse_sass(self.sass)

    def find_worst_access(self) -> tuple[SharedAccess, BankAccess] | None:
        """Return the warp access with the most bank conflicts on the worst line and opcode; None without conflicts."""
        code = self.instructions
        for row in sorted(self.inside.shared, key=lambda row: -(row.conflicts or 0)):
            if not row.conflicts:
                break
            own = row.file, row.line, row.opcode
            accesses = [
                access
                for index, access in self.accesses.items()
                if (*code[index].source, code[index].name) == own
            ]
            warps = [
                BankAccess(access.opcode, access.address[:, [warp]], access.active[:, [warp]])
                for access in accesses
                for warp in np.flatnonzero(access.active.any(axis=(0, 2)))
            ]
            worst = max(warps, key=lambda warp: count_wavefronts(warp).conflicts, default=None)
            if worst and count_wavefronts(worst).conflicts:
                return row, worst
        return None


def captured_program(launches: Launches, number: int) -> Program:
    """Return the inside of the programs of a script's launch."""
    kernel = launches.kernel(number)
    inside, executions = launches.inspections(number)
    return Program(
        inside=inside,
        facts=kernel,
        sass=launches.capture.read_code(launches.content.launches[number].kernel, "sass"),
        about=launches.caption,
        accesses=executions.accesses if executions else {},
    )


class _Placed(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


def place(item: _Placed) -> str:
    """Return the source line of an item of the report, or the user's lines that call Triton's library there."""
    lines = item.user_lines if isinstance(item, SharedAccess) else [(item.file, item.line)]
    return " and ".join(f"{file}:{line}" for file, line in lines)


def describe(snapshot: Snapshot, compiled: Compiled, inspection: Inspection) -> Program:
    """Return the inside of an experiment's programs, as compiled."""
    inside, executions = inspection
    state = snapshot.state
    counters = snapshot.result(Counters)
    is_counted = LaunchCosts(state.kernel, state.launch, compiled, counters).counted_is_compiled
    return Program(
        inside=inside,
        facts=compiled,
        sass=compiled.sass,
        about=picture_caption(state.experiment, state.gpu.name, "compiled"),
        accesses=executions.accesses if executions else {},
        counted=match_counts(inside.shared, counters.shared) if counters and is_counted else {},
        counted_by=f"{counters.tool}, {counters.device.name}" if counters else "",
    )


def match_counts(
    accesses: Sequence[SharedAccess], counts: Sequence[SharedCounts]
) -> Mapping[SharedAccess, int]:
    """Return the counted wavefronts of each access; {} if other lines and opcodes were counted.

    Lines may have moved since the count, so their order identifies them.
    """
    counted = Counter[tuple[str, int, str]]()
    for row in counts:
        counted[*row.source, row.opcode.partition(".")[0]] += row.wavefronts
    rows = sorted(key for key, wavefronts in counted.items() if wavefronts)
    own = {(each.file, each.line, each.opcode): each for each in accesses if each.wavefronts != 0}
    keys = sorted(key for key in own if key[2] != "ATOMS")  # Nsight Compute does not count them
    if [(file, opcode) for file, _, opcode in keys] != [(file, opcode) for file, _, opcode in rows]:
        return {}
    return {own[key]: counted[row] for key, row in zip(keys, rows, strict=True)}
