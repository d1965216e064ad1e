"""Find the part of a kernel's SASS that decides which instructions run, and which shared memory they access."""

import functools
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tilescope.captures.listings import UnsupportedOperation
from tilescope.sass.decoding import (
    CONSTANT_REGISTERS,
    Source,
    address,
    decode,
    next_register,
    register,
    source,
)
from tilescope.sass.instructions import Instruction
from tilescope.sass.registers import Accesses, find_live, reach, split_operands
from tilescope.sass.semantics import Number

_ADDRESS = re.compile(r"(\[U?R\d+|\.U32\+UR\d+)(?=(?:\+-?0x\w+)?\])")
INDIRECT = ("indexed", "return")
INSTRUCTION_BYTES = 16
GLOBAL_STORES = ("store", "atomic", "descriptor store")


class Budget:
    """The remaining work, in computed elements; 10 million take about 0.1 s."""

    def __init__(self, elements: int) -> None:
        self._left = elements

    def spend(self, elements: int) -> None:
        """Deduct elements from the budget.

        Raises:
            UnsupportedOperation: the budget is exhausted.
        """
        self._left -= elements
        if self._left < 0:
            raise UnsupportedOperation(
                "The launch is too large to execute. Launch a smaller shape."
            )


@dataclass(frozen=True)
class Planned:
    """An instruction of the plan: `compute` is None if its results can't be computed. See `decoding.Computation`."""

    index: int
    instruction: Instruction
    predicate: Source | None
    writes: tuple[str, ...]
    sources: tuple[Source, ...]
    compute: Callable[..., tuple[Number, ...]] | None

    @property
    def reads(self) -> list[str]:
        """The registers on which its results depend."""
        sources = (*self.sources, self.predicate) if self.predicate else self.sources
        return [name for each in sources for name in each.registers]

    @property
    def conditions(self) -> tuple[Source, ...]:
        """The predicates on which a jump depends."""
        tests = () if self.instruction.traits.jump in INDIRECT else self.sources
        return (self.predicate, *tests) if self.predicate else tests


