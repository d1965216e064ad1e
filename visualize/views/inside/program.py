"""The data of the Inside view's pictures, for one of our kernels or for a script's launch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tilescope.captures.reader import CapturedKernel
from tilescope.declare.gpus import GPUS, Gpu
from tilescope.evaluate.instructions import CompiledFacts
from tilescope.inside.banks import BankAccess
from tilescope.inside.inspect import Inspection
from tilescope.inside.report import Inside, SharedAccess
from tilescope.reports.launches import Launches
from tilescope.results import Compiled, Counters, SharedCounts
from tilescope.sass.listing import Instruction, parse
from visualize.predict.agreement import LaunchCosts
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
    num_warps: int
    gpu: Gpu | None
    sass: str
    about: str
    accesses: Mapping[int, BankAccess] = field(default_factory=dict)
    counted: Mapping[SharedAccess, int] = field(default_factory=dict)
    counted_by: str = ""

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return parse(self.sass)

    def accesses_by_line(self) -> dict[str, list[BankAccess]]:
        """Return the accesses of each line and opcode by name, most conflicts first."""
        groups = dict[tuple[str, int, str], list[BankAccess]]()
        for index, access in self.accesses.items():
            instruction = self.instructions[index]
            groups.setdefault((*instruction.source, instruction.name), []).append(access)
        rows = sorted(self.inside.shared, key=lambda row: row.conflicts or 0, reverse=True)
        named = ((row, groups.get((row.file, row.line, row.opcode))) for row in rows)
        return {f"{row.opcode}, {place(row)}": group for row, group in named if group}


def captured_program(launches: Launches, number: int) -> Program:
    """Return the inside of the programs of a script's launch."""
    kernel = launches.kernel(number)
    inside, executions = launches.inspections(number)
    return Program(
        inside=inside,
        facts=kernel,
        num_warps=kernel.num_warps,
        gpu=GPUS.get(launches.gpu),
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
    """Return the source line of an item of the report."""
    return f"{item.file}:{item.line}"


def describe(snapshot: Snapshot, compiled: Compiled, inspection: Inspection) -> Program:
    """Return the inside of an experiment's programs, as compiled."""
    inside, executions = inspection
    state = snapshot.state
    counters = snapshot.result(Counters)
    is_counted = LaunchCosts(state.kernel, state.launch, compiled, counters).counted_is_compiled
    return Program(
        inside=inside,
        facts=compiled,
        num_warps=state.experiment.config.num_warps,
        gpu=state.gpu,
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
