"""Explain what memory operations cost: narrow requests, order, gaps, and bytes that are loaded repeatedly."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

import numpy as np

from tilescope.advice.experiments import (
    TENSOR,
    Alternatives,
    Candidate,
    Change,
    Trial,
    TrialRunner,
    pass_options,
)
from tilescope.advice.same_work import find_same, total
from tilescope.advice.ttir_edits import Module
from tilescope.evaluate.causes import (
    ALIGNMENT,
    count_bytes,
    explain_sectors,
    explain_width,
    find_fullest,
    find_odd_size,
    measure_step,
    round_up,
)
from tilescope.evaluate.counts import OperationCounts, sum_costs
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.sectors import LEAST_COPY_BYTES, SECTOR_BYTES

# An operation is wasteful if its count is at least this multiple of what is needed.
_WASTEFUL = 2
# Number of sectors whose bytes are searched in all requests of a launch.
_FEW_SECTORS = 16
# Repeated accesses are reported if they are at least this part of the launch's sectors.
_LEAST_SHARE = 1 / 16


_ALIGN_TABLE = Change(
    "Pass the pointers through tl.multiple_of(pointer, 16).",
    "table",
    "The compiler does not know how the addresses in a table are aligned.",
    "The result stays the same only if all addresses in the table are multiples of 16.",
    ((Module.declare_addresses_divisible,),),
)


def explain_costs(runner: TrialRunner) -> Iterator[Alternatives]:
    strided: dict[tuple[str, ...], list[Candidate]] = {}
    for group in runner.counts.by_line():
        op = max(group, key=lambda each: each.requests + each.launch.wasted_sectors)
        example = op.tally.example
        if not op.instruction or not example or not example.active.any() or not runner.numbers(op):
            continue
        yield _relax(runner, op, op.instruction)
        if not op.instruction.layout:
            continue
        diagnosis = Diagnosis(runner, op, op.instruction)
        wider = diagnosis.widen() if diagnosis.is_narrow else ()
        gaps = diagnosis.explain_gaps()
        repeats = diagnosis.explain_repeats()
        yield [*wider, *diagnosis.explain_synchronous()]
        # Narrow requests of a warp fetch the same sectors.
        yield [*wider, *gaps] if diagnosis.repeats[_BY_REQUESTS] >= _WASTEFUL else gaps
        yield repeats
        if not wider and not gaps and not repeats:
            yield diagnosis.align()
        for each in gaps:
            if each.kind == "strided" and each.trials:
                strided.setdefault(op.tensors, []).append(each)
    for candidates in strided.values():  # reordering a tensor's elements changes all of them
        edits = tuple(edit for each in candidates for edit in each.trials[0][0].edits)
        for each in candidates:
            each.trials = [Trial([replace(each.trials[0][0], edits=edits)])]


def _relax(
    runner: TrialRunner, op: OperationCounts, instruction: MemoryInstruction
) -> Alternatives:
    if op.counter != "atom" or instruction.swaps or "acq_rel" not in instruction.instruction:
        return []
    change = Change(
        'Pass sem="relaxed".',
        needs="The result stays the same only if no other program synchronizes on this operation.",
        edits=tuple((Module.relax, each.line) for each in runner.find(op)),
    )
    text = "With acq_rel ordering, each request waits for all earlier accesses, and later accesses wait for it."
    share = runner.share(op.requests)
    return [Candidate("ordering", text, op, [Trial([change])], is_fact=False, share=share)]


class Diagnosis:
    """A memory operation on a block, and an example of its addresses.

    Attributes:
        address, active: (requests, lanes), each lane's first byte, and whether its mask is true.
        warp: (requests,), the warp of each.
    """

    def __init__(
        self, runner: TrialRunner, op: OperationCounts, instruction: MemoryInstruction
    ) -> None:
        self.runner = runner
        self.op = op
        self.instruction = instruction
        example = op.tally.example
        assert example is not None
        self.example = example
        self.address, self.active = example.lanes(instruction)
        self.warp = instruction.vectors.warp[instruction.issued]
        self.arguments = runner.arguments
        self.owner = runner.find_owner(op)
        most_bytes = min(ALIGNMENT, instruction.bytes_per_lane)
        self.is_narrow = instruction.width_bytes < most_bytes and op.op != "atomic"
        narrow = 1 - instruction.width_bytes / max(1, most_bytes)
        self.step = measure_step(self.address, self.active)
        self.cost = sum_costs(find_same(op, runner.counts))
        self.narrow_share = runner.share(narrow * self.cost.requests)
        sector = np.where(self.active, self.address // SECTOR_BYTES, -1)
        of_warps = [sector[self.warp == number] for number in np.unique(self.warp)]
        per_warp = _count_distinct(*of_warps)
        per_request = _count_distinct(*sector)
        bytes_per_request = _count_distinct(*np.where(self.active, self.address, -1))
        # How often lanes, requests and warps access the same bytes or sectors.
        self.repeats = {
            "lanes of one request load the same bytes": self.active.sum() / bytes_per_request,
            _BY_REQUESTS: per_request / per_warp,
            _BY_WARPS: per_warp / _count_distinct(sector),
        }

    def has_share(self) -> bool:
        return self.cost.sectors >= _LEAST_SHARE * total(self.runner.counts)[1]

    def widen(self) -> Alternatives:
        """Tell the compiler more about the arguments, or pad them."""
        aligned = []
        known = []
        for number, argument in self.arguments.items():
            name = argument.name
            value = argument.value
            if argument.tensor and self.runner.start(argument) % ALIGNMENT:
                aligned.append(self._align(number, ALIGNMENT))
            elif type(value) is int and value != 1 and value % ALIGNMENT:
                cause = find_odd_size(name, value)
                advice = f"Declare {name} as tl.constexpr."
                edits = ((Module.fix_argument, number, value),)
                change = Change(advice, "divisibility", cause, edits=edits, is_equivalent=True)
                known.append(change)
        if self.op.index_line and re.search(r"tt\.int_to_ptr|!tt\.ptr<!tt\.ptr", self.runner.ttir):
            known.append(_ALIGN_TABLE)
        text = explain_width(self.op.width_bytes)
        padded = [*self._pad_arguments(), *self._round_bounds()]
        trials = [Trial(aligned + changes) for changes in (known, padded)]
        share = self.narrow_share
        return [Candidate("", text, self.op, trials, False, itemgetter("requests"), share=share)]

    def _align(self, number: int, unit: int) -> Change:
        argument = self.arguments[number]
        assert argument.tensor is not None
        offset = self.runner.start(argument) % unit
        start = argument.tensor.offset_bytes - offset
        return Change(
            "Copy the view to aligned memory.",
            "misaligned",
            f"{argument.name} starts {count_bytes(offset)} past a {unit}-byte boundary.",
            edits=((Module.declare_divisible, number),),
            argument=replace(argument, tensor=replace(argument.tensor, offset_bytes=start)),
        )

    def align(self) -> Alternatives:
        """Start the tensor at a sector."""
        if self.owner is None or not self.arguments[self.owner].tensor or not self.has_share():
            return []
        if not self.runner.start(self.arguments[self.owner]) % SECTOR_BYTES:
            return []
        trial = Trial([self._align(self.owner, SECTOR_BYTES)])
        share = self.runner.share(self.cost.wasted_sectors)
        return [Candidate("misaligned", "", self.op, [trial], is_fact=False, share=share)]

    def _pad_arguments(self) -> Iterator[Change]:
        """Round up the arguments of addresses and masks, and the strides of all tensors that a mask's bound limits."""
        bounds = self.op.masked_by
        bounded = [each for each in self.runner.counts.operations if each.masked_by & bounds]
        names = self.op.addressed_by.union(bounds, *(each.addressed_by for each in bounded))
        for number, argument in self.arguments.items():
            name = argument.name
            value = argument.value
            if name not in names or type(value) is not int or value == 1:
                continue
            if value % ALIGNMENT == 0 or self.runner.module.computes_with(number):
                continue
            rounded = replace(argument, value=round_up(value))
            users = self.runner.counts.operations
            padded = {t for each in users if name in each.addressed_by for t in each.tensors}
            limited = {t for each in users if name in each.masked_by for t in each.tensors}
            verb = f"Pad {' and '.join(sorted(padded))}, and pass" if padded else "Pass"
            yield Change(
                f"{verb} {name} = {rounded.value}.",
                "divisibility",
                find_odd_size(name, value),
                edits=((Module.declare_divisible, number),),
                argument=rounded,
                pads=tuple(padded | limited),
            )

    def _round_bounds(self) -> Iterator[Change]:
        module = self.runner.module
        for line, bound in module.mask_bounds(self.runner.find(self.op)).items():
            if bound % ALIGNMENT:
                limited = {
                    tensor
                    for each in self.runner.counts.operations
                    if line in module.mask_bounds(self.runner.find(each))
                    for tensor in each.tensors
                }
                yield Change(
                    f"Round the bound up to {round_up(bound)}.",
                    "mask",
                    f"The mask's bound {bound} is not a multiple of {ALIGNMENT}.",
                    edits=((Module.set_bound, line, round_up(bound)),),
                    pads=tuple(limited),
                )

    def explain_synchronous(self) -> Alternatives:
        """State why a load in a loop is not an asynchronous copy, although others are."""
        op = self.op
        copies = {
            each.source[1] for each in self.runner.counts.operations if each.op == "async copy"
        }
        is_in_loop = op.tally.executions > math.prod(self.runner.launch.grid)
        if op.op != "load" or not copies or not is_in_loop:
            return []
        module = self.runner.module
        own = {name for each in self.runner.find(op) for name in each.results}
        loads = (each for each in module.loops if each.name == "tt.load" and each.location)
        users = {each.place[1] for each in loads if own & module.slice.reach(each.operands[:1])}
        trials = []
        if op.width_bytes < LEAST_COPY_BYTES:
            width = count_bytes(op.width_bytes).replace(" ", " contiguous ")
            why = f"each lane has only {width}, and a copy needs {LEAST_COPY_BYTES}"
        elif users:
            stages = self.runner.num_stages
            why = f"the load on line {min(users)} depends on it, and num_stages is only {stages}"
            trials.append(pass_options({"num_stages": stages + 1}))
        elif own.isdisjoint(module.multiplied):
            why = "no tl.dot depends on it"
        else:
            return []
        if not users and not self.has_share():
            return []
        s = "s" * (len(copies) > 1)
        lines = f"the load{s} on line{s} {', '.join(map(str, sorted(copies)))}"
        text = f"Unlike {lines}, this load is not compiled to an asynchronous copy: {why}."
        share = self.runner.share(self.cost.requests)
        return [Candidate("synchronous", text, op, trials, share=share)]

    def explain_gaps(self) -> Alternatives:
        """State that lanes access addresses far apart, or in descending order."""
        op = self.op
        cost = self.cost
        ratio = cost.sectors / max(1, cost.ideal_sectors)
        share = self.runner.share(cost.wasted_sectors)
        step = self.step
        clause = explain_sectors(self.address, self.active, op.width_bytes)
        warp = self.warp[find_fullest(self.active)]
        where = f"in program {self.example.program}, warp {warp}"
        excess = f"The requests touch {ratio:.3g} × as many sectors as their bytes fill"
        if self.is_narrow and step < 0:
            order = (
                f"{where.capitalize()}, addresses fall by {count_bytes(-step)} from lane to lane."
            )
            rule = "Triton combines a lane's elements only in ascending order."
            text = explain_width(op.width_bytes, order, rule)
            return [Candidate("reversed", text, op, share=self.narrow_share)]
        if ratio >= _WASTEFUL and abs(step) > op.width_bytes:
            text = f"{excess}: {where}, {clause}."
            unused = self._measure_unused()
            if self.repeats[_BY_REQUESTS] >= _WASTEFUL and not unused:
                text += " Other requests use the remaining bytes."
                return [Candidate("strided", text, op, share=share)]
            if unused:
                text += f" {unused:.0%} of the fetched bytes are used by no request of any program."
            advice = (
                f"Store {TENSOR}'s elements without gaps, in the order in which lanes access them."
            )
            needs = f"The result stays the same only if all users of {TENSOR} expect that order."
            trials = []
            if unused or not self._reorders():
                trials = self._access_contiguously(self.example.address.size, advice, needs)
            return [Candidate("strided", text, op, trials, share=share)]
        if ratio >= _WASTEFUL and op.index_line:
            why = f"the load on line {op.index_line} determines the addresses"
            return [Candidate("scattered", f"{excess}: {why}.", op, share=share)]
        used = np.unique(self.example.address[self.example.active])
        sectors = np.unique(used // SECTOR_BYTES).size
        filled = used.size * self.instruction.element_bytes / (sectors * SECTOR_BYTES)
        # If lanes share elements, the requests' distinct bytes fill fewer sectors.
        if 1 / filled >= _WASTEFUL * max(1, ratio) and self.has_share():
            text = (
                f"In program {self.example.program}, the block's elements are spread out in memory: they fill "
                f"{filled:.0%} of the sectors that the requests touch."
            )
            share = self.runner.share(cost.sectors * (1 - filled))
            return [Candidate("scattered", text, op, share=share)]
        if ratio >= _WASTEFUL:
            return [Candidate("scattered", f"{excess}: {where}, {clause}.", op, share=share)]
        return []

    def _reorders(self) -> bool:
        """Whether the kernel's purpose is another order: it stores what it loads, and the other tensor has no gaps."""
        others = [op for op in self.runner.counts.operations if op.tensors != self.op.tensors]
        own = find_same(self.op, self.runner.counts)
        moved, kept = (sum(op.tally.elements for op in side) for side in (own, others))
        cost = sum_costs(others)
        is_pair = len({op.tensors for op in others}) == 1 and moved == kept
        return is_pair and cost.sectors < _WASTEFUL * cost.ideal_sectors

    def _measure_unused(self) -> float:
        """Return the part of the example's first sectors that no request of the launch to the same tensor uses."""
        sectors = np.unique(self.address[self.active] // SECTOR_BYTES)[:_FEW_SECTORS]
        elements = np.arange(0, SECTOR_BYTES, self.instruction.element_bytes)
        places = (sectors[:, None] * SECTOR_BYTES + elements).reshape(-1, 1)
        is_used = np.zeros(len(places), bool)
        for op in self.runner.counts.operations:
            if op.tensors == self.op.tensors and op.tally.starts:
                example = op.tally.example or self.example
                offsets = np.unique(example.address[example.active])
                starts = np.concatenate([start for _, start in op.tally.starts])
                is_used |= np.isin(places - (offsets - offsets[0]), starts).any(axis=1)
        return 1 - float(is_used.mean())

    def explain_repeats(self) -> Alternatives:
        """State that lanes, requests or warps load the same bytes."""
        repeats = dict(self.repeats)
        if abs(self.step) > self.op.width_bytes:
            # Requests with gaps fetch the same sectors.
            del repeats[_BY_REQUESTS]
        if (
            self.op.counter != "ld"
            or math.prod(repeats.values()) < _WASTEFUL
            or not self.has_share()
        ):
            return []
        parts = [f"{what} {times:.3g} times" for what, times in repeats.items() if times > 1]
        text = f"In program {self.example.program}, {' and '.join(parts)}."
        requests = self.instruction.count_requests(self.address, self.active)
        times = requests.sectors.sum() / np.unique(self.address[self.active] // SECTOR_BYTES).size
        sectors = self.cost.sectors
        if times > 1:
            fewer = round(sectors / times)
            text += f" The launch touches {sectors:,} sectors; about {fewer:,} would suffice."
        trials = []
        distinct = np.unique(self.example.address)
        covered = np.unique(distinct // SECTOR_BYTES).size * SECTOR_BYTES
        starts = np.concatenate([start for _, start in self.op.tally.starts])
        is_whole = distinct.size * self.instruction.element_bytes == covered
        if is_whole and not self.op.index_line and not (starts % SECTOR_BYTES).any():
            advice = "Load each element once, and repeat it with tl.broadcast_to and tl.reshape."
            trials += self._access_contiguously(distinct.size, advice)
        warps = self.runner.kernel.num_warps // round(repeats[_BY_WARPS])
        if 1 <= warps < self.runner.kernel.num_warps and "tt.dot" not in self.runner.ttir:
            trials.append(pass_options({"num_warps": warps}))
        share = self.runner.share(sectors * (1 - 1 / times))
        cost = itemgetter("sectors")
        return [Candidate("repeated", text, self.op, trials, cost=cost, share=share)]

    def _access_contiguously(self, count: int, advice: str, needs: str = "") -> list[Trial]:
        """Return a change that makes the addresses a block without gaps; none if a mask forbids it."""
        owner = self.owner
        if owner is None or self.runner.start(self.arguments[owner]) % SECTOR_BYTES:
            return []
        module = self.runner.module
        pointer = module.body.arguments[owner]
        inner = [
            each
            for each in self.runner.find(self.op)
            if pointer in module.slice.reach(each.operands[:1])
        ]
        shape = self.example.address.shape
        is_free = self.op.counter == "ld" and not any(each.mask for each in inner)
        if not inner or not (shape == (count,) or is_free):
            return []
        edits = tuple((Module.access_contiguously, each.line, owner, count) for each in inner)
        repeats = self.example.address.size // count
        return [Trial([Change(advice, needs=needs, edits=edits, repeats=repeats, moves=True)])]


def _count_distinct(*parts: np.ndarray) -> int:
    return sum(np.unique(part[part >= 0]).size for part in parts)


_BY_REQUESTS = "requests of one warp load each sector"
_BY_WARPS = "warps load the same sectors"
