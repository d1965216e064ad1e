"""What the pictures of a program's inside are drawn from, for a kernel of ours and for a script's launch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kernels.capture.reader import CapturedKernel
from kernels.gpus import Gpu
from kernels.inside.banks import Access
from kernels.inside.inspect import Inspection
from kernels.inside.report import Inside
from kernels.inside.sass import Instruction, parse
from kernels.instructions import CompiledFacts
from kernels.results import Compiled
from visualize.views.prose import picture_caption
from visualize.views.state import State


@dataclass(frozen=True)
class Program:
    """The inside of a launch's programs, with what only the pictures show.

    Attributes:
        about: the line below a saved picture.
        accesses: an execution of each instruction that accesses shared memory, by its index in the SASS.
    """

    inside: Inside
    facts: CompiledFacts | CapturedKernel
    num_warps: int
    gpu: Gpu | None
    sass: str
    about: str
    accesses: Mapping[int, Access] = field(default_factory=dict)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return parse(self.sass)

    def accesses_by_line(self) -> dict[str, list[Access]]:
        """Return the accesses of each line and opcode by their names, those with the most conflicts first."""
        groups = dict[tuple[str, int, str], list[Access]]()
        for index, access in self.accesses.items():
            instruction = self.instructions[index]
            file, line, _ = instruction.location[0]
            groups.setdefault((file, line, instruction.name), []).append(access)
        rows = sorted(self.inside.shared, key=lambda row: row.conflicts or 0, reverse=True)
        named = ((row, groups.get((row.file, row.line, row.opcode))) for row in rows)
        return {f"{row.opcode}, {place(row)}": group for row, group in named if group}


class _Placed(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


def place(item: _Placed) -> str:
    """Return the source line of a part of the report."""
    return f"{item.file}:{item.line}"


def describe(state: State, compiled: Compiled, inspection: Inspection) -> Program:
    """Return the inside of an experiment's programs, as compiled."""
    inside, executions = inspection
    return Program(
        inside=inside,
        facts=compiled,
        num_warps=state.experiment.config.num_warps,
        gpu=state.gpu,
        sass=compiled.sass,
        about=picture_caption(state.experiment, state.gpu.name, "compiled"),
        accesses=executions.accesses if executions else {},
    )
