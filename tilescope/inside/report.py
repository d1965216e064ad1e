"""Results of inspecting the programs of a launch, as frozen values that JSON can store."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilescope.captures.layouts import Layout
from tilescope.sass.instructions import OPCODES

# Nsight Compute's counters of wavefronts, each with its opcode. There is none for STSM or ATOMS alone.
WAVEFRONT_COUNTERS = {
    f"{opcode.lower()}_wavefronts": opcode for opcode, traits in OPCODES.items() if traits.counter
}
# The counters of a launch that follow from its executed instructions.
INSIDE_COUNTERS = ("instructions_executed", *WAVEFRONT_COUNTERS, "gmma_wavefronts")


class _InLibrary:
    """Instructions that may belong to a function of Triton's library."""

    file: str
    line: int
    callers: tuple[tuple[str, int], ...]

    @property
    def user_lines(self) -> tuple[tuple[str, int], ...]:
        """The files and lines in the user's code."""
        return self.callers or ((self.file, self.line),)


@dataclass(frozen=True)
class SharedAccess(_InLibrary):
    """The instructions of one source line and opcode that access shared memory, over all programs of a launch.

    Attributes:
        opcode: "LDS", "STS", "LDSM", "STSM", "LDGSTS" (its write to shared memory) or "ATOMS".
        executed: number of times that a warp executed one of them, including those without an active lane.
        wavefronts: passes of a warp's access through the 32 banks.
        ideal_wavefronts: wavefronts without bank conflicts.
        reading_wavefronts: more wavefronts than these, in which a copy reads lines from the L1.
        operation: the operation that they belong to, such as "layout conversion" or "reduction"; "" if unknown.
        why: why a number is missing (None); "" if none is.
        callers: files and lines of the user's code that call the function of Triton's library; empty outside of it.
    """

    file: str
    line: int
    opcode: str
    executed: int | None
    wavefronts: int | None
    ideal_wavefronts: int | None
    operation: str = ""
    why: str = ""
    callers: tuple[tuple[str, int], ...] = ()
    reading_wavefronts: int = 0

    @property
    def conflicts(self) -> int | None:
        """The bank conflicts; None if they are unknown."""
        if self.wavefronts is None or self.ideal_wavefronts is None:
            return None
        return self.wavefronts - self.ideal_wavefronts - self.reading_wavefronts


@dataclass(frozen=True)
class LineRegisters:
    """The registers per thread at the instructions of a source line.

    Attributes:
        registers: the most that a thread needs, as the compiler counts them: all up to the highest live one, and two
            that the GPU reserves; at least 16. The maximum is the kernel's number of registers, unless warps change
            theirs while they run (warp specialization).
        live: the most that are live. Registers between them are free, because some operands need aligned groups.
    """

    file: str
    line: int
    registers: int
    live: int


@dataclass(frozen=True)
class HeldRegisters:
    """Registers that are live where the most are, by the source line that wrote them."""

    file: str
    line: int
    registers: int


@dataclass(frozen=True)
class LineSpills:
    """The instructions of a source line that spill registers to local memory, or reload them.

    Attributes:
        stores, reloads: number of instructions in the SASS.
        stored_bytes: bytes per thread that the stores write, each once. The sum over lines is ptxas's "spill stores".
        executed: number of times that warps execute them in the launch; None if unknown.
        moved_bytes: bytes that they move in the launch, 32 lanes per warp; None if unknown.
    """

    file: str
    line: int
    stores: int
    reloads: int
    stored_bytes: int
    executed: int | None = None
    moved_bytes: int | None = None


@dataclass(frozen=True)
class LineInstructions(_InLibrary):
    """The SASS instructions of one kind that belong to a source line.

    Attributes:
        kind: such as "shuffles", "shared loads" or "HGMMA".
        compiled: number of instructions in the SASS.
        executed: number of times that the launch's warps execute them; None if unknown.
        callers: files and lines of the user's code that call the function of Triton's library; empty outside of it.
    """

    file: str
    line: int
    kind: str
    compiled: int
    executed: int | None = None
    callers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class SharedBuffer:
    """A buffer in a program's shared memory, or one stage of it: a rectangle of the memory map.

    Attributes:
        first, last: numbers of the steps between which it is live.
        operation: its purpose, such as "pipelined operand" or "layout conversion".
        stage: its number, from 0, out of `stages` equal slots, one after the other.
        tensor: names of the arguments whose blocks it holds, separated by commas; "" if there are none.
    """

    file: str
    line: int
    offset_bytes: int
    size_bytes: int
    first: int
    last: int
    operation: str
    stage: int = 0
    stages: int = 1
    tensor: str = ""