class Plan:
    """The basic blocks of a listing, and the instructions whose results are needed.

    Args:
        table: the addresses to which indirect branches may lead.
        counted: the indices of accesses to global memory whose addresses are needed.
    """

    def __init__(
        self,
        code: Sequence[Instruction],
        budget: Budget,
        table: Sequence[int],
        counted: Collection[int] = (),
    ) -> None:
        self.code = code = _ignore_guards(code)
        self.counted = counted
        self._budget = budget
        self._targets = [address // INSTRUCTION_BYTES for address in table]
        leaders = {0, *self._targets}
        for index, instruction in enumerate(code):
            waits = self.reconverges(index)
            if waits:
                leaders.add(index)
            if waits or instruction.traits.jump or is_barrier(instruction):
                leaders.add(index + 1)
            if instruction.target is not None:
                leaders.add(instruction.target)
        self._return_points = [
            index for index, each in enumerate(code, 1) if each.traits.jump == "call"
        ]
        self.starts = sorted(leaders.intersection(range(len(code))))
        ends = [*self.starts[1:], len(code)]
        self.blocks = dict(zip(self.starts, ends, strict=True))
        self.planned = [self._plan(index, each) for index, each in enumerate(code)]
        # Blocks with a branch that depends on whether all lanes of a warp are active.
        self.convergent = {
            start: planned
            for start, end in self.blocks.items()
            for planned in self.planned[start:end]
            if planned.instruction.effect == "expect convergence"
        }
        self._following = {start: self._find_successors(start) for start in self.starts}
        self._reconvergences = dict[int, int | None]()
        self.reads_shared = False
        self.allocates_tensor_memory = any(each.name == "UTCATOMSWS" for each in code)
        needed = self._find_needed()
        if any(code[index].traits.smem == "load" for index in needed):
            self.reads_shared = True
            needed = self._find_needed()
        self.needed_names = {name for index in needed for name in self.planned[index].reads}
        loads = any(code[index].traits.gmem for index in needed)
        self.steps = {
            start: [
                self.planned[index]
                for index in range(start, end)
                if index in needed
                or index in counted
                or code[index].traits.smem
                or (loads and code[index].traits.gmem in GLOBAL_STORES)
            ]
            for start, end in self.blocks.items()
        }

    def reconverges(self, index: int) -> bool:
        """Return whether an instruction waits for all lanes of a warp."""
        return self.code[index].effect in ("end convergence", "converge")

    def _plan(self, index: int, instruction: Instruction) -> Planned:
        traits = instruction.traits
        condition = source(instruction.predicate) if instruction.predicate else None
        writes, reads = split_operands(instruction)
        if known := decode(instruction, writes, reads):
            return Planned(index, instruction, condition, *known)
        names = [each.lstrip("-!~") for each in writes if each not in CONSTANT_REGISTERS]
        sources: list[Source | None] = []
        if traits.loads:
            result = writes[-1] if writes else ""
            if result not in ("RZ", "URZ"):
                names = [next_register(result, k) for k in range(instruction.lane_registers)]
            places = [re.sub(r"^cx?\[\w+\]", "", each) for each in reads if "[" in each]
            sources = [address(_widen(instruction, each)) for each in places]
            if "CAS" in instruction.opcode:
                sources.append(source(reads[1]))
        elif traits.stores:
            names = []
            sources = [address(_widen(instruction, instruction.operands[0]))]
        elif traits.lanes:
            sources = [source(each) for each in reads]
            names = list(writes)
        elif traits.jump in INDIRECT:
            names = []
            base, *offset = instruction.operands[0].split()
            if traits.jump == "indexed":
                base += f"+{int(offset[0], 0) + INSTRUCTION_BYTES * (index + 1)}"
            sources = [address(f"[{base}]")]
        elif traits.jump:
            operands = instruction.operands[:1]
            sources = [source(each) for each in operands if each.lstrip("!~U").startswith("P")]
        return Planned(
            index, instruction, condition, tuple(names), tuple(filter(None, sources)), None
        )

    def _roots(self, planned: Planned) -> list[str]:
        """Return the registers that decide whether an instruction jumps, or which memory it accesses."""
        instruction = planned.instruction
        traits = instruction.traits
        is_counted = planned.index in self.counted
        if not (traits.jump or traits.smem or is_barrier(instruction) or is_counted):
            return []
        roots = [planned.predicate] if planned.predicate else []
        roots += planned.sources[:1]
        if self.reads_shared and traits.semantics == "shared memory" and traits.smem != "load":
            value = instruction.operands[-1]
            roots += [register(next_register(value, k)) for k in range(instruction.lane_registers)]
        return [name for each in roots for name in each.registers]

    def _find_successors(self, start: int) -> list[int]:
        planned = self.planned[self.blocks[start] - 1]
        last = planned.instruction
        jump = last.traits.jump
        follows = list[int]()
        if jump and last.target is not None:
            follows = [last.target]
        if jump in INDIRECT:
            follows = self._return_points if jump == "return" else self._targets
        is_end = jump and not planned.conditions
        follows = follows if is_end else [*follows, self.blocks[start]]
        return [each for each in follows if each in self.blocks]

    def reach(self, start: int, end: int | None) -> set[int]:
        """Return the blocks that `start` reaches without passing `end`."""
        ends = {end} if end is not None else set[int]()
        return reach(start, self._following.__getitem__, {*ends}) - ends

    def find_between(self, start: int, end: int) -> set[int]:
        """Return the blocks that may run after a branch at the end of a block, before another block."""
        following = [each for each in self._following[start] if each != end]
        return set[int]().union(*(self.reach(each, end) for each in following))

    def find_reconvergence(self, start: int) -> int | None:
        """Return where all paths from a block reconverge: the first later block that each passes, if any."""
        if start not in self._reconvergences:
            later = sorted(each for each in self.reach(start, None) if each > start)
            self._reconvergences[start] = next(
                (each for each in later if self._is_reconvergence(start, each)), None
            )
        return self._reconvergences[start]

    def _is_reconvergence(self, start: int, end: int) -> bool:
        reached = self.reach(start, end)
        self._budget.spend(100 * len(reached))
        ends = (self.code[self.blocks[each] - 1].traits.jump for each in reached)
        # After a conditional exit, fewer threads continue.
        return "exit" not in ends and all(self._following[each] for each in reached)

    def _find_needed(self) -> set[int]:
        """Return the instructions whose results reach a root. Set the registers that are live before each block."""
        numbers = dict[str, int]()

        @functools.cache
        def bits(*names: str) -> int:
            return sum(1 << numbers.setdefault(name, len(numbers)) for name in {*names})

        self._budget.spend(100 * len(self.code))
        accesses = [
            Accesses(
                bits(*self._roots(planned)),
                bits(*planned.writes),
                planned.predicate is not None,
                bits(*planned.reads),
            )
            for planned in self.planned
        ]
        following = [[index] for index in range(1, len(self.code) + 1)]
        for start, end in self.blocks.items():
            following[end - 1] = self._following[start]
        live = find_live(accesses, following)
        self.live_in = {
            start: frozenset(name for name, number in numbers.items() if live[start] >> number & 1)
            for start in self.starts
        }
        return {
            index
            for index, access in enumerate(accesses)
            if any(access.writes & live[each] for each in following[index])
        }


def _ignore_guards(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """Replace branches to calls that report a wrong use of tensor memory: a correct kernel never takes them."""

    def is_guard(target: int) -> bool:
        jump = next((each for each in code[target:] if each.traits.jump), None)
        return jump is not None and "guardrail_trap" in "".join(jump.operands)

    if not any(each.name == "UTCATOMSWS" for each in code):
        return code
    return [
        replace(each, predicate="", opcode="NOP", operands=(), target=None)
        if each.target is not None and is_guard(each.target)
        else each
        for each in code
    ]


def _widen(instruction: Instruction, place: str) -> str:
    """Mark the 64-bit registers of an address: before compute capability 8.0, "[R2+0x4]" stands for "[R2.64+0x4]"."""
    traits = instruction.traits
    is_wide = traits.gmem and not traits.smem and ".E" in instruction.opcode
    return _ADDRESS.sub(r"\1.64", place) if is_wide and ".64" not in place else place


def is_barrier(instruction: Instruction) -> bool:
    """Return whether all warps of a program that do different work wait for one another.

    Triton gives the barriers of each partition a number of threads, and barrier 0 to warps that do the same work.
    """
    operands = instruction.operands
    return instruction.effect == "barrier" and len(operands) == 1 and operands[0] != "0x0"