@dataclass(frozen=True)
class TensorBuffer:
    """A buffer in a program's tensor memory, such as the accumulator of a product.

    Attributes:
        columns: of 128 lanes with 4 bytes each. A buffer with half of the lanes counts half of its columns.
        first_column: its offset; None if it is unknown, as for Triton 3.9.
        first, last: numbers of the steps of the shared memory's map between which it is live.
    """

    file: str
    line: int
    columns: int
    first_column: int | None = None
    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class TensorLayout:
    """The layout of a block of an operation.

    Attributes:
        operation: such as "load", "multiplication" or "layout conversion".
        operand: "block" of an access to global memory, "a", "b" or "c" of a multiplication, "source" or "destination"
            of a conversion, "value" or "result" of an access to shared memory.
        element: the type of its elements, such as "f16".
    """

    file: str
    line: int
    operation: str
    operand: str
    element: str
    layout: Layout


@dataclass(frozen=True)
class LayoutConversion:
    """A conversion of a block to another layout.

    Attributes:
        shared_bytes: bytes that pass through shared memory; 0 if lanes exchange them without it.
        maker: the operation that fixes the source's layout, such as "the multiplication on line 7"; "" if unknown.
        user: the operation that needs the destination's layout, such as "the store on line 9"; "" if unknown.
    """

    file: str
    line: int
    element_bytes: int
    source: Layout
    destination: Layout
    shared_bytes: int
    maker: str
    user: str


@dataclass(frozen=True)
class LoopLoad:
    """A load in a loop.

    Attributes:
        ahead: the number of steps between the load and the use of its block; 0 if it is not pipelined.
        slots: the number of blocks that its buffer in shared memory holds; 0 for a load to registers.
        why: why it is not pipelined; "" if it is, or if the reason is unknown.
    """

    file: str
    line: int
    ahead: int
    slots: int
    why: str = ""


@dataclass(frozen=True)
class PipelineEvent:
    """An operation of a pipelined loop.

    Attributes:
        kind: "load" (to registers), "copy" or "TMA copy" (to shared memory), "commit" (of the copies since the last
            commit, as a group), "wait" (for copies), "read" (from shared memory), "multiplication",
            "multiplication wait" or "store".
        phase: "prologue", "loop" or "epilogue".
        step: the step whose data it handles, counted from the first step in the prologue, from the current step in the
            loop, and from the end in the epilogue.
        loads: numbers of the loads that it starts or, for a wait on a barrier, waits for.
        pending: how many groups of copies, or multiplications, a wait may leave in flight; None for others.
    """

    kind: str
    file: str
    line: int
    phase: str
    step: int
    loads: tuple[int, ...] = ()
    pending: int | None = None


@dataclass(frozen=True)
class Pipeline:
    """How the compiler pipelined a loop. `pipeline.unroll` returns its steps.

    Attributes:
        num_stages: of the loop or the kernel; None for a kernel that Triton's pipeliner did not compile.
        events: in the order of the code: the prologue, one step of the loop, and the epilogue.
    """

    file: str
    line: int
    num_stages: int | None
    loads: tuple[LoopLoad, ...]
    events: tuple[PipelineEvent, ...]


@dataclass(frozen=True)
class Moment:
    """An operation of an unrolled loop.

    Attributes:
        at: the step in which it runs; -1 in the prologue, and the number of steps in the epilogue.
        step: the step whose data it handles.
        slot: for a copy, the number of the block in its buffer.
        in_flight: the number of copies in flight after it.
        arrived: for a wait, the copies that it waits for, each as the number of the load and the step.
    """

    event: PipelineEvent
    at: int
    step: int
    slot: int | None
    in_flight: int
    arrived: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class MapStep:
    """An operation of the TTGIR that needs shared or tensor memory, in program order."""

    file: str
    line: int
    op: str


@dataclass(frozen=True)
class MapLoop:
    """A loop that contains the steps from `first` to `last`."""

    file: str
    line: int
    first: int
    last: int


@dataclass(frozen=True)
class StageNeed:
    """The shared memory of the same kernel with another num_stages.

    Attributes:
        programs_per_sm: with the registers of this kernel; None if the GPU is unknown.
    """

    num_stages: int
    shared_bytes: int
    programs_per_sm: int | None


@dataclass(frozen=True)
class SharedMap:
    """The map of a program's shared memory: bytes × steps.

    Attributes:
        shared_bytes: the end of the last buffer, which the compiler reports as the program's shared memory.
        limit_bytes: the most that a program may have; 0 if the GPU is unknown.
        by_stages: the needs with one stage fewer, the same number, and one more; empty if num_stages has no effect.
        why: why there are no buffers; "" if there are, or if the kernel needs none.
    """

    shared_bytes: int = 0
    limit_bytes: int = 0
    buffers: tuple[SharedBuffer, ...] = ()
    steps: tuple[MapStep, ...] = ()
    loops: tuple[MapLoop, ...] = ()
    by_stages: tuple[StageNeed, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class ChangedTime:
    """The predicted time of a launch with a change.

    Attributes:
        change: such as "num_stages = 4" or "no bank conflicts".
        options: the options with which a user makes it; empty if it has none.
        is_compiled: whether the kernel was compiled with it. Otherwise, its executed instructions are estimated.
    """

    change: str
    predicted_us: float
    options: Mapping[str, int] = field(default_factory=dict)
    is_compiled: bool = False


@dataclass(frozen=True, kw_only=True)
class Inside:
    """The inside of the programs of one launch, and the time that follows from it.

    Attributes:
        instructions_executed: by all warps of the launch; None if unknown.
        instructions_by_line: of each source line by kind, in the order of the source.
        gmma_wavefronts: passes in which matrix instructions read operands from shared memory; None if unknown.
        registers_by_line: most live registers first.
        registers_at_peak: the live registers where the most are live, on the first line of `registers_by_line`.
        shared_map: the buffers of shared memory; None in a report of an earlier version.
        tensor_memory: the buffers of tensor memory (compute capability 10).
        layouts: the layouts of the blocks of accesses, multiplications and conversions.
        conversions: the layout conversions of blocks.
        pipelines: the loops that load or multiply.
        not_executed: why executions are unknown; "" if they are known.
        unread: why the layouts, conversions and pipelines are unknown; "" if they are known.
        predicted_us: the predicted time with an L2 that holds none of the data; None if unknown.
        predicted_warm_us: the predicted time right after the same launch; None if unknown.
        range_us: the times between which nine of ten launches lie, by the errors of timed launches.
        bound_by: the busiest resource, or "latency" if none is busy for most of the time.
        by_resource_us: the time that each resource would take alone.
        changes: the predicted times with changes, the shortest first.
        not_predicted: why the time is unknown; "" if it is known.
        assumed: unmeasured properties of the GPU, and branches that depend on unknown values; "" without any.
    """

    shared: tuple[SharedAccess, ...] = ()
    instructions_executed: int | None = None
    instructions_by_line: tuple[LineInstructions, ...] = ()
    gmma_wavefronts: int | None = None
    registers_by_line: tuple[LineRegisters, ...] = ()
    registers_at_peak: tuple[HeldRegisters, ...] = ()
    spills_by_line: tuple[LineSpills, ...] = ()
    shared_map: SharedMap | None = None
    tensor_memory: tuple[TensorBuffer, ...] = ()
    layouts: tuple[TensorLayout, ...] = ()
    conversions: tuple[LayoutConversion, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()
    unread: str = ""
    not_executed: str = ""
    predicted_us: float | None = None
    predicted_warm_us: float | None = None
    range_us: tuple[float, float] | None = None
    bound_by: str = ""
    by_resource_us: Mapping[str, float] = field(default_factory=dict)
    changes: tuple[ChangedTime, ...] = ()
    not_predicted: str = ""
    assumed: str = ""

    @property
    def is_executed(self) -> bool:
        """Whether some executions are known. Reports of earlier versions lack them."""
        return self.instructions_executed is not None or bool(self.shared)

    @property
    def resource_shares(self) -> Mapping[str, float]:
        """The part of the predicted time that each resource would take alone."""
        total_us = self.predicted_us or math.inf
        return {name: time_us / total_us for name, time_us in self.by_resource_us.items()}

    @property
    def shared_wavefronts(self) -> int | None:
        """The wavefronts of all accesses to shared memory; None if some are unknown."""
        return self._sum([each.wavefronts for each in self.shared])

    @property
    def bank_conflicts(self) -> int | None:
        """The bank conflicts of all accesses to shared memory; None if some are unknown."""
        return self._sum([each.conflicts for each in self.shared])

    def sum_wavefronts(self, *opcodes: str) -> int | None:
        """Add up the wavefronts of the given opcodes. Return None if some are unknown."""
        return self._sum([each.wavefronts for each in self.shared if each.opcode in opcodes])

    def predict_counters(self) -> Mapping[str, int | None]:
        """Return the counters that follow from the executed instructions; None for unknown ones."""
        wavefronts = {
            name: self.sum_wavefronts(opcode) for name, opcode in WAVEFRONT_COUNTERS.items()
        }
        return {
            "instructions_executed": self.instructions_executed,
            **wavefronts,
            "gmma_wavefronts": self.gmma_wavefronts,
        }

    def _sum(self, numbers: Sequence[int | None]) -> int | None:
        if not self.is_executed or None in numbers:
            return None
        return sum(filter(None, numbers))
